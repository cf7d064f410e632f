//! Waiters of a stream, and the last close of its socket. Separate from the stream, so that the threads that use them do
//! not keep it open.
//!
//! If data is unsent, the last close resets the connection: the peer must not mistake truncated data for complete data.
//! While an engine has the stream, it sends the ring's contents, whatever the application does. When it might not,
//! because the application closes the stream or the session is closed, SO_LINGER is set to 0 until all data is sent. The
//! engine does the same for closed streams; `tx_draining` coordinates both. So the last close resets the connection, even
//! if the kernel closes the socket of a killed process.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;

use super::driver::WakeTasks;
use crate::session::Watcher;
use isolane_engine_api::stream::ControlBlock;

pub(super) struct StreamWakers {
    pub block: Arc<ControlBlock>,
    pub reader: Mutex<Option<Waker>>,
    pub writer: Mutex<Option<Waker>>,
    socket: Weak<TcpStream>,
    linger: Mutex<Linger>,
}

/// State of SO_LINGER.
enum Linger {
    /// As the application set it.
    Unchanged,
    /// The last close resets; the application had set this.
    Resets(Option<Duration>),
    /// The socket was taken back.
    Released,
}

impl StreamWakers {
    pub fn new(block: Arc<ControlBlock>, socket: &Arc<TcpStream>) -> StreamWakers {
        StreamWakers {
            block,
            reader: Mutex::default(),
            writer: Mutex::default(),
            socket: Arc::downgrade(socket),
            linger: Mutex::new(Linger::Unchanged),
        }
    }

    /// Makes the last close reset if data is unsent, until a remaining engine has sent it.
    pub fn reset_if_unsent(&self) {
        let mut linger = self.linger.lock();
        if !matches!(*linger, Linger::Unchanged) || !self.block.has_unsent() {
            return;
        }
        // Under the lock, which a drop of the stream needs as well, so this is never the last reference.
        let Some(socket) = self.socket.upgrade() else { return };
        // Fails only if the connection is closed.
        let set = sockopt::socket_linger(&*socket).unwrap_or(None);
        let resets = set == Some(Duration::ZERO);
        if resets && !self.block.is_draining() {
            return;
        }
        // First, so that no engine mistakes it for the application's setting.
        self.block.set_draining();
        let _ = sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
        *linger = Linger::Resets(set.filter(|_| !resets));
    }

    /// Restores the application's setting of SO_LINGER permanently.
    ///
    /// # Errors
    /// The kernel's.
    pub fn restore_linger(&self) -> io::Result<()> {
        let mut linger = self.linger.lock();
        if let (Linger::Resets(set), Some(socket)) = (&*linger, self.socket.upgrade()) {
            sockopt::set_socket_linger(&*socket, *set)?;
        }
        *linger = Linger::Released;
        Ok(())
    }
}

impl WakeTasks for StreamWakers {
    fn wake_tasks(&self) {
        for slot in [&self.reader, &self.writer] {
            let waker = slot.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Watcher for StreamWakers {
    fn on_close(&self) {
        self.reset_if_unsent();
        self.block.rx_flag.force_wake();
        self.block.tx_flag.force_wake();
        self.wake_tasks();
    }
}
