//! Wakeups across processes: a flag in shared memory, backed by a socket pair.
//!
//! A waiter spins, arms its flag, checks again, and sleeps. A publisher wakes it only if the flag is armed, so a
//! spinning waiter costs its peer nothing, and a sleeping one is woken once. A flag belongs to the side it wakes: a
//! thread has one for all of its rings. A blocking call that waits for nothing but the flag needs no bell: it sleeps on
//! the flag itself ([`WakeFlag::wait`]).
//!
//! Bells use a socket pair rather than an eventfd. Both sides would share the eventfd, so one side could make it block
//! the other's writes or consume its wakeups. Each side of a pair has its own end.
//!
//! Invariant: data published before [`WakeFlag::take`] is visible after [`WakeFlag::arm`], or `take` returns `true`: a
//! fence on both sides prevents lost wakeups. A hostile peer can only ring too often or never.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
    recv, recvmsg, send, socketpair, sockopt,
};
#[cfg(not(loom))]
use rustix::thread::futex;

use crate::index::CachePadded;
use crate::sockopt::setsockopt;
use crate::sync::{AtomicU32, Ordering, fence};

/// Shared word that is set while its owner sleeps or is about to.
#[derive(Debug, Default)]
#[repr(C)]
pub struct WakeFlag {
    armed: CachePadded<AtomicU32>,
}

impl WakeFlag {
    /// Size in shared memory, in bytes.
    pub const BYTES: usize = crate::index::CACHE_PADDED_BYTES;

    /// Creates a disarmed flag.
    pub fn new() -> WakeFlag {
        WakeFlag::default()
    }

    /// Requests a wakeup. Check again for work before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.armed.0.store(ALL, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Requests a wakeup for some events only, unless one for all is requested already.
    #[inline]
    pub fn arm_some(&self) {
        self.armed.0.fetch_or(SOME, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Cancels the request.
    #[inline]
    pub fn disarm(&self) {
        self.armed.0.store(0, Ordering::Relaxed);
    }

    /// Disarms the flag. Returns `true` if it was armed: the caller must wake the owner. Call it after publishing; of
    /// several publishers, one gets `true`.
    #[inline]
    pub fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.armed.0.load(Ordering::Relaxed) != 0 && self.armed.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Like [`WakeFlag::take`], after an event that [`WakeFlag::arm_some`] does not request.
    #[inline]
    pub fn take_for_all(&self) -> bool {
        fence(Ordering::SeqCst);
        self.armed.0.load(Ordering::Relaxed) & ALL != 0 && self.armed.0.swap(0, Ordering::Relaxed) & ALL != 0
    }
}

/// Value of a flag that requests a wakeup for all events.
const ALL: u32 = 1;
/// Bit of a flag that requests a wakeup for some events.
const SOME: u32 = 2;

#[cfg(not(loom))]
impl WakeFlag {
    /// Sleeps while the flag is armed. Returns `false` on timeout. `true` can be spurious: check for work.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(timespec);
        // Not process-private: the peer maps the same page.
        let result = futex::wait(&self.armed.0, futex::Flags::empty(), 1, timeout.as_ref());
        result != Err(Errno::TIMEDOUT)
    }

    /// Like [`WakeFlag::wait`], but a signal ends it as it ends a blocking system call.
    ///
    /// # Errors
    /// `Interrupted` if a signal handler ran, unless it was installed with SA_RESTART and there is no timeout.
    pub fn wait_interruptibly(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        match futex::wait(&self.armed.0, futex::Flags::empty(), 1, timeout.as_ref()) {
            Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
            result => Ok(result != Err(Errno::TIMEDOUT)),
        }
    }

    /// Wakes the thread that sleeps on the flag, if the flag is armed. Call it after publishing. Returns whether the flag
    /// was armed.
    #[inline]
    pub fn wake(&self) -> bool {
        let must = self.take();
        if must {
            self.force_wake();
        }
        must
    }

    /// Disarms the flag and wakes its sleeper even if another process took the flag: that process may have died before
    /// it could wake the sleeper.
    #[cold]
    pub fn force_wake(&self) {
        fence(Ordering::SeqCst);
        self.armed.0.store(0, Ordering::Relaxed);
        // Fails only for an unaligned or unmapped address.
        let _ = futex::wake(&self.armed.0, futex::Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<WakeFlag>() == WakeFlag::BYTES);

/// A flag and one end of its socket pair.
#[derive(Debug)]
pub struct Bell<F, E = OwnedFd> {
    flag: F,
    end: E,
}

impl<F: Deref<Target = WakeFlag>> Bell<F> {
    /// Creates a bell. Returns it and the end for the peer.
    ///
    /// # Errors
    /// The kernel's, if descriptors run out.
    pub fn new(flag: F) -> io::Result<(Bell<F>, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (end, peer_end) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Bell { flag, end }, peer_end))
    }
}

impl<F, E> Bell<F, E> {
    /// Replaces the end, for example by a duplicate with another number.
    ///
    /// # Errors
    /// Of `change`.
    pub fn try_map_end<T>(self, change: impl FnOnce(E) -> io::Result<T>) -> io::Result<Bell<F, T>> {
        Ok(Bell { flag: self.flag, end: change(self.end)? })
    }
}

impl<F: Deref<Target = WakeFlag>, E: AsFd> Bell<F, E> {
    /// Creates a bell from an end received from the peer.
    ///
    /// # Errors
    /// `InvalidInput` if `end` is not a Unix stream socket: operations on other files may block.
    pub fn from_end(flag: F, end: E) -> io::Result<Bell<F, E>> {
        validate_end(end.as_fd())?;
        Ok(Bell { flag, end })
    }

    /// Returns the descriptor to poll: it is readable after a ring.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Returns the flag.
    pub fn flag(&self) -> &WakeFlag {
        &self.flag
    }

    /// Wakes the peer if its flag is armed. Call it after publishing. Returns whether the flag was armed.
    #[inline]
    pub fn ring(&self) -> bool {
        let must = self.flag.take();
        if must {
            self.force_ring();
        }
        must
    }

    /// Wakes the peer even if its flag is not armed.
    #[cold]
    pub fn force_ring(&self) {
        // EAGAIN: the peer is awake or about to be. EPIPE: no peer is left to wake. The flags are given per call,
        // because the file flags belong to every process that holds it.
        let _ = send(&self.end, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sleeps until a ring, while the flag is armed. Returns `false` on timeout. `true` can be spurious: check for work.
    ///
    /// # Errors
    /// As [`Bell::clear`].
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        let mut watched = [PollFd::new(&self.end, PollFlags::IN)];
        let count = match poll(&mut watched, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(true),
            other => other?,
        };
        self.clear()?;
        Ok(count > 0)
    }

    /// Discards pending rings.
    ///
    /// # Errors
    /// `ConnectionAborted` if the peer closed its end. The kernel's.
    pub fn clear(&self) -> io::Result<()> {
        let mut rings = [0u8; MAX_RINGS];
        let result = recv(&self.end, &mut rings[..], RecvFlags::DONTWAIT);
        map_recv_error(result.map(|(count, _)| count))
    }

    /// Like [`Bell::clear`], for a peer that may be hostile. Returns descriptors sent along with the rings, which a
    /// bell never does: the kernel would otherwise close them in this thread, and closing may block. Older kernels
    /// ignore [`forbid_fd_passing`], and the sender of the end may allow it again.
    ///
    /// # Errors
    /// As [`Bell::clear`].
    pub fn clear_untrusted(&self) -> io::Result<Vec<OwnedFd>> {
        let mut rings = [0u8; MAX_RINGS];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let result = recvmsg(&self.end, &mut [IoSliceMut::new(&mut rings)], &mut control, flags);
        let fds = received_fds(&mut control);
        if fds.is_empty() {
            map_recv_error(result.map(|received| received.bytes)).map(|()| fds)
        } else {
            Ok(fds)
        }
    }
}

fn map_recv_error(result: Result<usize, Errno>) -> io::Result<()> {
    match result {
        Ok(0) | Err(Errno::CONNRESET) => {
            Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the peer closed its end of a bell"))
        }
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Forbids the peer to send descriptors with its rings, on an end just received from it: receiving a ring would close
/// them, which may block. Kernels before Linux 6.16 cannot forbid it.
///
/// # Errors
/// `InvalidInput` if `end` is not the end of a bell, or was rung before it was sent. The kernel's.
pub fn forbid_fd_passing(end: BorrowedFd<'_>) -> io::Result<()> {
    validate_end(end)?;
    let _ = set_pass_rights(end, false);
    if rustix::io::ioctl_fionread(end)? > 0 {
        let reason = "the peer rang its bell before it sent the end; send a new one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(())
}

fn validate_end(end: BorrowedFd<'_>) -> io::Result<()> {
    let is_unix = sockopt::socket_domain(end).is_ok_and(|domain| domain == AddressFamily::UNIX);
    if !is_unix || sockopt::socket_type(end).ok() != Some(SocketType::STREAM) {
        let reason = "the peer's end of a bell is not a Unix stream socket; send one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(())
}

/// Sets whether peers can send descriptors to a Unix socket.
fn set_pass_rights(socket: BorrowedFd<'_>, allow: bool) -> Result<(), Errno> {
    setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, allow.into())
}

/// Since Linux 6.16; not in `libc` yet.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Number of rings discarded by one call.
const MAX_RINGS: usize = 64;
/// The kernel's limit of descriptors in one message.
pub const SCM_MAX_FD: usize = 253;

/// Returns the descriptors of a received message.
pub fn received_fds(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.flatten().collect()
}

/// Converts a timeout for the kernel. One too long for it becomes 68 years.
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
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn ring_wakes_armed_waiter_once() {
        let flag = Arc::new(WakeFlag::new());
        let (bell, peer_end) = Bell::new(Arc::clone(&flag)).unwrap();
        let other = Bell::from_end(Arc::clone(&flag), peer_end).unwrap();
        assert!(!other.ring());
        flag.arm();
        assert!(other.ring() && !other.ring());
        assert!(bell.sleep(Some(Duration::ZERO)).unwrap());
        assert!(!bell.sleep(Some(Duration::ZERO)).unwrap(), "the ring was cleared");
    }

    #[test]
    fn request_for_some_events_is_kept_after_others() {
        let flag = WakeFlag::new();
        flag.arm_some();
        assert!(!flag.take_for_all() && flag.take() && !flag.take());
        flag.arm();
        flag.arm_some();
        assert!(flag.take_for_all() && !flag.take());
    }

    #[test]
    fn wait_sleeps_until_wake() {
        let flag = Arc::new(WakeFlag::new());
        flag.arm();
        assert!(!flag.wait(Some(Duration::from_millis(1))), "woken without a wake");
        let peer_flag = Arc::clone(&flag);
        let waker = std::thread::spawn(move || peer_flag.wake());
        assert!(flag.wait(Some(Duration::from_secs(60))));
        assert!(waker.join().unwrap() && !flag.wake());
        assert!(flag.wait(None), "a flag that is not armed is not slept on");
    }

    /// As after a waker that was killed between taking the flag and waking.
    #[test]
    fn force_wake_wakes_sleeper_on_taken_flag() {
        let flag = Arc::new(WakeFlag::new());
        flag.arm();
        let peer_flag = Arc::clone(&flag);
        let sleeper = std::thread::spawn(move || peer_flag.wait(Some(Duration::from_secs(60))));
        assert!(flag.take());
        flag.force_wake();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn wakes_across_mappings() {
        let ours = crate::SharedMemory::create("flags", crate::PAGE_SIZE).unwrap();
        let memfd = ours.memfd().try_clone_to_owned().unwrap();
        let peer_flag = crate::SharedMemory::open(memfd, crate::PAGE_SIZE).unwrap().flag(256).unwrap();
        let flag = ours.flag(256).unwrap();
        flag.arm();
        let waker = std::thread::spawn(move || {
            while !peer_flag.wake() {
                std::thread::yield_now();
            }
        });
        assert!(flag.wait(Some(Duration::from_secs(60))));
        waker.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn published_work_is_never_slept_through() {
        let shared = Arc::new((AtomicU64::new(0), WakeFlag::new()));
        struct Part(Arc<(AtomicU64, WakeFlag)>);
        impl Deref for Part {
            type Target = WakeFlag;
            fn deref(&self) -> &WakeFlag {
                &self.0.1
            }
        }
        let (waiter, peer_end) = Bell::new(Part(Arc::clone(&shared))).unwrap();
        let waker = Bell::from_end(Part(Arc::clone(&shared)), peer_end).unwrap();
        let counted = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for _ in 0..20_000 {
                counted.0.fetch_add(1, Ordering::Release);
                waker.ring();
            }
        });
        while shared.0.load(Ordering::Acquire) < 20_000 {
            let seen = shared.0.load(Ordering::Acquire);
            waiter.flag().arm();
            if shared.0.load(Ordering::Acquire) == seen && seen < 20_000 {
                assert!(waiter.sleep(Some(Duration::from_secs(60))).unwrap(), "a ring was lost");
            }
            waiter.flag().disarm();
        }
        thread.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn ring_never_blocks_on_full_blocking_socket() {
        let (sender, done) = std::sync::mpsc::channel();
        let (bell, peer_end) = Bell::new(Arc::new(WakeFlag::new())).unwrap();
        // The rings are not received, and both ends are in blocking mode.
        for end in [peer_end.as_fd(), bell.as_fd()] {
            fcntl_setfl(end, OFlags::empty()).unwrap();
        }
        std::thread::spawn(move || {
            (0..100_000).for_each(|_| bell.force_ring());
            sender.send(bell.clear().is_ok()).unwrap();
        });
        assert!(done.recv_timeout(Duration::from_secs(60)).expect("it waits for the peer"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn clears_flood_of_rings() {
        let (bell, peer_end) = Bell::new(Arc::new(WakeFlag::new())).unwrap();
        let other = Bell::from_end(Arc::new(WakeFlag::new()), peer_end).unwrap();
        (0..1000).for_each(|_| other.force_ring());
        let wakes = (0..1000).take_while(|_| bell.sleep(Some(Duration::ZERO)).unwrap()).count();
        assert!((1..1000).contains(&wakes), "{wakes}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn sleep_fails_after_peer_closes() {
        let (bell, peer_end) = Bell::new(Arc::new(WakeFlag::new())).unwrap();
        drop(peer_end);
        let error = bell.sleep(None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        bell.force_ring();
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn clear_untrusted_returns_received_descriptors() {
        let (bell, peer_end) = Bell::new(Arc::new(WakeFlag::new())).unwrap();
        let other = Bell::from_end(Arc::new(WakeFlag::new()), peer_end).unwrap();
        bell.force_ring();
        assert!(other.clear_untrusted().unwrap().is_empty());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [bell.as_fd(); SCM_MAX_FD];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let ring = [io::IoSlice::new(&[0])];
        rustix::net::sendmsg(bell.as_fd(), &ring, &mut control, SendFlags::DONTWAIT).unwrap();
        assert_eq!(other.clear_untrusted().unwrap().len(), SCM_MAX_FD);
        drop(bell);
        assert_eq!(other.clear_untrusted().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn forbid_fd_passing_rejects_rung_end_and_descriptors() {
        let (bell, peer_end) = Bell::new(Arc::new(WakeFlag::new())).unwrap();
        forbid_fd_passing(peer_end.as_fd()).unwrap();
        bell.force_ring();
        assert_eq!(forbid_fd_passing(peer_end.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [bell.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let ring = [io::IoSlice::new(&[0])];
        let sent = rustix::net::sendmsg(bell.as_fd(), &ring, &mut control, SendFlags::DONTWAIT);
        // Older kernels cannot forbid it.
        let supported = set_pass_rights(peer_end.as_fd(), false).is_ok();
        assert_eq!(sent.is_err(), supported, "{sent:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "not supported by Miri")]
    fn rejects_end_that_is_not_unix_stream() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for end in [eventfd, OwnedFd::from(other)] {
            let error = Bell::from_end(Arc::new(WakeFlag::new()), end).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
