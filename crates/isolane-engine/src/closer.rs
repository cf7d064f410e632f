//! Closes descriptors that somebody else has given, on threads of their own.
//!
//! To close a socket for the last time may wait, if SO_LINGER says so, whatever its other flags are; that of a
//! Unix socket closes what is under way in it, too; that of a file waits for whoever serves it. What may wait does not
//! stand in line with what does not; a hostile application can change that in between. So neither a core, nor the control thread, nor the
//! supervisor closes a descriptor that an application has given, or a connection on which it can give one.
//! It is no pool for anything else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use isolane_attach::control::{Wire, WireError};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, sockopt};

/// A socket that an application has, too, and that is closed elsewhere when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket(Option<OwnedFd>);

impl Socket {
    pub fn new(socket: OwnedFd) -> Socket {
        Socket(Some(socket))
    }

    /// To be closed by somebody else.
    pub fn into_inner(mut self) -> OwnedFd {
        self.0.take().expect("it is there until it is dropped")
    }

    /// Has its last close wait no more.
    pub fn linger_no_more(&self) {
        if let Some(socket) = self.0.as_ref().filter(|socket| lingers(socket)) {
            // Where it can be asked for it can be set.
            let _ = sockopt::set_socket_linger(socket, None);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(close);
    }
}

/// Closes it elsewhere.
pub(crate) fn close(descriptor: OwnedFd) {
    let may_wait = match sockopt::socket_domain(&descriptor) {
        // That takes a closer look.
        Ok(AddressFamily::UNIX) => false,
        Ok(_) => lingers(&descriptor),
        // Of what is no socket, only memory is known not to wait.
        Err(_) => fcntl_get_seals(&descriptor).is_err(),
    };
    match may_wait {
        false => Closer::of_the_quick().close(descriptor),
        true => Closer::of_the_slow().close(descriptor),
    }
}

/// Whether many descriptors that should not wait are to be closed, so that a flood of them must not go on.
pub(crate) fn is_crowded() -> bool {
    Closer::of_the_quick().is_crowded()
}

/// Closes what should not wait, and has others close what may do so after all.
fn close_quickly(descriptor: OwnedFd) {
    match sockopt::socket_domain(&descriptor) {
        Ok(AddressFamily::UNIX) => close_unix(Wire::new(descriptor)),
        _ => drop(descriptor),
    }
}

/// Closes a Unix socket, after what is under way in it if nobody can send more. If somebody can, it is not ours
/// alone, and what is under way stays there.
fn close_unix(socket: Wire) {
    let is_empty = match is_hung_up(&socket) {
        true => empty(&socket),
        false => {
            matches!(recv(&socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(Errno::AGAIN))
        }
    };
    match is_empty {
        true => drop(socket),
        false => Closer::of_the_slow().close(socket.into()),
    }
}

/// Whether nothing more can be sent to a Unix socket.
fn is_hung_up(socket: &Wire) -> bool {
    let mut watched = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&at_once)).is_ok() && watched[0].revents().contains(PollFlags::HUP)
}

/// Takes out what is under way in a Unix socket; false if there may be more.
fn empty(socket: &Wire) -> bool {
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    for _ in 0..PACKETS_MAX {
        match socket.receive(false) {
            Ok(Some(packet)) => packet.descriptors.into_iter().for_each(close),
            Ok(None) => return true,
            // Of packets, one of nothing at all looks like the end.
            Err(WireError::Closed) if is_stream => return true,
            Err(WireError::System(_)) => return false,
            Err(error) => error.into_descriptors().into_iter().for_each(close),
        }
    }
    !is_stream
}

/// Whether to close a socket for the last time waits.
fn lingers(socket: &OwnedFd) -> bool {
    sockopt::socket_linger(socket).ok().flatten().is_some_and(|time| time > Duration::ZERO)
}

/// The threads.
struct Closer {
    closes: fn(OwnedFd),
    sockets: Sender<OwnedFd>,
    due: Arc<Mutex<Receiver<OwnedFd>>>,
    /// Threads less sockets that are due or being closed, as far as that is above 0.
    idle: Arc<AtomicUsize>,
    /// Sockets that are due or being closed.
    open: Arc<AtomicUsize>,
    threads: AtomicUsize,
    /// That no thread can be started was said, and has not ended since.
    has_failed: AtomicBool,
}

impl Closer {
    /// For what does not wait.
    fn of_the_quick() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(|| Closer::new(close_quickly))
    }

    /// For what may wait.
    fn of_the_slow() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(|| Closer::new(drop))
    }

    fn new(closes: fn(OwnedFd)) -> Closer {
        let (sockets, due) = channel();
        let due = Arc::new(Mutex::new(due));
        Closer {
            closes,
            sockets,
            due,
            idle: Arc::default(),
            open: Arc::default(),
            threads: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    fn close(&self, socket: OwnedFd) {
        let takes_one = |idle: usize| idle.checked_sub(1);
        let has_idle = self.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, takes_one).is_ok();
        if !has_idle {
            let outcome = self.start();
            if let (Err(error), false) = (&outcome, self.has_failed.swap(outcome.is_err(), Ordering::Relaxed))
            {
                log::warn!("cannot start a thread that closes descriptors: {error}");
            }
        }
        // It waits for a thread, or is closed right here if there never was one.
        if self.threads.load(Ordering::Acquire) > 0 {
            self.open.fetch_add(1, Ordering::Relaxed);
            let _ = self.sockets.send(socket);
        }
    }

    fn is_crowded(&self) -> bool {
        self.open.load(Ordering::Relaxed) > CROWD
    }

    /// One more thread, busy at once, unless there are enough.
    fn start(&self) -> io::Result<()> {
        if self.threads.load(Ordering::Acquire) >= THREADS_MAX {
            return Ok(());
        }
        let (due, idle, closes) = (Arc::clone(&self.due), Arc::clone(&self.idle), self.closes);
        let open = Arc::clone(&self.open);
        thread::Builder::new().name("isolane-close".into()).spawn(move || {
            loop {
                let next = due.lock().recv();
                match next {
                    Ok(socket) => closes(socket),
                    Err(_) => return,
                }
                open.fetch_sub(1, Ordering::Relaxed);
                idle.fetch_add(1, Ordering::AcqRel);
            }
        })?;
        self.threads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// So many closes may wait at once until others wait for them.
const THREADS_MAX: usize = 64;
/// Sockets that wait to be closed, beyond which there is a crowd of them.
const CROWD: usize = 64;
/// More packets than the kernel keeps under way to one socket, however short they are, unless root lets it.
const PACKETS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use isolane_ring::{Memory, PAGE_SIZE};
    use rustix::fs::fstat;
    use rustix::net::{
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, send, sendmsg, socketpair,
    };

    use super::*;

    /// Whether this process has it no more, soon.
    fn is_closed(inode: u64) -> bool {
        let start = Instant::now();
        let has_it = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            // Some are closed meanwhile.
            let mut inodes = links.filter_map(|link| std::fs::metadata(link.path()).ok());
            inodes.any(|found| std::os::unix::fs::MetadataExt::ino(&found) == inode)
        };
        while has_it() {
            if start.elapsed() > Duration::from_secs(60) {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        while send(&socket, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        (socket, listener.accept().unwrap().0)
    }

    fn unix(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Sends these bytes, and a socket that lingers, whose peer it returns.
    fn give(near: &OwnedFd, bytes: &[u8]) -> TcpStream {
        let (socket, peer) = lingering();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let gift = [socket.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&gift)));
        sendmsg(near, &[io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        peer
    }

    #[test]
    fn crowd_of_descriptors_is_known_until_they_are_closed() {
        static HELD: Mutex<()> = Mutex::new(());
        let held = HELD.lock();
        let closer = Closer::new(|descriptor| {
            let _held = HELD.lock();
            drop(descriptor);
        });
        (0..CROWD).for_each(|_| closer.close(unix(SocketType::STREAM).0));
        assert!(!closer.is_crowded());
        closer.close(unix(SocketType::STREAM).0);
        assert!(closer.is_crowded());
        drop(held);
        let start = Instant::now();
        while closer.is_crowded() {
            assert!(start.elapsed() < Duration::from_secs(60), "it stays crowded");
            thread::yield_now();
        }
    }

    #[test]
    fn sockets_that_linger_keep_nothing_waiting_that_does_not() {
        let mut peers: Vec<TcpStream> = (0..THREADS_MAX + 4)
            .map(|_| {
                let (socket, peer) = lingering();
                close(socket.into());
                peer
            })
            .collect();
        let memory = Memory::create("closer", PAGE_SIZE).unwrap().memfd().try_clone_to_owned().unwrap();
        let (bell, _theirs) = unix(SocketType::STREAM);
        let (wire, near) = unix(SocketType::SEQPACKET);
        peers.extend([give(&near, b""), give(&near, b"x"), give(&near, b"")]);
        let (rung, nearer) = unix(SocketType::STREAM);
        peers.push(give(&nearer, b"x"));
        drop((near, nearer));
        let (socket, _peer) = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap())
        };
        let others = [
            ("a connection", socket.into()),
            ("memory", memory),
            ("a bell", bell),
            ("a client's connection, with something under way", wire),
            ("a bell, with something under way", rung),
        ];
        for (what, descriptor) in others {
            let inode = fstat(&descriptor).unwrap().st_ino;
            close(descriptor);
            assert!(is_closed(inode), "{what} is not closed");
        }
        drop(peers);
    }
}
