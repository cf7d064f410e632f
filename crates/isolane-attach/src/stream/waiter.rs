//! Waits of a stream by threads that have no access to it, for callers that share it by a lock.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use isolane_engine_api::stream::ControlBlock;
use isolane_shm::WakeFlag;

/// Waits for a stream. It does not keep the stream open; after that was dropped, waits may end early.
#[derive(Clone, Debug)]
pub struct StreamWaiter(pub(super) Arc<ControlBlock>);

/// Direction of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// For data, or its end.
    Read,
    /// For send space, or an error.
    Write,
}

impl StreamWaiter {
    /// Requests a wakeup. Check the stream again before [`StreamWaiter::sleep`].
    pub fn arm(&self, direction: Direction) {
        self.flag(direction).arm();
    }

    /// Sleeps until a change since [`StreamWaiter::arm`], or the end of the session. Returns `false` on timeout. `true`
    /// can be spurious.
    ///
    /// # Errors
    /// `Interrupted` by a signal, as for a blocking call on a socket.
    pub fn sleep(&self, direction: Direction, timeout: Option<Duration>) -> io::Result<bool> {
        self.flag(direction).wait_interruptibly(timeout)
    }

    /// Wakes all threads that sleep.
    pub fn wake(&self) {
        self.flag(Direction::Read).force_wake();
        self.flag(Direction::Write).force_wake();
    }

    fn flag(&self, direction: Direction) -> &WakeFlag {
        match direction {
            Direction::Read => &self.0.rx_flag,
            Direction::Write => &self.0.tx_flag,
        }
    }
}
