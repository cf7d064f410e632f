//! Threads that close descriptors received from clients.
//!
//! The last close of a TCP socket can block if SO_LINGER is set, whatever its other flags are; closing a Unix
//! socket also closes the descriptors in flight in it; closing a file can wait for its server. Cores, the
//! control thread, and the supervisor therefore close no descriptor of a client, and no connection over which
//! a client can send one. Closes that may block have separate threads, and do not delay the others, even
//! if a hostile application changes SO_LINGER in the meantime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use isolane_engine_api::{PacketError, PacketSocket};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, sockopt};

/// Socket shared with an application, which a close thread closes on drop.
#[derive(Debug)]
pub(crate) struct Socket(Option<OwnedFd>);

impl Socket {
    pub fn new(socket: OwnedFd) -> Socket {
        Socket(Some(socket))
    }

    /// Returns the descriptor, which is then closed by its owner.
    pub fn into_inner(mut self) -> OwnedFd {
        self.0.take().expect("present until dropped")
    }

    /// Turns SO_LINGER off if its last close could block.
    pub fn disable_linger(&self) {
        if let Some(socket) = self.0.as_ref().filter(|socket| lingers(socket)) {
            // Cannot fail if the option can be read.
            let _ = sockopt::set_socket_linger(socket, None);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("present until dropped").as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(close);
    }
}

/// Closes a descriptor on a close thread.
pub(crate) fn close(descriptor: OwnedFd) {
    let may_block = match sockopt::socket_domain(&descriptor) {
        // Its thread checks for descriptors in flight.
        Ok(AddressFamily::UNIX) => false,
        Ok(_) => lingers(&descriptor),
        // Among other files, only memory is known not to block.
        Err(_) => fcntl_get_seals(&descriptor).is_err(),
    };
    if !may_block { CloseThreads::fast().close(descriptor) } else { CloseThreads::slow().close(descriptor) }
}

/// Whether new descriptors must wait for pending fast closes.
pub(crate) fn is_congested() -> bool {
    CloseThreads::fast().is_congested()
}

/// Closes a descriptor that should not block, or passes it to the slow threads.
fn close_fast(descriptor: OwnedFd) {
    match sockopt::socket_domain(&descriptor) {
        Ok(AddressFamily::UNIX) => close_unix(PacketSocket::new(descriptor)),
        _ => drop(descriptor),
    }
}

/// Closes a Unix socket. Descriptors in flight in it are closed one by one first, unless the peer can send more
/// of them: then another process shares the socket, and they stay there.
fn close_unix(socket: PacketSocket) {
    let is_empty = if is_hung_up(&socket) {
        drain(&socket)
    } else {
        matches!(recv(&socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(Errno::AGAIN))
    };
    if is_empty { drop(socket) } else { CloseThreads::slow().close(socket.into()) }
}

/// Whether nothing more can be sent to a Unix socket.
fn is_hung_up(socket: &PacketSocket) -> bool {
    let mut watched = [PollFd::new(socket, PollFlags::empty())];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&zero)).is_ok() && watched[0].revents().contains(PollFlags::HUP)
}

/// Receives all packets of a Unix socket and closes their descriptors. Returns `false` if more may remain.
fn drain(socket: &PacketSocket) -> bool {
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    for _ in 0..MAX_PACKETS {
        match socket.receive(false) {
            Ok(Some(packet)) => packet.descriptors.into_iter().for_each(close),
            Ok(None) => return true,
            // Of a packet socket, an empty packet looks like the end.
            Err(PacketError::Closed) if is_stream => return true,
            Err(PacketError::System(_)) => return false,
            Err(error) => error.into_descriptors().into_iter().for_each(close),
        }
    }
    !is_stream
}

/// Whether the last close of a socket can block.
fn lingers(socket: &OwnedFd) -> bool {
    sockopt::socket_linger(socket).ok().flatten().is_some_and(|time| time > Duration::ZERO)
}

/// Pool of threads, which grows up to [`MAX_THREADS`].
struct CloseThreads {
    close: fn(OwnedFd),
    sender: Sender<OwnedFd>,
    pending: Arc<Mutex<Receiver<OwnedFd>>>,
    /// Number of pending and running closes.
    open: Arc<AtomicUsize>,
    threads: AtomicUsize,
    /// The last start of a thread failed, which was logged.
    start_failed: AtomicBool,
}

impl CloseThreads {
    /// Threads for closes that do not block.
    fn fast() -> &'static CloseThreads {
        static THREADS: OnceLock<CloseThreads> = OnceLock::new();
        THREADS.get_or_init(|| CloseThreads::new(close_fast))
    }

    /// Threads for closes that may block.
    fn slow() -> &'static CloseThreads {
        static THREADS: OnceLock<CloseThreads> = OnceLock::new();
        THREADS.get_or_init(|| CloseThreads::new(drop))
    }

    fn new(close: fn(OwnedFd)) -> CloseThreads {
        let (sender, pending) = channel();
        CloseThreads {
            close,
            sender,
            pending: Arc::new(Mutex::new(pending)),
            open: Arc::default(),
            threads: AtomicUsize::new(0),
            start_failed: AtomicBool::new(false),
        }
    }

    fn close(&self, descriptor: OwnedFd) {
        let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
        if open > self.threads.load(Ordering::Acquire) {
            let result = self.start();
            let failed_before = self.start_failed.swap(result.is_err(), Ordering::Relaxed);
            if let (Err(error), false) = (result, failed_before) {
                log::warn!("cannot start a close thread: {error}");
            }
        }
        // Without any thread, the descriptor is closed here.
        if self.threads.load(Ordering::Acquire) > 0 {
            let _ = self.sender.send(descriptor);
        } else {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn is_congested(&self) -> bool {
        self.open.load(Ordering::Relaxed) > CONGESTION
    }

    /// Starts a thread, unless there are [`MAX_THREADS`].
    fn start(&self) -> io::Result<()> {
        if self.threads.load(Ordering::Acquire) >= MAX_THREADS {
            return Ok(());
        }
        let (pending, open, close) = (Arc::clone(&self.pending), Arc::clone(&self.open), self.close);
        thread::Builder::new().name("isolane-close".into()).spawn(move || {
            loop {
                let next = pending.lock().recv();
                match next {
                    Ok(descriptor) => close(descriptor),
                    Err(_) => return,
                }
                open.fetch_sub(1, Ordering::AcqRel);
            }
        })?;
        self.threads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// Threads of a pool; further closes wait for them.
const MAX_THREADS: usize = 64;
/// Pending fast closes from which on new clients wait.
const CONGESTION: usize = 64;
/// Bound of [`drain`]: more packets than the kernel queues to one socket, unless root raises its limit.
const MAX_PACKETS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use isolane_shm::{PAGE_SIZE, SharedMemory};
    use rustix::fs::fstat;
    use rustix::net::{
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, send, sendmsg, socketpair,
    };

    use super::*;

    /// Waits until this process has no descriptor of the inode.
    fn is_closed(inode: u64) -> bool {
        let start = Instant::now();
        let is_open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            // Other tests close descriptors concurrently.
            let mut inodes = links.filter_map(|link| std::fs::metadata(link.path()).ok());
            inodes.any(|found| std::os::unix::fs::MetadataExt::ino(&found) == inode)
        };
        while is_open() {
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

    /// Sends bytes with a lingering socket. Returns the peer of that socket.
    fn send_lingering(near: &OwnedFd, bytes: &[u8]) -> TcpStream {
        let (socket, peer) = lingering();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(near, &[io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        peer
    }

    #[test]
    fn reports_congestion_until_descriptors_are_closed() {
        static HELD: Mutex<()> = Mutex::new(());
        let held = HELD.lock();
        let threads = CloseThreads::new(|descriptor| {
            let _held = HELD.lock();
            drop(descriptor);
        });
        (0..CONGESTION).for_each(|_| threads.close(unix(SocketType::STREAM).0));
        assert!(!threads.is_congested());
        threads.close(unix(SocketType::STREAM).0);
        assert!(threads.is_congested());
        drop(held);
        let start = Instant::now();
        while threads.is_congested() {
            assert!(start.elapsed() < Duration::from_secs(60), "it stays congested");
            thread::yield_now();
        }
    }

    #[test]
    fn lingering_sockets_do_not_delay_other_closes() {
        let mut peers: Vec<TcpStream> = (0..MAX_THREADS + 4)
            .map(|_| {
                let (socket, peer) = lingering();
                close(socket.into());
                peer
            })
            .collect();
        let memory = SharedMemory::create("close", PAGE_SIZE).unwrap().memfd().try_clone_to_owned().unwrap();
        let (bell, _peer_end) = unix(SocketType::STREAM);
        let (wire, near) = unix(SocketType::SEQPACKET);
        peers.extend([send_lingering(&near, b""), send_lingering(&near, b"x"), send_lingering(&near, b"")]);
        let (signaled, nearer) = unix(SocketType::STREAM);
        peers.push(send_lingering(&nearer, b"x"));
        drop((near, nearer));
        let (socket, _peer) = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap())
        };
        let others = [
            ("a connection", socket.into()),
            ("memory", memory),
            ("a bell", bell),
            ("a client's connection, with a packet in flight", wire),
            ("a bell, with a packet in flight", signaled),
        ];
        for (what, descriptor) in others {
            let inode = fstat(&descriptor).unwrap().st_ino;
            close(descriptor);
            assert!(is_closed(inode), "{what} is not closed");
        }
        drop(peers);
    }
}
