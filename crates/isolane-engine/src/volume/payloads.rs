//! Where the payload of commands is while they are under way: in the session's memory, or, where digests are
//! computed over it, in private memory.
//!
//! Memory is kept for the next command, of the same session alone: what a failed read has left there is
//! nobody else's. Invariant: a session has at most as much private memory under way, on one core, as it has
//! given itself; more would mean that several commands share a place.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use isolane_memory::Buffer;
use isolane_ring::Memory;

/// The memory of one session's commands.
pub(super) struct Payloads {
    memory: Memory,
    /// Copied, because its owner could change it after its digest was computed.
    is_private: bool,
    spare: Vec<Buffer>,
    spare_bytes: usize,
    /// Bytes of private memory under way, of the whole session.
    private_bytes: Rc<Cell<u64>>,
}

thread_local! {
    /// Of each session on this core.
    static PRIVATE_BYTES: RefCell<HashMap<u32, Weak<Cell<u64>>>> = RefCell::default();
}

impl Payloads {
    pub fn new(session: u32, memory: Memory) -> Payloads {
        let private_bytes = PRIVATE_BYTES.with_borrow_mut(|all| {
            all.retain(|_, bytes| bytes.strong_count() > 0);
            let bytes = all.get(&session).and_then(Weak::upgrade).unwrap_or_default();
            all.insert(session, Rc::downgrade(&bytes));
            bytes
        });
        Payloads { memory, is_private: false, spare: Vec::new(), spare_bytes: 0, private_bytes }
    }

    /// Digests are computed over all data.
    pub fn set_private(&mut self) {
        self.is_private = true;
    }

    /// A buffer for a place; `None` if that is outside of the memory, or more is under way than fits into it.
    /// What was lent is to be [returned](Payloads::take_back).
    #[inline]
    pub fn lend(&mut self, offset: u64, len: u64, is_write: bool) -> Option<Buffer> {
        let piece = self.memory.piece(offset, len).ok()?;
        match self.is_private {
            false => self.lend_foreign(offset, piece.len()),
            true => self.lend_private(offset, piece.len(), is_write),
        }
    }

    /// A command for which `lent` bytes were lent has ended, and has brought data for this place if it was a good
    /// read.
    #[inline]
    pub fn take_back(&mut self, buffer: Option<Buffer>, lent: u64, place: Option<u64>) {
        if self.is_private {
            self.private_bytes.set(self.private_bytes.get() - lent);
        }
        let Some(buffer) = buffer else { return };
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
        let bytes = if self.is_private { buffer.len() } else { 0 };
        let is_little = self.spare.len() < SPARE_MAX && self.spare_bytes + bytes <= SPARE_BYTES_MAX;
        if is_ours && is_little && buffer.is_exclusive() {
            self.spare_bytes += bytes;
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
        let private_bytes = self.private_bytes.get() + len as u64;
        if private_bytes > self.memory.bytes() as u64 {
            return None;
        }
        let spare = self.spare.pop();
        self.spare_bytes -= spare.as_ref().map_or(0, Buffer::len);
        let fitting = spare.filter(|buffer| buffer.len() == len);
        let mut buffer = fitting.unwrap_or_else(|| Buffer::contiguous(len));
        if is_write {
            let mut at = offset;
            for piece in buffer.slices_mut(0, len) {
                self.memory.copy_out(at, piece).ok()?;
                at += piece.len() as u64;
            }
        }
        self.private_bytes.set(private_bytes);
        Some(buffer)
    }
}

/// Buffers kept for the next commands.
const SPARE_MAX: usize = 64;
/// Bytes of private memory in them.
const SPARE_BYTES_MAX: usize = 16 << 20;
