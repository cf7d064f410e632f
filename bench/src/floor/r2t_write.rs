//! The target side of large writes: R2T for each command, data in one H2CData PDU.
//!
//! Data mostly follows data, so the predicted receive is a header and a block. If a command arrives instead, the few
//! bytes that landed in the block are copied out.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use super::memory::{Block, blocks};
use super::work::{R2T_PDU, TargetConn, Work, decode_block, header};
use crate::socket::{COMMAND_BYTES, COMMAND_PDU, HEADER_BYTES, RESPONSE_PDU, Socket};

/// One connection of large writes.
pub struct R2tWriteConn {
    socket: Socket,
    stream: Stream,
}

impl R2tWriteConn {
    /// Returns a connection for up to `depth` writes.
    pub fn new(socket: Socket, work: Work, depth: usize) -> io::Result<R2tWriteConn> {
        Ok(R2tWriteConn { socket, stream: Stream::new(blocks(depth + 1, work.block_bytes())?) })
    }
}

impl TargetConn for R2tWriteConn {
    fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        let received = self.socket.receive(&mut self.stream.buffers())?;
        if received == 0 {
            return Ok(());
        }
        self.stream.handle_received(received, served);
        let sent = self.socket.send(&mut [IoSlice::new(&self.stream.replies)]);
        self.stream.replies.clear();
        sent
    }
}

/// Position in the byte stream.
struct Stream {
    header: [u8; COMMAND_BYTES],
    header_filled: usize,
    /// Received bytes of the current data PDU in `spare[front]`; `None` between PDUs.
    data_filled: Option<usize>,
    spare: Vec<Block>,
    front: usize,
    /// Blocks of the writes whose data has not arrived.
    pending: VecDeque<usize>,
    spill: Vec<u8>,
    replies: Vec<u8>,
}

impl Stream {
    fn new(spare: Vec<Block>) -> Stream {
        Stream {
            header: [0; COMMAND_BYTES],
            header_filled: 0,
            data_filled: None,
            front: 0,
            pending: VecDeque::with_capacity(spare.len()),
            spill: Vec::with_capacity(spare[0].len()),
            spare,
            replies: Vec::new(),
        }
    }

    /// Returns the remainder of the current data, a header, and a block for the predicted data.
    fn buffers(&mut self) -> [IoSliceMut<'_>; 3] {
        let needed = self.header_needed();
        let header = &mut self.header[self.header_filled..needed];
        let (current, next) = current_and_next(&mut self.spare, self.front);
        let (remaining, predicted): (&mut [u8], &mut [u8]) = match self.data_filled {
            Some(filled) => (&mut current[filled..], next),
            None => (&mut [], current),
        };
        [remaining, header, predicted].map(IoSliceMut::new)
    }

    /// A data header has 24 bytes, a command 72; before the type is known, 24 are safe.
    fn header_needed(&self) -> usize {
        let command = self.header_filled > 0 && self.header[0] == COMMAND_PDU;
        if command { COMMAND_BYTES } else { HEADER_BYTES }
    }

    fn handle_received(&mut self, mut received: usize, served: &mut [Block]) {
        if let Some(filled) = self.data_filled {
            let taken = received.min(self.spare[0].len() - filled);
            received -= taken;
            self.on_data(filled + taken, served);
        }
        let needed = self.header_needed();
        let taken = received.min(needed - self.header_filled);
        self.header_filled += taken;
        let predicted = received - taken;
        if self.header_filled < needed {
            return;
        }
        if self.header[0] != COMMAND_PDU {
            self.header_filled = 0;
            return self.on_data(predicted, served);
        }
        let mut spill = std::mem::take(&mut self.spill);
        spill.extend_from_slice(&self.spare[self.front][..predicted]);
        self.on_header();
        self.handle_copied(&spill, served);
        spill.clear();
        self.spill = spill;
    }

    /// Handles bytes that did not land in their final buffers.
    fn handle_copied(&mut self, mut bytes: &[u8], served: &mut [Block]) {
        while !bytes.is_empty() {
            let taken = match self.data_filled {
                Some(filled) => self.copy_data(filled, bytes, served),
                None => self.copy_header(bytes),
            };
            bytes = &bytes[taken..];
        }
    }

    fn copy_data(&mut self, filled: usize, bytes: &[u8], served: &mut [Block]) -> usize {
        let block = &mut self.spare[self.front][filled..];
        let taken = bytes.len().min(block.len());
        block[..taken].copy_from_slice(&bytes[..taken]);
        self.on_data(filled + taken, served);
        taken
    }

    fn copy_header(&mut self, bytes: &[u8]) -> usize {
        // The first byte decides how many are needed.
        let needed = if self.header_filled == 0 { 1 } else { self.header_needed() - self.header_filled };
        let taken = bytes.len().min(needed);
        self.header[self.header_filled..][..taken].copy_from_slice(&bytes[..taken]);
        self.header_filled += taken;
        self.on_header();
        taken
    }

    fn on_header(&mut self) {
        if self.header_filled < self.header_needed() {
            return;
        }
        self.header_filled = 0;
        if self.header[0] == COMMAND_PDU {
            self.pending.push_back(decode_block(&self.header));
            self.replies.extend_from_slice(&header(R2T_PDU));
        } else {
            self.data_filled = Some(0);
        }
    }

    /// Records that the front block holds `filled` bytes of the current data PDU, and publishes a complete block.
    fn on_data(&mut self, filled: usize, served: &mut [Block]) {
        if filled < self.spare[0].len() {
            self.data_filled = Some(filled);
            return;
        }
        self.data_filled = None;
        let block = self.pending.pop_front().expect("data only follows an R2T");
        std::mem::swap(&mut served[block], &mut self.spare[self.front]);
        self.front = (self.front + 1) % self.spare.len();
        self.replies.extend_from_slice(&header(RESPONSE_PDU));
    }
}

/// Returns the block at `front` and its successor in the ring.
fn current_and_next(ring: &mut [Block], front: usize) -> (&mut [u8], &mut [u8]) {
    let next = (front + 1) % ring.len();
    let [current, next] = ring.get_disjoint_mut([front, next]).expect("at least two blocks");
    (current, next)
}
