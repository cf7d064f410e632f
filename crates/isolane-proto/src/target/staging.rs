//! Pages that the driver provides for one receive, for in-capsule data that is predicted.
//!
//! The next capsule usually has the shape of the last one. After a correct prediction, the pages are
//! swapped with those of the buffer that was provided for the data.
//!
//! Invariant: there are as many pages before a receive as after it, and none of them is shared.

use isolane_memory::{Buffer, PAGE_SIZE, Page, pages_for};

use crate::connection::Prediction;

/// The pages, and what they are guessed to hold.
#[derive(Default)]
pub(super) struct StagingPages {
    pages: Vec<Page>,
    /// Length of the data in the last capsule that had any; 0 if something else came since that brings data.
    data_len: usize,
}

impl StagingPages {
    pub(super) fn stage(&mut self, pages: Vec<Page>) {
        self.pages = pages;
    }

    pub(super) fn take(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.pages)
    }

    /// Data of this length came in a capsule; 0 for data that came otherwise.
    pub(super) fn observe(&mut self, data_len: usize) {
        self.data_len = if data_len >= MIN_PREDICTED_BYTES { data_len } else { 0 };
    }

    /// Whether there is room for data like the last.
    pub(super) fn is_usable(&self) -> bool {
        self.data_len > 0 && pages_for(self.data_len) <= self.pages.len()
    }

    /// The places of capsules like the last, each with its pieces; named by their first pages.
    pub(super) fn places(
        &mut self,
    ) -> impl Iterator<Item = (Prediction, impl ExactSizeIterator<Item = &mut [u8]>)> {
        let len = self.data_len;
        let places = self.pages.chunks_exact_mut(pages_for(len)).enumerate();
        places.map(move |(at, pages)| {
            let pieces = pages.iter_mut().enumerate().map(move |(index, page)| {
                let piece = (len - index * PAGE_SIZE).min(PAGE_SIZE);
                match page.bytes_mut() {
                    Some(bytes) => &mut bytes[..piece],
                    None => unreachable!("a spare page is shared"),
                }
            });
            (Prediction { cid: (at * pages_for(len)) as u16, len }, pieces)
        })
    }

    /// The data that was guessed to land in the place `at` is that of `buffer`, of which `placed` bytes have
    /// come.
    pub(super) fn settle(&mut self, at: u16, placed: usize, buffer: &mut Buffer) {
        let pages = &mut self.pages[usize::from(at)..][..pages_for(placed)];
        if !buffer.swap_pages(pages) {
            let mut bytes = Vec::with_capacity(placed);
            gather(pages, placed, &mut bytes);
            buffer.copy_in(0, &bytes);
        }
    }

    /// Copies what landed in the place `at`.
    pub(super) fn copy(&self, at: u16, len: usize, bytes: &mut Vec<u8>) {
        gather(&self.pages[usize::from(at)..], len, bytes);
    }
}

fn gather(pages: &[Page], len: usize, bytes: &mut Vec<u8>) {
    for (index, page) in pages.iter().take(pages_for(len)).enumerate() {
        bytes.extend_from_slice(&page.bytes()[..(len - index * PAGE_SIZE).min(PAGE_SIZE)]);
    }
}

/// Shorter data is copied faster than it is guessed.
const MIN_PREDICTED_BYTES: usize = 2048;
