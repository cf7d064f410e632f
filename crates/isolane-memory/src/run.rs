//! Runs: bytes of pages that are neighbours in memory, as one piece.
//!
//! A long buffer mostly gets pages that are neighbours ([`Pool::buffer`](crate::Pool::buffer)). Few long
//! pieces cost the kernel less than many short ones, above all where it copies to or from memory that is in
//! no cache.

use std::ptr::NonNull;

use crate::PAGE_SIZE;
use crate::page::Page;

/// Where a run is. It does not hold its pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    start: NonNull<u8>,
    len: usize,
}

impl Run {
    /// `len` bytes of the page at `page` from `start`.
    pub(crate) fn of(page: NonNull<u8>, start: usize, len: usize) -> Run {
        assert!(start <= PAGE_SIZE && len <= PAGE_SIZE - start, "{len} bytes from {start} leave the page");
        // SAFETY: inside of the page, as checked.
        Run { start: unsafe { page.add(start) }, len }
    }

    /// Goes on with `next` if that begins where this ends, up to a bound. Neighbours are of one region: its
    /// first pages are never given out.
    pub(crate) fn join(&mut self, next: Run) -> bool {
        let is_behind = self.start.addr().get() + self.len == next.start.addr().get();
        let is_joined = is_behind && self.len + next.len <= RUN_BYTES_MAX;
        self.len += if is_joined { next.len } else { 0 };
        is_joined
    }

    /// Address and length.
    pub(crate) fn raw(self) -> (*const u8, usize) {
        (self.start.as_ptr().cast_const(), self.len)
    }

    /// # Safety
    /// All pages of the run are held, and none of them is written, for `'a`.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: a page's address may be used for all of its region, and the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// # Safety
    /// All pages of the run are held, each by its only owner, and borrowed exclusively for `'a`.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Start and length of the next page's piece; `None` once nothing is left.
#[inline]
pub(crate) fn next_piece(skip: &mut usize, left: &mut usize) -> Option<(usize, usize)> {
    if *left == 0 {
        return None;
    }
    let start = std::mem::take(skip);
    let len = (*left).min(PAGE_SIZE - start);
    *left -= len;
    Some((start, len))
}

/// The first run of the `left` bytes that begin at `skip` of `pages`, and how many pages it lies in. What it
/// takes is taken off `skip` and `left`.
#[inline]
pub(crate) fn first_run(pages: &[Page], skip: &mut usize, left: &mut usize) -> Option<(Run, usize)> {
    let (first, rest) = pages.split_first()?;
    let (start, len) = next_piece(skip, left)?;
    let mut run = Run::of(first.as_ptr(), start, len);
    let mut count = 1;
    for page in rest {
        let len = (*left).min(PAGE_SIZE);
        if len == 0 || !run.join(Run::of(page.as_ptr(), 0, len)) {
            break;
        }
        *left -= len;
        count += 1;
    }
    Some((run, count))
}

/// Longer runs cost the kernel no less, and shares of what is received from or sent to several connections
/// end between pieces.
const RUN_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Buffer, PageList, Payload};

    /// So many pages, each behind the other. Other tests take pages meanwhile, so more are taken until there
    /// are.
    fn neighbours(count: usize) -> PageList {
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
    fn neighbours_are_one_piece_whatever_is_asked_of_them() {
        let mut buffer = Buffer::from_pages(neighbours(4), 15_000);
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
    fn pages_in_another_order_are_pieces_of_their_own() {
        let mut pages = neighbours(3);
        pages.reverse();
        let mut buffer = Buffer::from_pages(pages, 3 * PAGE_SIZE);
        assert_eq!(lens(buffer.slices_mut(1, 3 * PAGE_SIZE - 1)), [PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE]);
        let payload = buffer.into_payload();
        assert_eq!(lens(payload.slices(4000, 4192)), [96, PAGE_SIZE]);
    }

    #[test]
    fn a_run_is_bounded() {
        let count = RUN_BYTES_MAX / PAGE_SIZE + 1;
        let buffer = Buffer::from_pages(neighbours(count), count * PAGE_SIZE);
        assert_eq!(lens(buffer.slices(0, buffer.len())), [RUN_BYTES_MAX, PAGE_SIZE]);
        assert_eq!(lens(buffer.into_payload().slices(0, count * PAGE_SIZE)), [RUN_BYTES_MAX, PAGE_SIZE]);
    }

    #[test]
    fn parts_of_pages_and_other_memory_between_them_are_told_apart() {
        let mut pages = neighbours(4).into_iter();
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
    #[should_panic(expected = "a shared buffer is not written")]
    fn a_run_with_a_shared_page_in_it_is_not_written() {
        let pages = neighbours(3);
        let _other = pages[1].clone();
        Buffer::from_pages(pages, 3 * PAGE_SIZE).slices_mut(0, 3 * PAGE_SIZE).count();
    }
}
