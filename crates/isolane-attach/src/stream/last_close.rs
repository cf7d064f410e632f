//! What the last close of a stream's socket does: a peer must not take a part of what was written for all of it.
//!
//! While an engine has the stream it sends what is in the ring, whatever the application does. Where that may not happen
//! any more, because the application closes the stream or the session is over, SO_LINGER is 0 until all is sent: the
//! engine has it so for streams that are closed, too, and both know of each other by `tx_draining`. So whoever closes
//! the socket last, be it the kernel for a process that was killed, resets the connection.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;

use super::block::Block;

/// That of one stream.
pub(super) struct LastClose {
    /// Those who only wake tasks keep no socket open.
    socket: Weak<TcpStream>,
    state: Mutex<State>,
}

enum State {
    /// As the application has set it.
    AsSet,
    /// It resets; the application has set this.
    Resets(Option<Duration>),
    /// The socket was taken back: it is the application's alone.
    Left,
}

impl LastClose {
    pub fn of(socket: &Arc<TcpStream>) -> LastClose {
        LastClose { socket: Arc::downgrade(socket), state: Mutex::new(State::AsSet) }
    }

    /// Has it reset if not all was sent, until an engine that is still there has sent it.
    pub fn forbid_end(&self, block: &Block) {
        let mut state = self.state.lock();
        if !matches!(*state, State::AsSet) || !block.has_unsent() {
            return;
        }
        // Under the lock: whoever drops the stream waits, and so this never closes the socket.
        let Some(socket) = self.socket.upgrade() else { return };
        // It fails only where there is no connection.
        let set = sockopt::socket_linger(&*socket).unwrap_or(None);
        let resets = set == Some(Duration::ZERO);
        if resets && !block.is_draining() {
            return;
        }
        // First, so that no engine takes it for the application's wish.
        block.set_draining();
        let _ = sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
        *state = State::Resets(set.filter(|_| !resets));
    }

    /// Leaves it as the application has set it, for good.
    ///
    /// # Errors
    /// The kernel's.
    pub fn restore(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if let (State::Resets(set), Some(socket)) = (&*state, self.socket.upgrade()) {
            sockopt::set_socket_linger(&*socket, *set)?;
        }
        *state = State::Left;
        Ok(())
    }
}
