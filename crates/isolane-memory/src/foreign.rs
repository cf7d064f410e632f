//! Memory that another process maps, too, and may change at any time: a place for payload that belongs to it.
//!
//! Nobody here forms a reference to its bytes: they are copied, or the kernel is told where they are. What a
//! place holds, and whether places overlap, is the other process's concern; so nothing that matters to
//! anybody else is put there, nor believed because it was read there.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use isolane_ring::{Memory, MemoryError};

/// A run of bytes of such memory, which stays mapped as long as this lives.
pub(crate) struct Foreign {
    memory: Memory,
    offset: u64,
    len: usize,
    start: NonNull<u8>,
}

// SAFETY: an address in a mapping that is held here and not tied to a thread; it is used by copies and by the
// kernel only.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// A place that the other process may have named.
    pub(crate) fn new(memory: &Memory, offset: u64, len: usize) -> Result<Arc<Foreign>, MemoryError> {
        let start = start_of(memory, offset, len)?;
        Ok(Arc::new(Foreign { memory: memory.clone(), offset, len, start }))
    }

    /// Makes another place of this one; the caller is the only one who has it.
    pub(crate) fn redirect(&mut self, offset: u64, len: usize) -> Result<(), MemoryError> {
        self.start = start_of(&self.memory, offset, len)?;
        (self.offset, self.len) = (offset, len);
        Ok(())
    }

    /// Takes the bytes from `at` on into a place of their own.
    ///
    /// # Panics
    /// If `at` is outside.
    pub(crate) fn split_off(&mut self, at: usize) -> Arc<Foreign> {
        let (start, len) = self.range(at, self.len - at);
        self.len = at;
        Arc::new(Foreign { memory: self.memory.clone(), offset: self.offset + at as u64, len, start })
    }

    /// Undoes [`Foreign::split_off`]; false if the other place does not follow.
    pub(crate) fn join(&mut self, tail: &Foreign) -> bool {
        let end = self.start.addr().get() + self.len;
        let is_next = end == tail.start.addr().get() && self.offset + self.len as u64 == tail.offset;
        self.len += if is_next { tail.len } else { 0 };
        is_next
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out from `offset`.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.range(offset, bytes.len());
        let copied = self.memory.copy_out(self.offset + offset as u64, bytes);
        debug_assert!(copied.is_ok(), "a place is inside of its memory");
    }

    /// Copies bytes in at `offset`.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.range(offset, bytes.len());
        let copied = self.memory.copy_in(self.offset + offset as u64, bytes);
        debug_assert!(copied.is_ok(), "a place is inside of its memory");
    }

    /// Copies a range out bit by bit, and shows each copy.
    pub(crate) fn visit(&self, offset: usize, len: usize, mut look: impl FnMut(&[u8])) {
        let mut copy = [0; COPY_BYTES];
        for at in (0..len).step_by(COPY_BYTES) {
            let part = &mut copy[..COPY_BYTES.min(len - at)];
            self.copy_out(offset + at, part);
            look(part);
        }
    }

    /// Where a range is.
    ///
    /// # Panics
    /// If it is outside.
    pub(crate) fn range(&self, offset: usize, len: usize) -> (NonNull<u8>, usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a place of {} bytes", self.len);
        // SAFETY: inside of the mapping, as checked.
        (unsafe { self.start.add(offset) }, len)
    }

    /// A range for the kernel to read from.
    pub(crate) fn io_slice(&self, offset: usize, len: usize) -> IoSlice<'_> {
        let (start, len) = self.range(offset, len);
        // SAFETY: an `IoSlice` has the layout of an `iovec`, and these bytes are mapped while it lives. That
        // they may change concerns who looks at them, and that is the kernel alone.
        unsafe { std::mem::transmute::<IoVec, IoSlice<'_>>(IoVec { start, len }) }
    }

    /// A range for the kernel to write to.
    pub(crate) fn io_slice_mut(&mut self, offset: usize, len: usize) -> IoSliceMut<'_> {
        let (start, len) = self.range(offset, len);
        // SAFETY: as above, for an `IoSliceMut`; this process has no other reference to the bytes.
        unsafe { std::mem::transmute::<IoVec, IoSliceMut<'_>>(IoVec { start, len }) }
    }
}

/// Whether nobody else holds this place. (No weak references are ever made.)
pub(crate) fn is_unique(place: &Arc<Foreign>) -> bool {
    let is_unique = Arc::strong_count(place) == 1;
    if is_unique {
        fence(Ordering::Acquire);
    }
    is_unique
}

fn start_of(memory: &Memory, offset: u64, len: usize) -> Result<NonNull<u8>, MemoryError> {
    let piece = memory.piece(offset, len as u64)?;
    Ok(NonNull::new(piece.as_ptr()).unwrap_or(NonNull::dangling()))
}

/// What the kernel calls an `iovec`.
#[repr(C)]
struct IoVec {
    start: NonNull<u8>,
    len: usize,
}

/// What is copied at a time to be looked at.
const COPY_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
