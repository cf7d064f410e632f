//! Payload in memory that another process maps and can change at any time.
//!
//! Bytes are copied, or their address is passed to the kernel; no reference to them is formed. Ranges can overlap.
//! Only data of the other process is stored there, and data read from there is not trusted.

use std::ptr::NonNull;
use std::sync::Arc;

use isolane_shm::{MemoryError, SharedMemory};

use crate::run::Run;

/// Range of shared memory, which stays mapped while this lives.
pub(crate) struct Shared {
    memory: SharedMemory,
    offset: u64,
    len: usize,
    start: NonNull<u8>,
}

// SAFETY: an address in a mapping that is kept here and not tied to a thread; only copies and the kernel use it.
unsafe impl Send for Shared {}
// SAFETY: methods only copy addresses; no reference to the shared bytes exists.
unsafe impl Sync for Shared {}

impl Shared {
    /// Returns a range, which can come from the other process.
    pub(crate) fn new(memory: &SharedMemory, offset: u64, len: usize) -> Result<Arc<Shared>, MemoryError> {
        let start = start_of(memory, offset, len)?;
        Ok(Arc::new(Shared { memory: memory.clone(), offset, len, start }))
    }

    /// Moves this range.
    pub(crate) fn rebind(&mut self, offset: u64, len: usize) -> Result<(), MemoryError> {
        self.start = start_of(&self.memory, offset, len)?;
        (self.offset, self.len) = (offset, len);
        Ok(())
    }

    /// Splits off the bytes from `at` on.
    ///
    /// # Panics
    /// If `at` is outside.
    pub(crate) fn split_off(&mut self, at: usize) -> Arc<Shared> {
        let (offset, len) = (self.offset + at as u64, self.len - at);
        // SAFETY: inside of the mapping, because the range is.
        let start = unsafe { self.start.add(at) };
        self.len = at;
        Arc::new(Shared { memory: self.memory.clone(), offset, len, start })
    }

    /// Reverts [`Shared::split_off`]. Returns `false` if `tail` does not follow.
    pub(crate) fn join(&mut self, tail: &Shared) -> bool {
        let end = self.start.addr().get() + self.len;
        let adjacent = end == tail.start.addr().get() && self.offset + self.len as u64 == tail.offset;
        self.len += if adjacent { tail.len } else { 0 };
        adjacent
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out from `offset`.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.run(offset, bytes.len());
        let copied = self.memory.copy_out(self.offset + offset as u64, bytes);
        debug_assert!(copied.is_ok(), "a range is inside of its memory");
    }

    /// Copies bytes in at `offset`.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.run(offset, bytes.len());
        let copied = self.memory.copy_in(self.offset + offset as u64, bytes);
        debug_assert!(copied.is_ok(), "a range is inside of its memory");
    }

    /// Calls a function with copies of a range, in order.
    pub(crate) fn for_each_slice(&self, offset: usize, len: usize, mut f: impl FnMut(&[u8])) {
        let mut copy = [0; COPY_BYTES];
        for at in (0..len).step_by(COPY_BYTES) {
            let part = &mut copy[..COPY_BYTES.min(len - at)];
            self.copy_out(offset + at, part);
            f(part);
        }
    }

    /// Returns the run of a range.
    ///
    /// # Panics
    /// If it is outside.
    pub(crate) fn run(&self, offset: usize, len: usize) -> Run {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a range of {} bytes", self.len);
        // SAFETY: inside of the mapping, as checked.
        Run::new(unsafe { self.start.add(offset) }, len)
    }
}

fn start_of(memory: &SharedMemory, offset: u64, len: usize) -> Result<NonNull<u8>, MemoryError> {
    let slice = memory.raw_slice(offset, len as u64)?;
    Ok(NonNull::new(slice.as_ptr()).unwrap_or(NonNull::dangling()))
}

/// Size of a copy.
const COPY_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
