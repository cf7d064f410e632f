//! Exclusive memory of a given length: the destination of receives and file reads.
//!
//! Invariant: a buffer is written only while it has no other references; the addresses of its bytes do not
//! change while it lives, even if the value moves.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use isolane_shm::{MemoryError, SharedMemory};

use crate::block::{self, Block};
use crate::page::{Page, PageList};
use crate::page_run::next_slice;
use crate::payload::Payload;
use crate::shared::{self, Shared};
use crate::{PAGE_SIZE, pages_for};

mod slices;

pub use slices::{IoSlices, IoSlicesMut, RawParts, Slices, SlicesMut};

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
            assert!(shared::is_unique(range), "{SHARED}");
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

    /// Returns the slices of a range for the kernel to read.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn io_slices(&self, offset: usize, len: usize) -> IoSlices<'_> {
        match &self.storage {
            Storage::Shared(range) => {
                self.check_range(offset, len);
                IoSlices::Shared(Some((range.io_slice(offset, len), len)).filter(|_| len > 0))
            }
            _ => IoSlices::Own(self.slices(offset, len)),
        }
    }

    /// Returns the slices of a range for the kernel to write.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared.
    pub fn io_slices_mut(&mut self, offset: usize, len: usize) -> IoSlicesMut<'_> {
        if !self.is_in_shared_memory() {
            return IoSlicesMut::Own(self.slices_mut(offset, len));
        }
        self.check_range(offset, len);
        let Storage::Shared(range) = &mut self.storage else {
            unreachable!("the buffer is in shared memory")
        };
        let Some(range) = Arc::get_mut(range) else { panic!("{SHARED}") };
        IoSlicesMut::Shared(Some((range.io_slice_mut(offset, len), len)).filter(|_| len > 0))
    }

    /// Returns the writable slices of a range.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared, or in shared memory.
    pub fn slices_mut(&mut self, offset: usize, len: usize) -> SlicesMut<'_> {
        self.check_range(offset, len);
        match &mut self.storage {
            Storage::Pages(pages) => SlicesMut::Pages {
                pages: &mut pages[offset / PAGE_SIZE..],
                skip: offset % PAGE_SIZE,
                left: len,
            },
            Storage::Block(block) => match block::bytes_mut(block) {
                Some(bytes) => {
                    SlicesMut::Block(Some(&mut bytes[offset..offset + len]).filter(|it| !it.is_empty()))
                }
                None => panic!("{SHARED}"),
            },
            Storage::Shared(_) => panic!("{NO_SLICES}"),
        }
    }

    /// Returns the slices of a range.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer in shared memory.
    pub fn slices(&self, offset: usize, len: usize) -> Slices<'_> {
        self.check_range(offset, len);
        match &self.storage {
            Storage::Pages(pages) => {
                Slices::Pages { pages: &pages[offset / PAGE_SIZE..], skip: offset % PAGE_SIZE, left: len }
            }
            Storage::Block(block) => {
                Slices::Block(Some(&block.bytes()[offset..offset + len]).filter(|it| !it.is_empty()))
            }
            Storage::Shared(_) => panic!("{NO_SLICES}"),
        }
    }

    /// Returns all bytes if they are contiguous and not in shared memory.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Block(block) => Some(&block.bytes()[..self.len]),
            Storage::Pages(pages) if pages.len() == 1 => Some(&pages[0].bytes()[..self.len]),
            Storage::Pages(_) | Storage::Shared(_) => None,
        }
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
                for (page, start, len) in page_slices(pages, offset, len) {
                    payload.push_page(page.clone(), start, len);
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
        match &self.storage {
            Storage::Pages(pages) => pages.iter().all(Page::is_unique),
            Storage::Block(block) => block::is_unique(block),
            Storage::Shared(range) => shared::is_unique(range),
        }
    }

    /// Returns addresses and lengths of the slices of a range. The addresses are valid while the buffer lives. To
    /// let the kernel write to them, hold the buffer exclusively and check [`Buffer::is_exclusive`].
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn raw_parts(&self, offset: usize, len: usize) -> RawParts<'_> {
        self.check_range(offset, len);
        match &self.storage {
            Storage::Pages(pages) => {
                RawParts::Pages { pages: &pages[offset / PAGE_SIZE..], skip: offset % PAGE_SIZE, left: len }
            }
            // SAFETY: the range was checked, so the address lies inside of the block.
            Storage::Block(block) => RawParts::Block(unsafe { block.as_ptr().add(offset) }, len),
            Storage::Shared(range) => RawParts::Block(range.range(offset, len).0, len),
        }
    }

    /// Whether every address is a multiple of `alignment` bytes (at most 4,096), as direct file I/O requires.
    pub fn is_aligned(&self, alignment: usize) -> bool {
        match &self.storage {
            Storage::Pages(_) => true,
            Storage::Block(block) => block.as_ptr().addr().get().is_multiple_of(alignment.max(1)),
            Storage::Shared(range) => range.range(0, 0).0.addr().get().is_multiple_of(alignment.max(1)),
        }
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
        let kind = match &self.storage {
            Storage::Pages(_) => "pages",
            Storage::Block(_) => "block",
            Storage::Shared(_) => "foreign",
        };
        write!(f, "Buffer({} bytes, {kind})", self.len)
    }
}

/// Slices `(page, start, len)` of a range of pages.
fn page_slices(pages: &[Page], offset: usize, len: usize) -> impl Iterator<Item = (&Page, usize, usize)> {
    let (mut skip, mut left) = (offset % PAGE_SIZE, len);
    pages[offset / PAGE_SIZE..]
        .iter()
        .map_while(move |page| next_slice(&mut skip, &mut left).map(|(s, l)| (page, s, l)))
}

const NO_SLICES: &str = "shared memory has no slices; copy it, or use `io_slices`";
const SHARED: &str = "a buffer with other references is not written; wait until its payloads are dropped";

#[cfg(test)]
mod tests;
