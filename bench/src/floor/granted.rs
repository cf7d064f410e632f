//! The serving side of large writes: a command is answered with R2T, its data follows in one H2CData PDU.
//!
//! The next PDU after data is mostly data again, so the plan reads on as header, block on that guess. Where
//! the guess was wrong the bytes that landed in the block are a few commands, and are copied out.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use super::connection::Connection;
use super::memory::{Block, blocks};
use super::work::{
    COMMAND_BYTES, COMMAND_PDU, HEADER_BYTES, R2T_PDU, RESPONSE_PDU, Work, decode_block, header,
};

/// One connection of granted writes.
pub struct GrantedLane {
    connection: Connection,
    stream: Stream,
}

impl GrantedLane {
    /// A lane that holds `depth` writes at most.
    pub fn new(connection: Connection, work: Work, depth: usize) -> io::Result<GrantedLane> {
        Ok(GrantedLane { connection, stream: Stream::new(blocks(depth + 1, work.block_bytes())?) })
    }

    /// Receives once, publishes the whole blocks and answers everything in one send.
    pub fn turn(&mut self, served: &mut [Block]) -> io::Result<()> {
        let received = self.connection.receive(&mut self.stream.plan())?;
        if received == 0 {
            return Ok(());
        }
        self.stream.handle_received(received, served);
        let replies = std::mem::take(&mut self.stream.replies);
        let sent = self.connection.send(&mut [IoSlice::new(&replies)]);
        self.stream.replies = replies;
        self.stream.replies.clear();
        sent
    }
}

/// Where the byte stream stands.
struct Stream {
    header: [u8; COMMAND_BYTES],
    header_filled: usize,
    /// Bytes of the running data PDU that are in `fresh[front]`; none between PDUs.
    data_filled: Option<usize>,
    fresh: Vec<Block>,
    front: usize,
    granted: VecDeque<usize>,
    spill: Vec<u8>,
    replies: Vec<u8>,
}

impl Stream {
    fn new(fresh: Vec<Block>) -> Stream {
        let granted = VecDeque::with_capacity(fresh.len());
        let spill = Vec::with_capacity(fresh[0].len());
        let (header, replies) = ([0; COMMAND_BYTES], Vec::new());
        Stream { header, header_filled: 0, data_filled: None, fresh, front: 0, granted, spill, replies }
    }

    /// The rest of what is running, then a header, then a block on the guess that data follows.
    fn plan(&mut self) -> [IoSliceMut<'_>; 3] {
        let need = self.header_need();
        let header = &mut self.header[self.header_filled..need];
        let (current, next) = pair(&mut self.fresh, self.front);
        let (running, guess): (&mut [u8], &mut [u8]) = match self.data_filled {
            Some(filled) => (&mut current[filled..], next),
            None => (&mut [], current),
        };
        [running, header, guess].map(IoSliceMut::new)
    }

    /// A data header has 24 bytes, a command 72; before the first byte is known, 24 are safe.
    fn header_need(&self) -> usize {
        let is_command = self.header_filled > 0 && self.header[0] == COMMAND_PDU;
        if is_command { COMMAND_BYTES } else { HEADER_BYTES }
    }

    fn handle_received(&mut self, mut received: usize, served: &mut [Block]) {
        if let Some(filled) = self.data_filled {
            let taken = received.min(self.fresh[0].len() - filled);
            received -= taken;
            self.on_data(filled + taken, served);
        }
        let need = self.header_need();
        let taken = received.min(need - self.header_filled);
        self.header_filled += taken;
        self.handle_guessed(need, received - taken, served);
    }

    /// `guessed` bytes lie in the front block, behind a header of which `need` bytes were asked for.
    fn handle_guessed(&mut self, need: usize, guessed: usize, served: &mut [Block]) {
        if self.header_filled < need {
            return;
        }
        if self.header[0] != COMMAND_PDU {
            self.header_filled = 0;
            return self.on_data(guessed, served);
        }
        let mut spill = std::mem::take(&mut self.spill);
        spill.extend_from_slice(&self.fresh[self.front][..guessed]);
        self.on_header();
        self.handle_copied(&spill, served);
        spill.clear();
        self.spill = spill;
    }

    /// Bytes that are not where they belong.
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
        let block = &mut self.fresh[self.front][filled..];
        let taken = bytes.len().min(block.len());
        block[..taken].copy_from_slice(&bytes[..taken]);
        self.on_data(filled + taken, served);
        taken
    }

    fn copy_header(&mut self, bytes: &[u8]) -> usize {
        if self.header_filled == 0 {
            self.header[0] = bytes[0];
            self.header_filled = 1;
            self.on_header();
            return 1;
        }
        let taken = bytes.len().min(self.header_need() - self.header_filled);
        self.header[self.header_filled..][..taken].copy_from_slice(&bytes[..taken]);
        self.header_filled += taken;
        self.on_header();
        taken
    }

    fn on_header(&mut self) {
        if self.header_filled < self.header_need() {
            return;
        }
        self.header_filled = 0;
        if self.header[0] == COMMAND_PDU {
            self.granted.push_back(decode_block(&self.header));
            self.replies.extend_from_slice(&header(R2T_PDU));
        } else {
            self.data_filled = Some(0);
        }
    }

    /// The front block holds `filled` bytes of the running data PDU; whole, it is published.
    fn on_data(&mut self, filled: usize, served: &mut [Block]) {
        if filled < self.fresh[0].len() {
            self.data_filled = Some(filled);
            return;
        }
        self.data_filled = None;
        let block = self.granted.pop_front().expect("data only follows a grant");
        std::mem::swap(&mut served[block], &mut self.fresh[self.front]);
        self.front = (self.front + 1) % self.fresh.len();
        self.replies.extend_from_slice(&header(RESPONSE_PDU));
    }
}

/// The block at `front` and the one after it in the ring.
fn pair(ring: &mut [Block], front: usize) -> (&mut [u8], &mut [u8]) {
    let next = (front + 1) % ring.len();
    if next == 0 {
        let (head, tail) = ring.split_at_mut(front);
        return (&mut *tail[0], &mut *head[0]);
    }
    let (head, tail) = ring.split_at_mut(next);
    (&mut *head[front], &mut *tail[0])
}
