//! Closes descriptors that somebody else has given, on threads of their own.
//!
//! To close a socket for the last time may wait, if SO_LINGER says so, whatever its other flags are; that of a
//! Unix socket closes what is under way in it, too. What may wait does not stand in line with what does not; a
//! hostile application can change that in between. So neither a core, nor the control thread, nor the
//! supervisor closes a descriptor that an application has given, or a connection on which it can give one.
//! It is no pool for anything else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, sockopt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A socket that an application has, too, and that is closed elsewhere when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket(Option<OwnedFd>);

impl Socket {
    pub fn new(socket: OwnedFd) -> Socket {
        Socket(Some(socket))
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
    // What is no socket says so by an error.
    let is_unix = sockopt::socket_domain(&descriptor).map(|domain| domain == AddressFamily::UNIX);
    match is_unix {
        Ok(false) if !lingers(&descriptor) => Closer::of_the_quick().close(descriptor),
        _ => Closer::of_the_slow().close(descriptor),
    }
}

/// Whether to close a socket for the last time waits.
fn lingers(socket: &OwnedFd) -> bool {
    sockopt::socket_linger(socket).ok().flatten().is_some_and(|time| time > Duration::ZERO)
}

/// The threads.
struct Closer {
    sockets: Sender<OwnedFd>,
    due: Arc<Mutex<Receiver<OwnedFd>>>,
    /// Threads less sockets that are due or being closed, as far as that is above 0.
    idle: Arc<AtomicUsize>,
    threads: AtomicUsize,
    /// That no thread can be started was said, and has not ended since.
    has_failed: AtomicBool,
}

impl Closer {
    /// For what does not wait.
    fn of_the_quick() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(Closer::new)
    }

    /// For what may wait.
    fn of_the_slow() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(Closer::new)
    }

    fn new() -> Closer {
        let (sockets, due) = channel();
        let due = Arc::new(Mutex::new(due));
        Closer {
            sockets,
            due,
            idle: Arc::default(),
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
            let _ = self.sockets.send(socket);
        }
    }

    /// One more thread, busy at once, unless there are enough.
    fn start(&self) -> io::Result<()> {
        if self.threads.load(Ordering::Acquire) >= THREADS_MAX {
            return Ok(());
        }
        let (due, idle) = (Arc::clone(&self.due), Arc::clone(&self.idle));
        thread::Builder::new().name("isolane-close".into()).spawn(move || {
            loop {
                let next = due.lock().recv();
                match next {
                    Ok(socket) => drop(socket),
                    Err(_) => return,
                }
                idle.fetch_add(1, Ordering::AcqRel);
            }
        })?;
        self.threads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// So many closes may wait at once until others wait for them.
const THREADS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{SendFlags, send};

    use super::*;

    #[test]
    fn sockets_that_linger_keep_none_waiting_that_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let peers: Vec<TcpStream> = (0..THREADS_MAX + 4)
            .map(|_| {
                let (socket, peer) = pair();
                sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
                while send(&socket, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
                close(socket.into());
                peer
            })
            .collect();
        let (socket, mut peer) = pair();
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        close(socket.into());
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it is closed");
        drop(peers);
    }
}
