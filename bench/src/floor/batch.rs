//! Iovecs whose allocation outlives the turn that fills them.

use std::io::{IoSlice, IoSliceMut};

/// An empty gather list that keeps its capacity between turns.
#[derive(Default)]
pub struct Gather(Vec<IoSlice<'static>>);

impl Gather {
    /// Takes the empty list to be filled in this turn.
    pub fn take<'a>(&mut self) -> Vec<IoSlice<'a>> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the allocation of a list that was sent.
    pub fn put(&mut self, mut list: Vec<IoSlice<'_>>) {
        list.clear();
        // Collecting in place reuses the allocation: the element's layout does not change.
        self.0 = list.into_iter().map(|_| IoSlice::new(&[])).collect();
    }
}

/// The same for a scatter list.
#[derive(Default)]
pub struct Scatter(Vec<IoSliceMut<'static>>);

impl Scatter {
    /// Takes the empty list to be filled in this turn.
    pub fn take<'a>(&mut self) -> Vec<IoSliceMut<'a>> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the allocation of a list that was received into.
    pub fn put(&mut self, mut list: Vec<IoSliceMut<'_>>) {
        list.clear();
        self.0 = list.into_iter().map(|_| IoSliceMut::new(&mut [])).collect();
    }
}
