//! Exclusive memory of a given length: the destination of what is received or read from a file.
//!
//! It is not a stream and keeps no position. Invariant: it is written only while nothing shares it; the
//! addresses of its bytes do not change while it lives, also when the value itself is moved.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use isolane_ring::{Memory, MemoryError};

use crate::block::{self, Block};
use crate::foreign::{self, Foreign};
use crate::page::{Page, PageList};
use crate::payload::Payload;
use crate::run::next_piece;
use crate::{PAGE_SIZE, pages_for};

mod pieces;

pub use pieces::{IoSlices, IoSlicesMut, RawParts, Slices, SlicesMut};

/// Memory to receive into: pages in order, one contiguous block, or a place in *foreign* memory, which another
/// process maps, too, and may change at any time. Of that no slices can be had; it is copied, or the kernel is
/// told where it is.
///
/// Contents are what the memory held before, until written.
pub struct Buffer {
    pub(crate) store: Store,
    len: usize,
}

pub(crate) enum Store {
    Pages(PageList),
    Block(Arc<Block>),
    Foreign(Arc<Foreign>),
}

/// The vector's memory, without a copy.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        match bytes.len() {
            0 => Buffer::default(),
            len => Buffer { store: Store::Block(Block::from_vec(bytes)), len },
        }
    }
}

impl Buffer {
    /// One contiguous block of zeroes at a 4 KiB boundary.
    pub fn contiguous(len: usize) -> Buffer {
        if len == 0 {
            return Buffer::default();
        }
        Buffer { store: Store::Block(Block::zeroed(len)), len }
    }

    /// `len` bytes in the given pages, in order. Pages beyond that are let go of: who takes the pages of a
    /// buffer gets those of its bytes and no more.
    ///
    /// # Panics
    /// If the pages cannot hold `len` bytes.
    pub fn from_pages(mut pages: PageList, len: usize) -> Buffer {
        assert!(pages_for(len) <= pages.len(), "{} pages cannot hold {len} bytes", pages.len());
        pages.truncate(pages_for(len));
        Buffer { store: Store::Pages(pages), len }
    }

    pub(crate) fn from_page(page: Page, len: usize) -> Buffer {
        Buffer { store: Store::Pages(PageList::from_buf([page])), len }
    }

    /// The page, if the buffer is one whole page.
    #[inline]
    pub fn into_page(self) -> Result<Page, Buffer> {
        let len = self.len;
        match self.store {
            Store::Pages(mut pages) if len == PAGE_SIZE => match pages.pop() {
                Some(page) => Ok(page),
                None => unreachable!("a buffer of a page's length has no page"),
            },
            store => Err(Buffer { store, len }),
        }
    }

    /// Memory borrowed from a caller who waits.
    ///
    /// # Safety
    /// Until the buffer and every [`Payload`] shared from it are dropped, the `len` bytes at `start` stay
    /// valid and initialised, and nobody else writes them, nor reads them while the buffer may be written
    /// (by its own methods, or by the kernel through [`Buffer::raw_parts`]).
    pub unsafe fn lend(start: NonNull<u8>, len: usize) -> Buffer {
        // SAFETY: the caller's promise is the one that is asked for.
        Buffer { store: Store::Block(unsafe { Block::lent(start, len) }), len }
    }

    /// A place in foreign memory, which stays mapped as long as anything refers to it.
    ///
    /// # Errors
    /// [`MemoryError::Place`] if it is outside of the memory.
    pub fn foreign(memory: &Memory, offset: u64, len: usize) -> Result<Buffer, MemoryError> {
        Ok(Buffer { store: Store::Foreign(Foreign::new(memory, offset, len)?), len })
    }

    /// Makes a buffer in foreign memory one of another place there, without an allocation.
    ///
    /// # Errors
    /// [`MemoryError::Place`] if that is outside of the memory; the buffer is as it was.
    ///
    /// # Panics
    /// If the buffer is not in foreign memory, or shared.
    pub fn redirect(&mut self, offset: u64, len: usize) -> Result<(), MemoryError> {
        let Store::Foreign(place) = &mut self.store else { panic!("only foreign memory has other places") };
        let Some(place) = Arc::get_mut(place) else { panic!("{SHARED}") };
        place.redirect(offset, len)?;
        self.len = len;
        Ok(())
    }

    /// Whether it is in foreign memory.
    pub fn is_foreign(&self) -> bool {
        matches!(self.store, Store::Foreign(_))
    }

    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared.
    pub fn place(&mut self, offset: usize, bytes: &[u8]) {
        if let Store::Foreign(place) = &self.store {
            assert!(foreign::is_unique(place), "{SHARED}");
            return place.copy_in(offset, bytes);
        }
        let mut rest = bytes;
        for slice in self.slices_mut(offset, bytes.len()) {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from_slice(now);
            rest = later;
        }
    }

    /// Exchanges the first pages of the buffer, as many as there are in `others`, and their contents; false
    /// if the buffer is not in so many pages.
    pub fn exchange_pages(&mut self, others: &mut [Page]) -> bool {
        let Store::Pages(pages) = &mut self.store else { return false };
        let Some(pages) = pages.get_mut(..others.len()) else { return false };
        pages.swap_with_slice(others);
        true
    }

    /// Copies `bytes.len()` bytes out from `offset`.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        if let Store::Foreign(place) = &self.store {
            return place.copy_out(offset, bytes);
        }
        let mut rest = bytes;
        for slice in self.slices(offset, rest.len()) {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(slice.len());
            now.copy_from_slice(slice);
            rest = later;
        }
    }

    /// Shows the bytes of a range in order, piece by piece; foreign ones in copies, which do not change while
    /// they are looked at.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn visit(&self, offset: usize, len: usize, look: impl FnMut(&[u8])) {
        match &self.store {
            Store::Foreign(place) => place.visit(offset, len, look),
            _ => self.slices(offset, len).for_each(look),
        }
    }

    /// The pieces of a range, in order, for the kernel to read from.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn io_slices(&self, offset: usize, len: usize) -> IoSlices<'_> {
        match &self.store {
            Store::Foreign(place) => {
                self.check_range(offset, len);
                IoSlices::Foreign(Some((place.io_slice(offset, len), len)).filter(|_| len > 0))
            }
            _ => IoSlices::Own(self.slices(offset, len)),
        }
    }

    /// The pieces of a range, in order, for the kernel to write to.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared.
    pub fn io_slices_mut(&mut self, offset: usize, len: usize) -> IoSlicesMut<'_> {
        if !self.is_foreign() {
            return IoSlicesMut::Own(self.slices_mut(offset, len));
        }
        self.check_range(offset, len);
        let Store::Foreign(place) = &mut self.store else { unreachable!("it is foreign") };
        let Some(place) = Arc::get_mut(place) else { panic!("{SHARED}") };
        IoSlicesMut::Foreign(Some((place.io_slice_mut(offset, len), len)).filter(|_| len > 0))
    }

    /// The writable pieces of a range, in order.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer is shared, or in foreign memory.
    pub fn slices_mut(&mut self, offset: usize, len: usize) -> SlicesMut<'_> {
        self.check_range(offset, len);
        match &mut self.store {
            Store::Pages(pages) => SlicesMut::Pages {
                pages: &mut pages[offset / PAGE_SIZE..],
                skip: offset % PAGE_SIZE,
                left: len,
            },
            Store::Block(block) => match block::bytes_mut(block) {
                Some(bytes) => {
                    SlicesMut::Block(Some(&mut bytes[offset..offset + len]).filter(|it| !it.is_empty()))
                }
                None => panic!("{SHARED}"),
            },
            Store::Foreign(_) => panic!("{NO_SLICES}"),
        }
    }

    /// The pieces of a range, in order.
    ///
    /// # Panics
    /// If the range is outside of the buffer, or the buffer in foreign memory.
    pub fn slices(&self, offset: usize, len: usize) -> Slices<'_> {
        self.check_range(offset, len);
        match &self.store {
            Store::Pages(pages) => {
                Slices::Pages { pages: &pages[offset / PAGE_SIZE..], skip: offset % PAGE_SIZE, left: len }
            }
            Store::Block(block) => {
                Slices::Block(Some(&block.bytes()[offset..offset + len]).filter(|it| !it.is_empty()))
            }
            Store::Foreign(_) => panic!("{NO_SLICES}"),
        }
    }

    /// All bytes in one piece, if they are in one piece, and not in foreign memory.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.store {
            Store::Block(block) => Some(&block.bytes()[..self.len]),
            Store::Pages(pages) if pages.len() == 1 => Some(&pages[0].bytes()[..self.len]),
            Store::Pages(_) | Store::Foreign(_) => None,
        }
    }

    /// All bytes in one piece to write to, if they are in one piece, nothing shares them, and they are not in
    /// foreign memory.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let len = self.len;
        match &mut self.store {
            Store::Block(block) => block::bytes_mut(block).map(|bytes| &mut bytes[..len]),
            Store::Pages(pages) if pages.len() == 1 => pages[0].bytes_mut().map(|bytes| &mut bytes[..len]),
            Store::Pages(_) | Store::Foreign(_) => None,
        }
    }

    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.visit(0, self.len, |slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// The pages; other memory is handed back.
    pub fn into_pages(self) -> Result<PageList, Buffer> {
        match self.store {
            Store::Pages(pages) => Ok(pages),
            store => Err(Buffer { store, len: self.len }),
        }
    }

    /// Freezes the buffer into something to send, without a copy.
    pub fn into_payload(self) -> Payload {
        let len = self.len;
        match self.store {
            Store::Pages(pages) => Payload::from_pages(pages, len),
            Store::Block(block) => Payload::from_block(block, 0, len),
            Store::Foreign(place) => Payload::from_foreign(place, 0, len),
        }
    }

    /// A counted reference to a range. While it lives, the buffer cannot be written.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn share(&self, offset: usize, len: usize) -> Payload {
        self.check_range(offset, len);
        match &self.store {
            Store::Block(block) => Payload::from_block(Arc::clone(block), offset, len),
            Store::Foreign(place) => Payload::from_foreign(Arc::clone(place), offset, len),
            Store::Pages(pages) => {
                let mut payload = Payload::default();
                for (page, start, len) in page_pieces(pages, offset, len) {
                    payload.push_page(page.clone(), start, len);
                }
                payload
            }
        }
    }

    /// Takes the bytes from `at` on into a buffer of their own, without a copy.
    ///
    /// # Panics
    /// If the buffer is shared, `at` is outside of it, or it is made of pages and `at` is not at a page's
    /// start.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len, "a split at {at} is outside of a buffer of {} bytes", self.len);
        let len = self.len - at;
        self.len = at;
        let store = match &mut self.store {
            Store::Pages(pages) => {
                assert!(
                    at.is_multiple_of(PAGE_SIZE) || len == 0,
                    "pages are split at page boundaries, not at {at}"
                );
                Store::Pages(pages.drain(pages_for(at)..).collect())
            }
            Store::Block(block) => match Block::split_off(block, at) {
                Some(tail) => Store::Block(tail),
                None => panic!("{SHARED}"),
            },
            Store::Foreign(place) => match Arc::get_mut(place) {
                Some(place) => Store::Foreign(place.split_off(at)),
                None => panic!("{SHARED}"),
            },
        };
        Buffer { store, len }
    }

    /// Undoes [`Buffer::split_off`]. A tail that does not continue this buffer is handed back.
    pub fn join(&mut self, tail: Buffer) -> Result<(), Buffer> {
        let len = tail.len;
        match (&mut self.store, tail.store) {
            (Store::Block(block), Store::Block(tail)) => {
                Block::join(block, tail).map_err(|tail| Buffer { store: Store::Block(tail), len })?;
            }
            (Store::Foreign(place), Store::Foreign(tail)) => {
                if !Arc::get_mut(place).is_some_and(|place| place.join(&tail)) {
                    return Err(Buffer { store: Store::Foreign(tail), len });
                }
            }
            (Store::Pages(pages), Store::Pages(more)) if self.len == pages.len() * PAGE_SIZE => {
                pages.extend(more)
            }
            (_, store) => return Err(Buffer { store, len }),
        }
        self.len += len;
        Ok(())
    }

    /// Whether nothing shares any of the memory, so that it may be written.
    pub fn is_exclusive(&self) -> bool {
        match &self.store {
            Store::Pages(pages) => pages.iter().all(Page::is_unique),
            Store::Block(block) => block::is_unique(block),
            Store::Foreign(place) => foreign::is_unique(place),
        }
    }

    /// Addresses and lengths of the pieces of a range, for the kernel. The addresses hold while the buffer
    /// lives. Who lets the kernel write to them holds the buffer exclusively and has checked
    /// [`Buffer::is_exclusive`].
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn raw_parts(&self, offset: usize, len: usize) -> RawParts<'_> {
        self.check_range(offset, len);
        match &self.store {
            Store::Pages(pages) => {
                RawParts::Pages { pages: &pages[offset / PAGE_SIZE..], skip: offset % PAGE_SIZE, left: len }
            }
            // SAFETY: the range was checked, so the address lies inside of the block.
            Store::Block(block) => RawParts::Block(unsafe { block.as_ptr().add(offset) }, len),
            Store::Foreign(place) => RawParts::Block(place.range(offset, len).0, len),
        }
    }

    /// Whether every address is a multiple of `alignment` bytes (at most 4,096), as direct file I/O asks.
    pub fn is_aligned(&self, alignment: usize) -> bool {
        match &self.store {
            Store::Pages(_) => true,
            Store::Block(block) => block.as_ptr().addr().get().is_multiple_of(alignment.max(1)),
            Store::Foreign(place) => place.range(0, 0).0.addr().get().is_multiple_of(alignment.max(1)),
        }
    }

    fn check_range(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "{len} bytes from {offset} are outside of a buffer of {} bytes", self.len);
    }
}

impl Default for Buffer {
    /// No byte, and no allocation.
    fn default() -> Buffer {
        Buffer { store: Store::Pages(PageList::new()), len: 0 }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.store {
            Store::Pages(_) => "pages",
            Store::Block(_) => "block",
            Store::Foreign(_) => "foreign",
        };
        write!(f, "Buffer({} bytes, {kind})", self.len)
    }
}

/// The pieces `(page, start, len)` of a range of bytes spread over pages.
fn page_pieces(pages: &[Page], offset: usize, len: usize) -> impl Iterator<Item = (&Page, usize, usize)> {
    let (mut skip, mut left) = (offset % PAGE_SIZE, len);
    pages[offset / PAGE_SIZE..]
        .iter()
        .map_while(move |page| next_piece(&mut skip, &mut left).map(|(s, l)| (page, s, l)))
}

const NO_SLICES: &str = "foreign memory has no slices: copy it, or tell the kernel where it is";
const SHARED: &str = "a shared buffer is not written: wait until its payloads are dropped";

#[cfg(test)]
mod tests;
