//! Runs: contiguous parts of buffers and payloads, for code and for the kernel.
//!
//! The pages of a long buffer are mostly adjacent ([`Pool::buffer`](crate::Pool::buffer)) and form one run. Few
//! long slices cost the kernel less than many short ones, above all for memory that is not in the cache.
//!
//! In shared memory, which another process can change at any time, runs are only passed to the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::ptr::NonNull;

use crate::PAGE_SIZE;
use crate::page::Page;

/// Address and length of a run. It does not keep its memory alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    start: NonNull<u8>,
    len: usize,
}

impl Run {
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> Run {
        Run { start, len }
    }

    /// Returns `len` bytes of a page from `start`.
    pub(crate) fn in_page(page: &Page, start: usize, len: usize) -> Run {
        assert!(start <= PAGE_SIZE && len <= PAGE_SIZE - start, "{len} bytes from {start} leave the page");
        // SAFETY: inside of the page, as checked.
        Run { start: unsafe { page.as_ptr().add(start) }, len }
    }

    /// Appends the run of an adjacent page, up to a limit. Adjacent pages are in one region, because the first
    /// pages of a region are never allocated.
    pub(crate) fn join(&mut self, next: Run) -> bool {
        let adjacent = self.start.addr().get() + self.len == next.start.addr().get();
        let joined = adjacent && self.len + next.len <= MAX_RUN_BYTES;
        self.len += if joined { next.len } else { 0 };
        joined
    }

    /// Returns parts of up to `max_len` bytes, in order.
    pub(crate) fn parts(self, max_len: usize) -> impl Iterator<Item = Run> {
        (0..self.len).step_by(max_len).map(move |at| {
            // SAFETY: inside of the run.
            Run { start: unsafe { self.start.add(at) }, len: max_len.min(self.len - at) }
        })
    }

    /// Returns one byte in each page.
    pub(crate) fn pages(self) -> impl Iterator<Item = Run> {
        let first = PAGE_SIZE - self.start.addr().get() % PAGE_SIZE;
        std::iter::once(0)
            .chain((first..self.len).step_by(PAGE_SIZE))
            .take_while(move |at| *at < self.len)
            .map(move |at| {
                // SAFETY: inside of the run.
                Run { start: unsafe { self.start.add(at) }, len: 1 }
            })
    }

    /// Returns address and length.
    pub(crate) fn raw(self) -> (*const u8, usize) {
        (self.start.as_ptr().cast_const(), self.len)
    }

    /// # Safety
    /// The memory lives, is not shared memory, and is not written for `'a`.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the address of a page is valid for its region; guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// # Safety
    /// The memory is not shared memory, has one handle (for pages, each), and that is borrowed exclusively for
    /// `'a`.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the address of a page is valid for its region; the caller guarantees exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the run for the kernel to read, with its length, because `IoSlice::len` forms a reference to the
    /// bytes.
    ///
    /// # Safety
    /// As [`Run::bytes`], but the memory can be shared memory.
    pub(crate) unsafe fn io_slice<'a>(self) -> (IoSlice<'a>, usize) {
        let vector = IoVec { start: self.start, len: self.len };
        // SAFETY: an `IoSlice` has the layout of an `iovec`; the caller guarantees that the bytes live.
        (unsafe { mem::transmute::<IoVec, IoSlice<'a>>(vector) }, self.len)
    }

    /// Returns the run for the kernel to write, with its length.
    ///
    /// # Safety
    /// As [`Run::bytes_mut`], but the memory can be shared memory.
    pub(crate) unsafe fn io_slice_mut<'a>(self) -> (IoSliceMut<'a>, usize) {
        let vector = IoVec { start: self.start, len: self.len };
        // SAFETY: an `IoSliceMut` has the layout of an `iovec`; the caller guarantees exclusive use.
        (unsafe { mem::transmute::<IoVec, IoSliceMut<'a>>(vector) }, self.len)
    }
}

impl From<&[u8]> for Run {
    fn from(bytes: &[u8]) -> Run {
        Run { start: NonNull::from(bytes).cast(), len: bytes.len() }
    }
}

/// Layout of an `iovec`.
#[repr(C)]
struct IoVec {
    start: NonNull<u8>,
    len: usize,
}

/// Iterator over the runs of a range of a buffer, in order and not empty.
pub(crate) enum Runs<'a> {
    Pages { pages: &'a [Page], skip: usize, left: usize },
    Other(Run),
}

impl Iterator for Runs<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        match self {
            Runs::Other(run) => {
                let len = mem::take(&mut run.len);
                (len > 0).then_some(Run { len, ..*run })
            }
            Runs::Pages { pages, skip, left } => {
                let (first, tail) = pages.split_first().filter(|_| *left > 0)?;
                let start = mem::take(skip);
                let mut run = Run::in_page(first, start, (*left).min(PAGE_SIZE - start));
                *pages = tail;
                while let Some((page, tail)) = pages.split_first()
                    && run.len < *left
                    && run.join(Run::in_page(page, 0, (*left - run.len).min(PAGE_SIZE)))
                {
                    *pages = tail;
                }
                *left -= run.len;
                Some(run)
            }
        }
    }
}

/// Longer runs are not cheaper for the kernel, and fair shares of connections end between slices.
const MAX_RUN_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Buffer, PageList, Payload};

    /// Returns `count` adjacent pages. Retries, because other tests allocate pages at the same time.
    fn neighbors(count: usize) -> PageList {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock();
        let mut pages: Vec<Page> = Vec::new();
        loop {
            pages.extend((0..8 * count).map(|_| Page::zeroed()));
            pages.sort_by_key(Page::as_ptr);
            let is_run = |pages: &[Page]| {
                pages
                    .windows(2)
                    .all(|pair| pair[0].as_ptr().addr().get() + PAGE_SIZE == pair[1].as_ptr().addr().get())
            };
            if let Some(at) = pages.windows(count).position(is_run) {
                return pages.drain(at..at + count).collect();
            }
        }
    }

    fn lens(slices: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<usize> {
        slices.into_iter().map(|slice| slice.as_ref().len()).collect()
    }

    #[test]
    fn adjacent_pages_are_one_slice() {
        let mut buffer = Buffer::from_pages(neighbors(4), 15_000);
        assert_eq!(lens(buffer.slices(100, 14_000)), [14_000]);
        assert_eq!(buffer.raw_parts(5000, 10_000).map(|(_, len)| len).collect::<Vec<_>>(), [10_000]);
        let bytes: Vec<u8> = (0..14_000).map(|index| (index % 251) as u8).collect();
        buffer.slices_mut(1000, 14_000).for_each(|piece| piece.copy_from_slice(&bytes));
        assert_eq!(buffer.to_vec()[1000..], bytes);
        let payload = buffer.into_payload();
        assert_eq!(lens(payload.slices(0, 15_000)), [15_000]);
        assert_eq!(lens(payload.slices(4096, 4096)), [4096]);
        assert_eq!(payload.to_vec()[1000..], bytes);
    }

    #[test]
    fn pages_in_another_order_are_separate_slices() {
        let mut pages = neighbors(3);
        pages.reverse();
        let mut buffer = Buffer::from_pages(pages, 3 * PAGE_SIZE);
        assert_eq!(lens(buffer.slices_mut(1, 3 * PAGE_SIZE - 1)), [PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE]);
        let payload = buffer.into_payload();
        assert_eq!(lens(payload.slices(4000, 4192)), [96, PAGE_SIZE]);
    }

    #[test]
    fn bounds_a_run() {
        let count = MAX_RUN_BYTES / PAGE_SIZE + 1;
        let buffer = Buffer::from_pages(neighbors(count), count * PAGE_SIZE);
        assert_eq!(lens(buffer.slices(0, buffer.len())), [MAX_RUN_BYTES, PAGE_SIZE]);
        assert_eq!(lens(buffer.into_payload().slices(0, count * PAGE_SIZE)), [MAX_RUN_BYTES, PAGE_SIZE]);
    }

    #[test]
    fn separates_parts_of_pages_and_other_memory() {
        let mut pages = neighbors(4).into_iter();
        let mut payload = Payload::default();
        let mut next = |payload: &mut Payload, start, len| {
            payload.push_page(pages.next().expect("four pages"), start, len);
        };
        next(&mut payload, 96, 4000);
        next(&mut payload, 0, 1000);
        next(&mut payload, 0, 4096);
        payload.push_static(b"static");
        next(&mut payload, 0, 4096);
        assert_eq!(lens(payload.slices(0, payload.len())), [5000, 4096, 6, 4096]);
        assert_eq!(lens(payload.slices(4999, 4098)), [1, 4096, 1]);
    }

    #[test]
    #[should_panic(expected = "a buffer with other references")]
    fn run_with_a_shared_page_is_not_writable() {
        let pages = neighbors(3);
        let _other = pages[1].clone();
        Buffer::from_pages(pages, 3 * PAGE_SIZE).slices_mut(0, 3 * PAGE_SIZE).count();
    }
}
