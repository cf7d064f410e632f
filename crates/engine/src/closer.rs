//! Closes descriptors that somebody else has given, on threads of their own.
//!
//! To close a socket for the last time may wait, if SO_LINGER says so, whatever its other flags are; that of a
//! Unix socket closes what is under way in it, too. The engine takes that option away from sockets that it adopts,
//! but a hostile application can put it back in between. So neither a core, nor the control thread, nor the
//! supervisor closes a descriptor that an application has given, or a connection on which it can give one.
//! It is no pool for anything else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A socket that an application has, too, and that is closed elsewhere when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket(Option<OwnedFd>);

impl Socket {
    pub fn new(socket: OwnedFd) -> Socket {
        Socket(Some(socket))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(socket) = self.0.take() else { return };
        let lingers = sockopt::socket_linger(&socket).ok().flatten();
        if lingers.is_some_and(|time| time > Duration::ZERO) {
            // An application that wants to wait for its peer has waited itself.
            let _ = sockopt::set_socket_linger(&socket, None);
        }
        close(socket);
    }
}

/// Closes it elsewhere.
pub(crate) fn close(descriptor: OwnedFd) {
    Closer::of_process().close(descriptor);
}

/// The threads.
struct Closer {
    sockets: Sender<OwnedFd>,
    due: Arc<Mutex<Receiver<OwnedFd>>>,
    /// Threads less sockets that are due or being closed, as far as that is above 0.
    idle: Arc<AtomicUsize>,
    threads: AtomicUsize,
}

impl Closer {
    fn of_process() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(|| {
            let (sockets, due) = channel();
            let due = Arc::new(Mutex::new(due));
            Closer { sockets, due, idle: Arc::default(), threads: AtomicUsize::new(0) }
        })
    }

    fn close(&self, socket: OwnedFd) {
        let takes_one = |idle: usize| idle.checked_sub(1);
        let has_idle = self.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, takes_one).is_ok();
        if !has_idle && let Err(error) = self.start() {
            log::warn!("cannot start a thread that closes descriptors: {error}");
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
