//! Where the payload of commands is while they are under way: in the session's memory, or, where digests are
//! computed over it, in private memory.
//!
//! Memory is kept for the next command, of the same session alone: what a failed read has left there is
//! nobody else's.

use isolane_memory::Buffer;
use isolane_ring::Memory;

/// The memory of one session's commands.
pub(super) struct Payloads {
    memory: Memory,
    /// Copied, because its owner could change it after its digest was computed.
    is_private: bool,
    spare: Vec<Buffer>,
}

impl Payloads {
    pub fn new(memory: Memory) -> Payloads {
        Payloads { memory, is_private: false, spare: Vec::new() }
    }

    /// Digests are computed over all data.
    pub fn set_private(&mut self) {
        self.is_private = true;
    }

    /// A buffer for a place; `None` if that is outside of the memory.
    #[inline]
    pub fn lend(&mut self, offset: u64, len: u64, is_write: bool) -> Option<Buffer> {
        let piece = self.memory.piece(offset, len).ok()?;
        match self.is_private {
            false => self.lend_foreign(offset, piece.len()),
            true => self.lend_private(offset, piece.len(), is_write),
        }
    }

    /// A command has ended, and has brought data for this place if it was a good read.
    #[inline]
    pub fn take_back(&mut self, buffer: Buffer, place: Option<u64>) {
        if let Some(offset) = place.filter(|_| self.is_private) {
            let mut at = offset;
            buffer.visit(0, buffer.len(), |piece| {
                let copied = self.memory.copy_in(at, piece);
                debug_assert!(copied.is_ok(), "the place was inside");
                at += piece.len() as u64;
            });
        }
        // The client itself makes the buffer of a deallocation.
        let is_ours = buffer.is_foreign() != self.is_private;
        if is_ours && self.spare.len() < SPARE_MAX && buffer.is_exclusive() {
            self.spare.push(buffer);
        }
    }

    /// Copies bytes out.
    pub fn copy(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.memory.copy_out(offset, bytes).ok()
    }

    fn lend_foreign(&mut self, offset: u64, len: usize) -> Option<Buffer> {
        let Some(mut buffer) = self.spare.pop() else {
            return Buffer::foreign(&self.memory, offset, len).ok();
        };
        buffer.redirect(offset, len).ok()?;
        Some(buffer)
    }

    fn lend_private(&mut self, offset: u64, len: usize, is_write: bool) -> Option<Buffer> {
        let fitting = self.spare.pop().filter(|buffer| buffer.len() == len);
        let mut buffer = fitting.unwrap_or_else(|| Buffer::contiguous(len));
        if is_write {
            let mut at = offset;
            for piece in buffer.slices_mut(0, len) {
                self.memory.copy_out(at, piece).ok()?;
                at += piece.len() as u64;
            }
        }
        Some(buffer)
    }
}

/// Buffers kept for the next commands.
const SPARE_MAX: usize = 64;
