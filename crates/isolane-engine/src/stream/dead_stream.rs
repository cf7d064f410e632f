//! Placeholder for a stream of a previous engine that cannot be resumed.
//!
//! It only reports the error: its application finds it after the data in the ring, and does not get the socket
//! back, because the position of the next byte is unknown. Other streams of the session continue.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use isolane_engine_api::CloseMode;
use isolane_engine_api::stream::ControlBlock;
use isolane_shm::{MemoryError, SharedMemory, WakeFlag};

use super::notifications::PendingNotification;
use super::{StreamRecord, abort, reset_at_close};
use crate::close_threads::Socket;
use crate::object::{CloseReason, PollStatus, PolledObject, ProtocolViolation, Ready, Turn};

/// Stream that cannot be resumed.
pub(super) struct DeadStream {
    block: ControlBlock,
    error: String,
    notification: PendingNotification,
    closing: Option<CloseReason>,
}

impl DeadStream {
    /// Fails both directions for the application. The peer gets a reset once the application has closed the
    /// socket, because the data in the ring is not sent.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], if the layout of the stream is invalid.
    pub fn new(
        memory: &SharedMemory,
        record: &StreamRecord,
        error: String,
        notification: PendingNotification,
        socket: Option<OwnedFd>,
    ) -> Result<DeadStream, MemoryError> {
        let block = ControlBlock::open(memory, &record.place)?;
        abort(&block);
        if let Some(socket) = socket.map(Socket::new) {
            reset_at_close(socket.as_fd());
        }
        Ok(DeadStream { block, error, notification, closing: None })
    }
}

impl PolledObject for DeadStream {
    fn poll(&mut self, _: &Turn) -> Result<PollStatus, ProtocolViolation> {
        self.notification.send()?;
        Ok(match self.closing {
            None => PollStatus::Idle,
            Some(CloseReason::Requested(CloseMode::Release)) => {
                PollStatus::Closed(Err(std::mem::take(&mut self.error)))
            }
            Some(_) => PollStatus::Closed(Ok(())),
        })
    }

    fn on_ready(&mut self, _: usize, _: Ready) {}

    fn on_close(&mut self, reason: CloseReason) {
        self.closing = Some(reason);
    }

    fn need_wakeup(&self) -> &WakeFlag {
        &self.block.need_wakeup
    }

    fn deadline(&self) -> Option<Instant> {
        self.notification.deadline()
    }
}
