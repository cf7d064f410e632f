//! Receiving a run of equal units, each a header and a block, straight into the blocks.
//!
//! The blocks are a ring: units fill them in order from `front`. The caller decides what a whole unit
//! means and then calls [`Units::advance`].

use std::io::{self, IoSliceMut};

use super::batch::Scatter;
use super::connection::{Connection, IOVECS_MAX};
use super::memory::Block;

/// Headers of at most one CapsuleCmd.
type Header = [u8; 72];

/// The receiving end of a run of units.
pub struct Units {
    header_bytes: usize,
    headers: Vec<Header>,
    front: usize,
    filled: usize,
    guess: usize,
    scatter: Scatter,
}

impl Units {
    /// Units with headers of `header_bytes`, at most `depth` of them under way.
    pub fn new(header_bytes: usize, depth: usize) -> Units {
        let headers = vec![[0; 72]; depth];
        Units { header_bytes, headers, front: 0, filled: 0, guess: 1, scatter: Scatter::default() }
    }

    /// One `readv`; returns how many units are whole now. `ring` must have as many blocks as `depth`.
    pub fn receive(&mut self, connection: &mut Connection, ring: &mut [Block]) -> io::Result<usize> {
        let unit_bytes = self.header_bytes + ring[0].len();
        let mut places = self.scatter.take();
        let (wrapped, first) = ring.split_at_mut(self.front);
        let blocks = first.iter_mut().chain(wrapped);
        let mut skip = self.filled;
        for (header, block) in self.headers.iter_mut().zip(blocks).take(self.guess.min(IOVECS_MAX / 2)) {
            let header = &mut header[skip.min(self.header_bytes)..self.header_bytes];
            skip = skip.saturating_sub(self.header_bytes);
            if !header.is_empty() {
                places.push(IoSliceMut::new(header));
            }
            places.push(IoSliceMut::new(&mut block[skip..]));
            skip = 0;
        }
        let received = connection.receive(&mut places);
        self.scatter.put(places);
        self.filled += received?;
        Ok(self.filled / unit_bytes)
    }

    /// The header of the unit `index` of those that are whole.
    pub fn header(&self, index: usize) -> &[u8] {
        &self.headers[index][..self.header_bytes]
    }

    /// The place in the ring of the unit `index` of those that are whole.
    pub fn place(&self, index: usize) -> usize {
        (self.front + index) % self.headers.len()
    }

    /// Leaves `units` whole units behind. The next plan is as long as this one was, and a little longer.
    pub fn advance(&mut self, units: usize, block_bytes: usize) {
        if units == 0 {
            return;
        }
        self.guess = (2 * units + 1).min(self.headers.len());
        self.filled -= units * (self.header_bytes + block_bytes);
        self.front = self.place(units);
        if self.filled > 0 {
            self.headers.swap(0, units);
        }
    }
}
