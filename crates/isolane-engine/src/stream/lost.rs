//! A stream that an engine before this one had, and that cannot be taken up again. It does nothing but to say so:
//! its application finds an error behind what is in the ring, and does not get the socket back, because nobody
//! knows which byte is next. Its other streams go on.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use isolane_attach::control::End;
use isolane_attach::stream::Block;
use isolane_ring::{Flag, Memory, MemoryError};

use super::notices::Notices;
use super::{Kept, abort, reset_at_close};
use crate::closer::Socket;
use crate::service::{Ending, Hostile, Looked, Ready, Service, Turn};

/// A stream that is no more.
pub(super) struct Lost {
    block: Block,
    why: String,
    notices: Notices,
    ending: Option<Ending>,
}

impl Lost {
    /// Says so to the application, in both directions, and to its peer, once its application has closed the socket: what
    /// was in the ring is not sent.
    ///
    /// # Errors
    /// [`MemoryError::Place`], if there is no place to say it.
    pub fn new(
        memory: &Memory,
        kept: &Kept,
        why: String,
        notices: Notices,
        socket: Option<OwnedFd>,
    ) -> Result<Lost, MemoryError> {
        let block = Block::open(memory, &kept.place)?;
        abort(&block);
        if let Some(socket) = socket.map(Socket::new) {
            reset_at_close(socket.as_fd());
        }
        Ok(Lost { block, why, notices, ending: None })
    }
}

impl Service for Lost {
    fn look(&mut self, _: &Turn) -> Result<Looked, Hostile> {
        self.notices.tell()?;
        Ok(match self.ending {
            None => Looked::Nothing,
            Some(Ending::Asked(End::Release)) => Looked::Ended(Err(std::mem::take(&mut self.why))),
            Some(_) => Looked::Ended(Ok(())),
        })
    }

    fn on_ready(&mut self, _: Ready) {}

    fn on_end(&mut self, ending: Ending) {
        self.ending = Some(ending);
    }

    fn told(&self) -> &Flag {
        &self.block.told
    }

    fn deadline(&self) -> Option<Instant> {
        self.notices.deadline()
    }
}
