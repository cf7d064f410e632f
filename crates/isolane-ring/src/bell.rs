//! Who waits, and who wakes: a flag in shared memory, and a pair of sockets for the one who sleeps.
//!
//! The one who waits spins, arms the flag, looks once more, and sleeps; who publishes rings only where the
//! flag is armed. So a waiter that spins costs its other side nothing, and one that sleeps is woken once. The
//! flag belongs to whom it wakes: a thread has one for all of its rings.
//!
//! Who waits for nothing else needs no bell: it sleeps on the flag itself ([`Flag::wait`]), in a blocking call.
//!
//! Sockets and not an eventfd: that would be one file for both sides, and whoever has it can make it block
//! who writes to it, and take what was meant for another. Of a pair each side has an end of its own.
//!
//! Invariant: whoever publishes before [`Flag::take`] is seen by who looks after [`Flag::arm`], or takes the
//! flag: a fence on both sides lets neither miss the other. A hostile other side can only ring too often or
//! never.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
    recv, recvmsg, send, socketpair, sockopt,
};
#[cfg(not(loom))]
use rustix::thread::futex;

use crate::index::Line;
use crate::sync::{AtomicU32, Ordering, fence};

/// The word that says whether somebody sleeps, or is about to.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Flag {
    armed: Line<AtomicU32>,
}

impl Flag {
    /// Bytes in shared memory.
    pub const BYTES: usize = crate::index::LINE_BYTES;

    /// A flag that is not armed.
    pub fn new() -> Flag {
        Flag::default()
    }

    /// Asks to be woken. Look once more before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.armed.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks no more.
    #[inline]
    pub fn disarm(&self) {
        self.armed.0.store(0, Ordering::Relaxed);
    }

    /// Whether to wake now: call it after publishing. Of several who publish, one gets the duty.
    #[inline]
    pub fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.armed.0.load(Ordering::Relaxed) != 0 && self.armed.0.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(not(loom))]
impl Flag {
    /// Sleeps on the armed flag, until somebody wakes who has taken it. Returns false if time ran out; true may
    /// mean anything else, so look again.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(timespec);
        // Not private to the process: the other side finds the same page in its own memory.
        let outcome = futex::wait(&self.armed.0, futex::Flags::empty(), 1, timeout.as_ref());
        outcome != Err(Errno::TIMEDOUT)
    }

    /// Wakes who sleeps on the flag, if it is armed: call it after publishing. Returns whether it was.
    #[inline]
    pub fn rouse(&self) -> bool {
        let must = self.take();
        if must {
            self.rouse_anyway();
        }
        must
    }

    /// Disarms the flag and wakes who sleeps on it, even if somebody else has taken it: who took it may have
    /// died before it could wake.
    #[cold]
    pub fn rouse_anyway(&self) {
        fence(Ordering::SeqCst);
        self.armed.0.store(0, Ordering::Relaxed);
        // It fails only for an address that is no word, and this is one.
        let _ = futex::wake(&self.armed.0, futex::Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Flag>() == Flag::BYTES);

/// A flag and an end of the pair of sockets behind it.
#[derive(Debug)]
pub struct Bell<F, E = OwnedFd> {
    flag: F,
    end: E,
}

impl<F: Deref<Target = Flag>> Bell<F> {
    /// A bell, and the end that is to be given to the other side.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors.
    pub fn new(flag: F) -> io::Result<(Bell<F>, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (end, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Bell { flag, end }, theirs))
    }
}

impl<F: Deref<Target = Flag>, E: AsFd> Bell<F, E> {
    /// A bell whose end the other side has given.
    ///
    /// # Errors
    /// `InvalidInput` if it is something else than an end of such a pair, on which anything may block.
    pub fn with(flag: F, end: E) -> io::Result<Bell<F, E>> {
        check_end(end.as_fd())?;
        Ok(Bell { flag, end })
    }

    /// What becomes readable when somebody rings, to be watched by a poller.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// The flag.
    pub fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Wakes the other side if it sleeps: to be called after something was published. Returns whether it did.
    #[inline]
    pub fn ring(&self) -> bool {
        let must = self.flag.take();
        if must {
            self.ring_anyway();
        }
        must
    }

    /// Wakes the other side whether or not it has asked for it.
    #[cold]
    pub fn ring_anyway(&self) {
        // Full means that it is awake, or about to be; broken, that nobody is there to be woken. The flags
        // are for this call alone: those of the file are shared with whoever else has it.
        let _ = send(&self.end, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sleeps until somebody rings, unless `look` finds something to do once the flag is armed. Returns false
    /// if time ran out.
    ///
    /// # Errors
    /// As [`Bell::quiet`], or what `look` returns.
    pub fn wait<Error: From<io::Error>>(
        &self,
        timeout: Option<Duration>,
        look: impl FnOnce() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        self.flag.arm();
        let outcome = match look() {
            Ok(true) => Ok(true),
            Ok(false) => self.sleep(timeout).map_err(Error::from),
            Err(error) => Err(error),
        };
        self.flag.disarm();
        outcome
    }

    fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        let mut watched = [PollFd::new(&self.end, PollFlags::IN)];
        let count = match poll(&mut watched, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(true),
            other => other?,
        };
        self.quiet()?;
        Ok(count > 0)
    }

    /// Forgets that somebody has rung.
    ///
    /// # Errors
    /// `ConnectionAborted` if the other side's end is closed: nobody will ring any more. The kernel's.
    pub fn quiet(&self) -> io::Result<()> {
        let mut rings = [0u8; RINGS_MAX];
        let outcome = recv(&self.end, &mut rings[..], RecvFlags::DONTWAIT);
        heard(outcome.map(|(count, _)| count))
    }

    /// As [`Bell::quiet`], for whom the other side may be hostile: returns descriptors that came with the rings,
    /// which no bell of ours is rung with. Otherwise the kernel would close them here, and that may wait. What
    /// [`refuse_gifts`] has forbidden an older kernel allows, and who has given the end may allow again.
    ///
    /// # Errors
    /// As [`Bell::quiet`].
    pub fn quiet_warily(&self) -> io::Result<Vec<OwnedFd>> {
        let mut rings = [0u8; RINGS_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let outcome = recvmsg(&self.end, &mut [IoSliceMut::new(&mut rings)], &mut control, flags);
        let gifts = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let gifts: Vec<OwnedFd> = gifts.flatten().collect();
        match gifts.is_empty() {
            true => heard(outcome.map(|received| received.bytes)).map(|()| gifts),
            false => Ok(gifts),
        }
    }
}

fn heard(outcome: Result<usize, Errno>) -> io::Result<()> {
    match outcome {
        Ok(0) | Err(Errno::CONNRESET) => {
            let gone = "the other side has closed its end of a bell";
            Err(io::Error::new(io::ErrorKind::ConnectionAborted, gone))
        }
        // Empty means that nobody has.
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets nobody send descriptors with a ring, through an end that the other side has just given: to hear it would
/// close them, and that may wait. Where the kernel cannot (before Linux 6.16) it still can.
///
/// # Errors
/// `InvalidInput` if it is no end of a bell, or was rung before it was given. The kernel's.
pub fn refuse_gifts(end: BorrowedFd<'_>) -> io::Result<()> {
    check_end(end)?;
    // Not known to the kernel is as good as it gets.
    let _ = set_pass_rights(end, false);
    if rustix::io::ioctl_fionread(end)? > 0 {
        let refusal = "the other side has rung before it gave its end of a bell: it must give a new one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, refusal));
    }
    Ok(())
}

fn check_end(end: BorrowedFd<'_>) -> io::Result<()> {
    let is_unix = sockopt::socket_domain(end).is_ok_and(|domain| domain == AddressFamily::UNIX);
    if !is_unix || sockopt::socket_type(end).ok() != Some(SocketType::STREAM) {
        let refusal = "the other side's end of a bell is no Unix stream socket: it must give one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, refusal));
    }
    Ok(())
}

/// Whether others may send descriptors to a Unix socket.
fn set_pass_rights(socket: BorrowedFd<'_>, may: bool) -> io::Result<()> {
    let value = libc::c_int::from(may);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: it reads as many bytes as it is told of a value that outlives the call.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Of Linux 6.16; not in `libc` yet.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Rings that are forgotten together; whoever rings more often wakes more often.
const RINGS_MAX: usize = 64;
/// The most descriptors that the kernel lets one send at once (`SCM_MAX_FD`).
const RIGHTS_MAX: usize = 253;

/// A time to wait as the kernel takes it; one too long for it is as good as for ever.
pub fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i32::MAX.into(), tv_nsec: 0 })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn only_who_has_armed_is_woken_and_only_once() {
        let flag = Arc::new(Flag::new());
        let (bell, theirs) = Bell::new(Arc::clone(&flag)).unwrap();
        let other = Bell::with(Arc::clone(&flag), theirs).unwrap();
        assert!(!other.ring());
        flag.arm();
        assert!(other.ring() && !other.ring());
        assert!(bell.sleep(Some(Duration::ZERO)).unwrap());
        assert!(!bell.sleep(Some(Duration::ZERO)).unwrap(), "the ring was heard");
    }

    #[test]
    fn who_sleeps_on_the_flag_itself_is_woken_and_not_before() {
        let flag = Arc::new(Flag::new());
        flag.arm();
        assert!(!flag.wait(Some(Duration::from_millis(1))), "nobody has woken it");
        let theirs = Arc::clone(&flag);
        let waker = std::thread::spawn(move || theirs.rouse());
        assert!(flag.wait(Some(Duration::from_secs(60))));
        assert!(waker.join().unwrap() && !flag.rouse());
        assert!(flag.wait(None), "a flag that is not armed is not slept on");
    }

    /// As after a waker that was killed between taking the flag and waking.
    #[test]
    fn who_sleeps_on_a_flag_that_somebody_has_taken_can_be_woken_nevertheless() {
        let flag = Arc::new(Flag::new());
        flag.arm();
        let theirs = Arc::clone(&flag);
        let sleeper = std::thread::spawn(move || theirs.wait(Some(Duration::from_secs(60))));
        assert!(flag.take());
        flag.rouse_anyway();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn two_mappings_of_the_same_memory_wake_each_other() {
        let ours = crate::Memory::create("flags", crate::PAGE_SIZE).unwrap();
        let memfd = ours.memfd().try_clone_to_owned().unwrap();
        let theirs = crate::Memory::open(memfd, crate::PAGE_SIZE).unwrap().flag(256).unwrap();
        let flag = ours.flag(256).unwrap();
        flag.arm();
        let waker = std::thread::spawn(move || {
            while !theirs.rouse() {
                std::thread::yield_now();
            }
        });
        assert!(flag.wait(Some(Duration::from_secs(60))));
        waker.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn who_finds_something_to_do_does_not_sleep() {
        let (bell, _theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        assert!(bell.wait::<io::Error>(None, || Ok(true)).unwrap());
        assert!(!bell.ring(), "nobody asks any more");
        assert!(!bell.wait::<io::Error>(Some(Duration::ZERO), || Ok(false)).unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn nothing_that_is_published_is_slept_through() {
        let shared = Arc::new((AtomicU64::new(0), Flag::new()));
        struct Part(Arc<(AtomicU64, Flag)>);
        impl Deref for Part {
            type Target = Flag;
            fn deref(&self) -> &Flag {
                &self.0.1
            }
        }
        let (waiter, theirs) = Bell::new(Part(Arc::clone(&shared))).unwrap();
        let waker = Bell::with(Part(Arc::clone(&shared)), theirs).unwrap();
        let counted = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for _ in 0..20_000 {
                counted.0.fetch_add(1, Ordering::Release);
                waker.ring();
            }
        });
        while shared.0.load(Ordering::Acquire) < 20_000 {
            let seen = shared.0.load(Ordering::Acquire);
            let has_come =
                || Ok::<bool, io::Error>(shared.0.load(Ordering::Acquire) != seen || seen == 20_000);
            assert!(waiter.wait(Some(Duration::from_secs(60)), has_come).unwrap(), "a ring was lost");
        }
        thread.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn who_rings_never_waits_whatever_the_other_side_does_to_its_end() {
        let (told, done) = std::sync::mpsc::channel();
        let (bell, theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        // Nobody takes the rings, and what can be said to block says so, on both ends.
        for end in [theirs.as_fd(), bell.end()] {
            fcntl_setfl(end, OFlags::empty()).unwrap();
        }
        std::thread::spawn(move || {
            (0..100_000).for_each(|_| bell.ring_anyway());
            told.send(bell.quiet().is_ok()).unwrap();
        });
        assert!(done.recv_timeout(Duration::from_secs(60)).expect("it waits for the other side"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn a_flood_of_rings_is_heard_and_ends() {
        let (bell, theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        let other = Bell::with(Arc::new(Flag::new()), theirs).unwrap();
        (0..1000).for_each(|_| other.ring_anyway());
        let wakes = (0..1000).take_while(|_| bell.sleep(Some(Duration::ZERO)).unwrap()).count();
        assert!((1..1000).contains(&wakes), "{wakes}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn who_sleeps_is_told_that_the_other_side_has_gone() {
        let (bell, theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        drop(theirs);
        let error = bell.wait::<io::Error>(None, || Ok(false)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        bell.ring_anyway();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn descriptors_that_come_with_a_ring_are_returned_and_not_closed() {
        let (bell, theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        let other = Bell::with(Arc::new(Flag::new()), theirs).unwrap();
        bell.ring_anyway();
        assert!(other.quiet_warily().unwrap().is_empty());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let gifts = [bell.end(); RIGHTS_MAX];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&gifts)));
        let ring = [io::IoSlice::new(&[0])];
        rustix::net::sendmsg(bell.end(), &ring, &mut control, SendFlags::DONTWAIT).unwrap();
        assert_eq!(other.quiet_warily().unwrap().len(), RIGHTS_MAX);
        drop(bell);
        assert_eq!(other.quiet_warily().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn an_end_that_was_rung_before_is_refused_and_descriptors_do_not_come_with_rings() {
        let (bell, theirs) = Bell::new(Arc::new(Flag::new())).unwrap();
        refuse_gifts(theirs.as_fd()).unwrap();
        bell.ring_anyway();
        assert_eq!(refuse_gifts(theirs.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let gift = [bell.end()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&gift)));
        let ring = [io::IoSlice::new(&[0])];
        let sent = rustix::net::sendmsg(bell.end(), &ring, &mut control, SendFlags::DONTWAIT);
        // Older kernels do not know how to refuse.
        let knows = set_pass_rights(theirs.as_fd(), false).is_ok();
        assert_eq!(sent.is_err(), knows, "{sent:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn what_is_no_socket_of_a_pair_is_refused() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for end in [eventfd, OwnedFd::from(other)] {
            let error = Bell::with(Arc::new(Flag::new()), end).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
