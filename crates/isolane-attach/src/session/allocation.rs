//! Allocated pages of a session's memory.

use std::time::Duration;

use isolane_shm::Span;

use super::Session;
use crate::AttachError;

/// Pages of a session's memory, freed on drop. The engine must have stopped using them by then, or their next owner
/// reads what the engine still writes. After the session has closed, they are freed only once no engine holds anything
/// of the session.
#[derive(Debug)]
pub struct Allocation {
    session: Session,
    span: Span,
    leaked: bool,
}

impl Allocation {
    pub(super) fn new(session: &Session, bytes: usize) -> Result<Allocation, AttachError> {
        let span = session.0.arena.lock().alloc(bytes);
        let span = span.ok_or_else(|| {
            session.0.channel.relieve();
            AttachError::OutOfMemory { bytes, of: session.memory().bytes() }
        })?;
        Ok(Allocation { session: session.clone(), span, leaked: false })
    }

    /// Returns the offset in the memory, in bytes.
    pub fn offset(&self) -> u64 {
        self.span.offset as u64
    }

    /// Returns the length in bytes: whole pages.
    pub fn bytes(&self) -> usize {
        self.span.len
    }

    /// Returns the session that the pages belong to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Zeroes the first `bytes`: indices and flags must be zero before use.
    ///
    /// # Errors
    /// [`AttachError::Memory`] if `bytes` exceeds the memory.
    pub fn clear(&self, bytes: usize) -> Result<(), AttachError> {
        const ZEROES: [u8; isolane_shm::PAGE_SIZE] = [0; isolane_shm::PAGE_SIZE];
        for start in (0..bytes).step_by(ZEROES.len()) {
            let zeroes = &ZEROES[..ZEROES.len().min(bytes - start)];
            self.session.memory().copy_in(self.offset() + start as u64, zeroes)?;
        }
        Ok(())
    }

    /// Never frees the pages, because the engine may still use them.
    pub fn leak(&mut self) {
        self.leaked = true;
    }
}

/// Bytes to free before pages are returned to the system.
const STALE_BYTES: usize = 16 << 20;

impl Drop for Allocation {
    fn drop(&mut self) {
        // After the session has closed, the engine still sends from closed streams until it releases them.
        let is_unused = || self.session.check().is_ok() || self.session.is_abandoned(Duration::ZERO);
        if !self.leaked && self.session.check_process().is_ok() && is_unused() {
            let mut arena = self.session.0.arena.lock();
            arena.free(self.span);
            for span in arena.stale(STALE_BYTES) {
                // Under the lock, so that the pages are not allocated in the meantime. On failure they stay resident.
                let _ = self.session.memory().punch(span.offset, span.len);
            }
        }
    }
}
