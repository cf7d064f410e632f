//! Receive of consecutive equal units: headers, or headers with a block that is received in place.

use std::io::{self, IoSlice, IoSliceMut};

use arrayvec::ArrayVec;

use super::memory::Block;
use crate::socket::{COMMAND_BYTES, MAX_IOVECS, Socket};

/// Maximum depth of a connection.
pub const MAX_DEPTH: usize = 1024;

/// Commands, and a header and a block for each operation. On the stack: an allocation per turn would lower the floor.
pub type Gather<'a> = ArrayVec<IoSlice<'a>, { 2 * MAX_DEPTH + 1 }>;

/// Consecutive headers of one size.
pub struct Headers {
    size: usize,
    bytes: Vec<u8>,
    filled: usize,
}

impl Headers {
    /// Returns space for `count` headers of `size` bytes.
    pub fn new(size: usize, count: usize) -> Headers {
        Headers { size, bytes: vec![0; size * count], filled: 0 }
    }

    /// Calls `readv` once. Returns the number of complete headers.
    pub fn receive(&mut self, socket: &mut Socket) -> io::Result<usize> {
        self.filled += socket.receive(&mut [IoSliceMut::new(&mut self.bytes[self.filled..])])?;
        Ok(self.filled / self.size)
    }

    /// Returns the first `count` headers.
    pub fn first(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        self.bytes[..count * self.size].chunks_exact(self.size)
    }

    /// Removes the first `count` headers.
    pub fn advance(&mut self, count: usize) {
        self.bytes.copy_within(count * self.size..self.filled, 0);
        self.filled -= count * self.size;
    }
}

/// Consecutive units of a header and a block. The blocks are a ring that is filled in order from `front`.
pub struct Units {
    header_bytes: usize,
    headers: Vec<[u8; COMMAND_BYTES]>,
    front: usize,
    filled: usize,
    predicted: usize,
}

impl Units {
    /// Returns space for `depth` units with headers of `header_bytes`.
    pub fn new(header_bytes: usize, depth: usize) -> Units {
        let headers = vec![[0; COMMAND_BYTES]; depth];
        Units { header_bytes, headers, front: 0, filled: 0, predicted: 1 }
    }

    /// Calls `readv` once. Returns the number of complete units. `ring` must have `depth` blocks.
    pub fn receive(&mut self, socket: &mut Socket, ring: &mut [Block]) -> io::Result<usize> {
        let unit_bytes = self.header_bytes + ring[0].len();
        let mut buffers = ArrayVec::<_, MAX_IOVECS>::new();
        let (wrapped, first) = ring.split_at_mut(self.front);
        let blocks = first.iter_mut().chain(wrapped);
        let mut skip = self.filled;
        for (header, block) in self.headers.iter_mut().zip(blocks).take(self.predicted.min(MAX_IOVECS / 2)) {
            let header = &mut header[skip.min(self.header_bytes)..self.header_bytes];
            skip = skip.saturating_sub(self.header_bytes);
            if !header.is_empty() {
                buffers.push(IoSliceMut::new(header));
            }
            buffers.push(IoSliceMut::new(&mut block[skip..]));
            skip = 0;
        }
        self.filled += socket.receive(&mut buffers)?;
        Ok(self.filled / unit_bytes)
    }

    /// Returns the header of complete unit `index`.
    pub fn header(&self, index: usize) -> &[u8] {
        &self.headers[index][..self.header_bytes]
    }

    /// Returns the ring position of complete unit `index`.
    pub fn position(&self, index: usize) -> usize {
        (self.front + index) % self.headers.len()
    }

    /// Removes complete units. The next receive covers twice as many and one more.
    pub fn advance(&mut self, units: usize, block_bytes: usize) {
        if units == 0 {
            return;
        }
        self.predicted = (2 * units + 1).min(self.headers.len());
        self.filled -= units * (self.header_bytes + block_bytes);
        self.front = self.position(units);
        if self.filled > 0 {
            self.headers.swap(0, units);
        }
    }
}
