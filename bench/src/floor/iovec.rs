//! Iovecs whose allocation is reused from turn to turn.

use std::io::{IoSlice, IoSliceMut};

/// An empty gather list that keeps its capacity.
#[derive(Default)]
pub struct Gather(Vec<IoSlice<'static>>);

impl Gather {
    /// Takes the empty list for this turn.
    pub fn take<'a>(&mut self) -> Vec<IoSlice<'a>> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the allocation of a sent list.
    pub fn put(&mut self, mut list: Vec<IoSlice<'_>>) {
        list.clear();
        // Collecting in place reuses the allocation, because the layout of elements does not change.
        self.0 = list.into_iter().map(|_| IoSlice::new(&[])).collect();
    }
}

/// An empty scatter list that keeps its capacity.
#[derive(Default)]
pub struct Scatter(Vec<IoSliceMut<'static>>);

impl Scatter {
    /// Takes the empty list for this turn.
    pub fn take<'a>(&mut self) -> Vec<IoSliceMut<'a>> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the allocation of a filled list.
    pub fn put(&mut self, mut list: Vec<IoSliceMut<'_>>) {
        list.clear();
        self.0 = list.into_iter().map(|_| IoSliceMut::new(&mut [])).collect();
    }
}
