//! Pages of the session's memory that belong to somebody.

use std::time::Duration;

use isolane_ring::Span;

use super::Session;
use crate::AttachError;

/// Pages of the session's memory. They go back to it when this is dropped: the engine must be done with them
/// by then, or the next owner reads what it still writes. After the session's end they go back only once the engine
/// has let go of all.
#[derive(Debug)]
pub struct Room {
    session: Session,
    span: Span,
    is_kept: bool,
}

impl Room {
    pub(super) fn take(session: &Session, bytes: usize) -> Result<Room, AttachError> {
        let span = session.0.arena.lock().take(bytes);
        let span = span.ok_or_else(|| {
            session.0.line.relieve();
            AttachError::NoRoom { bytes, of: session.memory().bytes() }
        })?;
        Ok(Room { session: session.clone(), span, is_kept: false })
    }

    /// Bytes before it.
    pub fn offset(&self) -> u64 {
        self.span.offset as u64
    }

    /// Bytes in it: whole pages.
    pub fn bytes(&self) -> usize {
        self.span.len
    }

    /// Whose pages they are.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Writes zeroes to the first `bytes`: to words and flags before they are used.
    ///
    /// # Errors
    /// [`AttachError::Memory`] if there are not so many.
    pub fn clear(&self, bytes: usize) -> Result<(), AttachError> {
        const ZEROES: [u8; isolane_ring::PAGE_SIZE] = [0; isolane_ring::PAGE_SIZE];
        for start in (0..bytes).step_by(ZEROES.len()) {
            let zeroes = &ZEROES[..ZEROES.len().min(bytes - start)];
            self.session.memory().copy_in(self.offset() + start as u64, zeroes)?;
        }
        Ok(())
    }

    /// Has the pages never go back, because the engine may still use them.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

/// Bytes that come back until the system has them again.
const STALE_BYTES: usize = 16 << 20;

impl Drop for Room {
    fn drop(&mut self) {
        // After the session's end the engine still sends what was closed before, until it has left.
        let is_given_back = || self.session.check().is_ok() || self.session.is_left(Duration::ZERO);
        if !self.is_kept && self.session.check_process().is_ok() && is_given_back() {
            let mut arena = self.session.0.arena.lock();
            arena.give(self.span);
            for span in arena.stale(STALE_BYTES) {
                // Under the lock: nobody may have them meanwhile. What cannot be had back stays here.
                let _ = self.session.memory().punch(span.offset, span.len);
            }
        }
    }
}
