//! Pages that the driver provides for one receive, for in-capsule data that is predicted.
//!
//! The next capsule usually has the shape of the last one. After a correct prediction, the pages
//! are swapped with pages of the buffer that was provided for the data.
//!
//! Invariant: there are as many pages before a receive as after it, and none of them is shared.

use isolane_memory::{Buffer, PAGE_SIZE, Page, pages_for};

use crate::connection::Prediction;

/// The pages, and the length of the predicted data.
#[derive(Default)]
pub(super) struct StagingPages {
    pages: Vec<Page>,
    /// Length of the last in-capsule data; 0 if other data has arrived since.
    data_len: usize,
}

impl StagingPages {
    pub(super) fn stage(&mut self, pages: Vec<Page>) {
        self.pages = pages;
    }

    pub(super) fn take(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.pages)
    }

    /// Records in-capsule data of this length; 0 for other data.
    pub(super) fn observe(&mut self, data_len: usize) {
        self.data_len = if data_len >= MIN_PREDICTED_BYTES { data_len } else { 0 };
    }

    /// Whether the pages can hold data like the last.
    pub(super) fn is_usable(&self) -> bool {
        self.data_len > 0 && pages_for(self.data_len) <= self.pages.len()
    }

    /// Destinations for data like the last, each with its slices; identified by their first pages.
    pub(super) fn destinations(
        &mut self,
    ) -> impl Iterator<Item = (Prediction, impl ExactSizeIterator<Item = &mut [u8]>)> {
        let len = self.data_len;
        let chunks = self.pages.chunks_exact_mut(pages_for(len)).enumerate();
        chunks.map(move |(at, pages)| {
            let slices = pages.iter_mut().enumerate().map(move |(index, page)| {
                let end = (len - index * PAGE_SIZE).min(PAGE_SIZE);
                match page.bytes_mut() {
                    Some(bytes) => &mut bytes[..end],
                    None => unreachable!("a staged page is shared"),
                }
            });
            (Prediction { cid: (at * pages_for(len)) as u16, len }, slices)
        })
    }

    /// Moves the `placed` received bytes at page `at` into `buffer`: the prediction was correct.
    pub(super) fn settle(&mut self, at: u16, placed: usize, buffer: &mut Buffer) {
        let pages = &mut self.pages[usize::from(at)..][..pages_for(placed)];
        if !buffer.swap_pages(pages) {
            let mut bytes = Vec::with_capacity(placed);
            collect(pages, placed, &mut bytes);
            buffer.copy_in(0, &bytes);
        }
    }

    /// Copies the received bytes at page `at`.
    pub(super) fn copy(&self, at: u16, len: usize, bytes: &mut Vec<u8>) {
        collect(&self.pages[usize::from(at)..], len, bytes);
    }
}

fn collect(pages: &[Page], len: usize, bytes: &mut Vec<u8>) {
    for (index, page) in pages.iter().take(pages_for(len)).enumerate() {
        bytes.extend_from_slice(&page.bytes()[..(len - index * PAGE_SIZE).min(PAGE_SIZE)]);
    }
}

/// Minimum length of predicted data: shorter data is copied faster.
const MIN_PREDICTED_BYTES: usize = 2048;
