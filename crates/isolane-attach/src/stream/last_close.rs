//! Reset on the last close of a stream's socket, if data is unsent: the peer must not mistake truncated data for
//! complete data.
//!
//! While an engine has the stream, it sends the ring's contents, whatever the application does. When it might not,
//! because the application closes the stream or the session is closed, SO_LINGER is set to 0 until all data is sent. The
//! engine does the same for closed streams; `tx_draining` coordinates both. So the last close resets the connection, even
//! if the kernel closes the socket of a killed process.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;

use isolane_engine_api::stream::ControlBlock;

pub(super) struct LastClose {
    /// Weak, because wakers must not keep the socket open.
    socket: Weak<TcpStream>,
    state: Mutex<State>,
}

enum State {
    /// SO_LINGER is as the application set it.
    Unchanged,
    /// The last close resets; the application had set this.
    Resets(Option<Duration>),
    /// The socket was taken back.
    Released,
}

impl LastClose {
    pub fn new(socket: &Arc<TcpStream>) -> LastClose {
        LastClose { socket: Arc::downgrade(socket), state: Mutex::new(State::Unchanged) }
    }

    /// Makes the last close reset if data is unsent, until a remaining engine has sent it.
    pub fn reset_if_unsent(&self, block: &ControlBlock) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Unchanged) || !block.has_unsent() {
            return;
        }
        // Under the lock, which a drop of the stream needs as well, so this is never the last reference.
        let Some(socket) = self.socket.upgrade() else { return };
        // Fails only if the connection is closed.
        let set = sockopt::socket_linger(&*socket).unwrap_or(None);
        let resets = set == Some(Duration::ZERO);
        if resets && !block.is_draining() {
            return;
        }
        // First, so that no engine mistakes it for the application's setting.
        block.set_draining();
        let _ = sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
        *state = State::Resets(set.filter(|_| !resets));
    }

    /// Restores the application's setting permanently.
    ///
    /// # Errors
    /// The kernel's.
    pub fn restore(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if let (State::Resets(set), Some(socket)) = (&*state, self.socket.upgrade()) {
            sockopt::set_socket_linger(&*socket, *set)?;
        }
        *state = State::Released;
        Ok(())
    }
}
