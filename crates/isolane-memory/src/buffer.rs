//! Exclusive memory of a given length: the destination of receives and file reads.
//!
//! Invariant: a buffer is written only while it has no other references; the addresses of its bytes do not
//! change while it lives, even if the value moves.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::Arc;

use isolane_shm::{MemoryError, SharedMemory};

use crate::block::{self, Block};
use crate::page::{Page, PageList};
use crate::payload::Payload;
use crate::run::{Run, Runs};
use crate::shared::Shared;
use crate::{PAGE_SIZE, pages_for};

/// Memory to receive into: pages, one contiguous block, or a range of *shared* memory, which another process can
/// change at any time. Shared memory has no slices: it is copied, or its address is passed to the kernel.
///
/// Until it is written, its contents are arbitrary.
pub struct Buffer {
    pub(crate) storage: Storage,
    len: usize,
}

pub(crate) enum Storage {
    Pages(PageList),
    Block(Arc<Block>),
    Shared(Arc<Shared>),
}

/// Takes the memory of the vector without a copy.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        match bytes.len() {
            0 => Buffer::default(),
            len => Buffer { storage: Storage::Block(Block::from_vec(bytes)), len },
        }
    }
}

impl Buffer {
    /// Returns a contiguous block of zeroes at a 4 KiB boundary.
    pub fn contiguous(len: usize) -> Buffer {
        if len == 0 {
            return Buffer::default();
        }
        Buffer { storage: Storage::Block(Block::zeroed(len)), len }
    }

    /// Returns `len` bytes in the given pages, in order. Drops pages beyond that.
    ///
    /// # Panics
    /// If the pages cannot hold `len` bytes.
    pub fn from_pages(mut pages: PageList, len: usize) -> Buffer {
        assert!(pages_for(len) <= pages.len(), "{} pages cannot hold {len} bytes", pages.len());
        pages.truncate(pages_for(len));
        Buffer { storage: Storage::Pages(pages), len }
    }

    pub(crate) fn from_page(page: Page, len: usize) -> Buffer {
        Buffer { storage: Storage::Pages(PageList::from_buf([page])), len }
    }

    /// Returns the page of a buffer with the length of one page.
    #[inline]
    pub fn into_page(self) -> Result<Page, Buffer> {
        let len = self.len;
        match self.storage {
            Storage::Pages(mut pages) if len == PAGE_SIZE => match pages.pop() {
                Some(page) => Ok(page),
                None => unreachable!("a buffer with the length of a page has no page"),
            },
            storage => Err(Buffer { storage, len }),
        }
    }

    /// Returns a buffer in borrowed memory.
    ///
    /// # Safety
    /// Until the buffer and every [`Payload`] shared from it are dropped, the `len` bytes at `start` stay
    /// valid and initialized, and no other code writes them, or reads them while the buffer may be written
    /// (by its methods, or by the kernel through [`Buffer::raw_parts`]).
    pub unsafe fn from_raw_parts(start: NonNull<u8>, len: usize) -> Buffer {
        // SAFETY: guaranteed by the caller.
        Buffer { storage: Storage::Block(unsafe { Block::from_raw_parts(start, len) }), len }
    }

    /// Returns a buffer in shared memory, which stays mapped while references exist.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if it is outside of the memory.
    pub fn in_shared_memory(memory: &SharedMemory, offset: u64, len: usize) -> Result<Buffer, MemoryError> {
        Ok(Buffer { storage: Storage::Shared(Shared::new(memory, offset, len)?), len })
    }

    /// Moves a buffer to another range of the same shared memory without an allocation.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is outside of the memory; the buffer is unchanged.
    ///
    /// # Panics
    /// If the buffer is not in shared memory, or shared.
    pub fn rebind(&mut self, offset: u64, len: usize) -> Result<(), MemoryError> {
        let Storage::Shared(range) = &mut self.storage else {
            panic!("only buffers in shared memory can be rebound")
        };
        let Some(range) = Arc::get_mut(range) else { panic!("{SHARED}") };
        range.rebind(offset, len)?;
        self.len = len;
        Ok(())
    }

    /// Whether it is in shared memory.
    pub fn is_in_shared_memory(&self) -> bool {
        matches!(self.storage, Storage::Shared(_))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        if let Storage::Shared(range) = &self.storage {
            assert!(block::is_unique(range), "{SHARED}");
            return range.copy_in(offset, bytes);
        }
        let mut tail = bytes;
        for slice in self.slices_mut(offset, bytes.len()) {
            let (now, later) = tail.split_at(slice.len());
            slice.copy_from_slice(now);
            tail = later;
        }
    }

    /// Swaps the first pages of the buffer with `others`. Returns `false` if the buffer has fewer pages.
    pub fn swap_pages(&mut self, others: &mut [Page]) -> bool {
        let Storage::Pages(pages) = &mut self.storage else { return false };
        let Some(pages) = pages.get_mut(..others.len()) else { return false };
        pages.swap_with_slice(others);
        true
    }

    /// Copies `bytes.len()` bytes out from `offset`.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        if let Storage::Shared(range) = &self.storage {
            return range.copy_out(offset, bytes);
        }
        let mut tail = bytes;
        for slice in self.slices(offset, tail.len()) {
            let (now, later) = std::mem::take(&mut tail).split_at_mut(slice.len());
            now.copy_from_slice(slice);
            tail = later;
        }
    }

    /// Calls a function with each slice of a range, in order. Shared memory is copied first.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn for_each_slice(&self, offset: usize, len: usize, look: impl FnMut(&[u8])) {
        match &self.storage {
            Storage::Shared(range) => range.for_each_slice(offset, len, look),
            _ => self.slices(offset, len).for_each(look),
        }
    }

    /// Returns the slices of a range for the kernel to read, each with its length, because `IoSlice::len` forms a
    /// reference to the bytes.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn io_slices(&self, offset: usize, len: usize) -> impl Iterator<Item = (IoSlice<'_>, usize)> {
        // SAFETY: the memory is borrowed, and writers need an exclusive borrow.
        self.runs(offset, len).map(|run| unsafe { run.io_slice() })
    }

    /// Returns the slices of a range for the kernel to write, each with its length.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared.
    pub fn io_slices_mut(
        &mut self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (IoSliceMut<'_>, usize)> {
        // SAFETY: the memory has no other references, and no byte is in two runs.
        self.runs_mut(offset, len).map(|run| unsafe { run.io_slice_mut() })
    }

    /// Returns the writable slices of a range.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared, or in shared memory.
    pub fn slices_mut(&mut self, offset: usize, len: usize) -> impl Iterator<Item = &mut [u8]> {
        assert!(!self.is_in_shared_memory(), "{NO_SLICES}");
        // SAFETY: the memory has no other references, and no byte is in two runs.
        self.runs_mut(offset, len).map(|run| unsafe { run.bytes_mut() })
    }

    /// Returns the slices of a range; adjacent pages are one slice.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer in shared memory.
    pub fn slices(&self, offset: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        assert!(!self.is_in_shared_memory(), "{NO_SLICES}");
        // SAFETY: the memory is borrowed, and writers need an exclusive borrow.
        self.runs(offset, len).map(|run| unsafe { run.bytes() })
    }

    fn runs(&self, offset: usize, len: usize) -> Runs<'_> {
        self.check_range(offset, len);
        match &self.storage {
            Storage::Pages(pages) => {
                Runs::Pages { pages: &pages[offset / PAGE_SIZE..], skip: offset % PAGE_SIZE, left: len }
            }
            // SAFETY: the range was checked, so the address is inside of the block.
            Storage::Block(block) => Runs::Other(Run::new(unsafe { block.as_ptr().add(offset) }, len)),
            Storage::Shared(range) => Runs::Other(range.run(offset, len)),
        }
    }

    /// As [`Buffer::runs`], of memory without other references.
    fn runs_mut(&mut self, offset: usize, len: usize) -> Runs<'_> {
        let runs = self.runs(offset, len);
        assert!(self.is_range_exclusive(offset, len) || len == 0, "{SHARED}");
        runs
    }

    /// Returns all bytes if they are contiguous and not in shared memory.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.is_in_shared_memory() {
            return None;
        }
        self.slices(0, self.len).next().filter(|slice| slice.len() == self.len)
    }

    /// Returns all bytes for writing if they are contiguous, have no other references, and are not in shared
    /// memory.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let len = self.len;
        match &mut self.storage {
            Storage::Block(block) => block::bytes_mut(block).map(|bytes| &mut bytes[..len]),
            Storage::Pages(pages) if pages.len() == 1 => pages[0].bytes_mut().map(|bytes| &mut bytes[..len]),
            Storage::Pages(_) | Storage::Shared(_) => None,
        }
    }

    /// Copies all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.for_each_slice(0, self.len, |slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// Returns the pages, or the buffer if its memory is not pages.
    pub fn into_pages(self) -> Result<PageList, Buffer> {
        match self.storage {
            Storage::Pages(pages) => Ok(pages),
            storage => Err(Buffer { storage, len: self.len }),
        }
    }

    /// Converts the buffer into a payload without a copy.
    pub fn into_payload(self) -> Payload {
        let len = self.len;
        match self.storage {
            Storage::Pages(pages) => Payload::from_pages(pages, len),
            Storage::Block(block) => Payload::from_block(block, 0, len),
            Storage::Shared(range) => Payload::from_shared(range, 0, len),
        }
    }

    /// Returns a reference to a range. While it lives, the buffer cannot be written.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn share(&self, offset: usize, len: usize) -> Payload {
        self.check_range(offset, len);
        match &self.storage {
            Storage::Block(block) => Payload::from_block(Arc::clone(block), offset, len),
            Storage::Shared(range) => Payload::from_shared(Arc::clone(range), offset, len),
            Storage::Pages(pages) => {
                let mut payload = Payload::default();
                let mut start = offset % PAGE_SIZE;
                for page in pages[offset / PAGE_SIZE..].iter().take(pages_for(start + len)) {
                    payload.push_page(page.clone(), start, (len - payload.len()).min(PAGE_SIZE - start));
                    start = 0;
                }
                payload
            }
        }
    }

    /// Splits off the bytes from `at` on without a copy.
    ///
    /// # Panics
    /// If the buffer is shared, `at` is outside of it, or it is made of pages and `at` is not at a page's
    /// start.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len, "a split at {at} is outside of a buffer of {} bytes", self.len);
        let len = self.len - at;
        self.len = at;
        let storage = match &mut self.storage {
            Storage::Pages(pages) => {
                assert!(
                    at.is_multiple_of(PAGE_SIZE) || len == 0,
                    "pages are split at page boundaries, not at {at}"
                );
                Storage::Pages(pages.drain(pages_for(at)..).collect())
            }
            Storage::Block(block) => match Block::split_off(block, at) {
                Some(tail) => Storage::Block(tail),
                None => panic!("{SHARED}"),
            },
            Storage::Shared(range) => match Arc::get_mut(range) {
                Some(range) => Storage::Shared(range.split_off(at)),
                None => panic!("{SHARED}"),
            },
        };
        Buffer { storage, len }
    }

    /// Reverts [`Buffer::split_off`]. Returns a tail that does not continue this buffer.
    pub fn join(&mut self, tail: Buffer) -> Result<(), Buffer> {
        let len = tail.len;
        match (&mut self.storage, tail.storage) {
            (Storage::Block(block), Storage::Block(tail)) => {
                Block::join(block, tail).map_err(|tail| Buffer { storage: Storage::Block(tail), len })?;
            }
            (Storage::Shared(range), Storage::Shared(tail)) => {
                if !Arc::get_mut(range).is_some_and(|range| range.join(&tail)) {
                    return Err(Buffer { storage: Storage::Shared(tail), len });
                }
            }
            (Storage::Pages(pages), Storage::Pages(more)) if self.len == pages.len() * PAGE_SIZE => {
                pages.extend(more)
            }
            (_, storage) => return Err(Buffer { storage, len }),
        }
        self.len += len;
        Ok(())
    }

    /// Whether there are no other references, so that the buffer can be written.
    pub fn is_exclusive(&self) -> bool {
        self.is_range_exclusive(0, self.len)
    }

    fn is_range_exclusive(&self, offset: usize, len: usize) -> bool {
        match &self.storage {
            Storage::Pages(pages) => {
                let count = pages_for(offset % PAGE_SIZE + len);
                pages[offset / PAGE_SIZE..].iter().take(count).all(Page::is_unique)
            }
            Storage::Block(block) => block::is_unique(block),
            Storage::Shared(range) => block::is_unique(range),
        }
    }

    /// Returns addresses and lengths of the slices of a range. The addresses are valid while the buffer lives. To
    /// let the kernel write to them, hold the buffer exclusively and check [`Buffer::is_exclusive`].
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn raw_parts(&self, offset: usize, len: usize) -> impl Iterator<Item = (*const u8, usize)> {
        self.runs(offset, len).map(Run::raw)
    }

    /// Whether every address is a multiple of `alignment` bytes (at most 4,096), as direct file I/O requires.
    pub fn is_aligned(&self, alignment: usize) -> bool {
        self.raw_parts(0, self.len).all(|(start, _)| start.addr().is_multiple_of(alignment.max(1)))
    }

    fn check_range(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a buffer of {} bytes", self.len);
    }
}

impl Default for Buffer {
    /// An empty buffer without an allocation.
    fn default() -> Buffer {
        Buffer { storage: Storage::Pages(PageList::new()), len: 0 }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

const NO_SLICES: &str = "shared memory has no slices; copy it, or use `io_slices`";
const SHARED: &str = "a buffer with other references is not written; wait until its payloads are dropped";

#[cfg(test)]
mod tests;
