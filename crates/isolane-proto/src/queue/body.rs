//! The part of a PDU behind its header: padding, data, data digest.
//!
//! It places data and checks the digest; whose data it is, and whether it may come, was decided before.
//! Invariant: every data byte is digested once, in order, whether it was copied here or placed by the kernel.

use isolane_memory::Buffer;
use isolane_wire::digest::Digest;

use super::header::Shape;
use super::plan::{DESTINATION_BYTES_MAX, DESTINATION_SLICES_MAX, ReceivePlan};

/// What is still to come of the running PDU.
pub(crate) struct Body {
    padding_left: usize,
    data_left: usize,
    /// Where the next data byte belongs in the destination.
    offset: usize,
    /// Present when data digests were negotiated; used again for every PDU.
    digest: Option<Digest>,
    digest_left: usize,
    received_digest: [u8; DIGEST_LEN],
}

impl Body {
    /// A body of which nothing is to come.
    pub(crate) fn new() -> Body {
        Body {
            padding_left: 0,
            data_left: 0,
            offset: 0,
            digest: None,
            digest_left: 0,
            received_digest: [0; DIGEST_LEN],
        }
    }

    /// Whether data digests were negotiated.
    pub(crate) fn set_digested(&mut self, is_digested: bool) {
        self.digest = is_digested.then(Digest::new);
    }

    /// A PDU of this shape begins; its data belongs at `offset` of the destination.
    pub(crate) fn start(&mut self, shape: Shape, offset: usize) {
        debug_assert!(self.is_whole(), "a PDU started inside another");
        self.padding_left = shape.padding;
        self.data_left = shape.data_len;
        self.offset = offset;
        if let Some(digest) = &mut self.digest
            && shape.data_len > 0
        {
            digest.reset();
            self.digest_left = DIGEST_LEN;
        }
    }

    /// Takes what belongs to this PDU from the front of `input`, and says how much that was.
    pub(crate) fn take(&mut self, input: &[u8], destination: Option<&mut Buffer>) -> usize {
        let padding = self.padding_left.min(input.len());
        self.padding_left -= padding;
        let data = self.take_data(&input[padding..], destination);
        let mut taken = padding + data;
        if self.data_left == 0 && self.padding_left == 0 {
            taken += self.take_digest(&input[taken..]);
        }
        taken
    }

    /// Whether padding is to come.
    pub(crate) fn is_padded(&self) -> bool {
        self.padding_left > 0
    }

    /// All padding has come: says how much of it was still missing.
    pub(crate) fn take_padding(&mut self) -> usize {
        std::mem::take(&mut self.padding_left)
    }

    /// Adds the destination of the data to come to a receive plan; returns its length, and whether all
    /// fitted.
    pub(crate) fn plan<'a>(&self, destination: &'a mut Buffer, plan: &mut ReceivePlan<'a>) -> (usize, bool) {
        if self.padding_left > 0 || self.data_left == 0 {
            return (0, true);
        }
        let (mut planned, len) = (0, self.data_left.min(DESTINATION_BYTES_MAX));
        for (slice, len) in destination.io_slices_mut(self.offset, len).take(DESTINATION_SLICES_MAX) {
            planned += len;
            plan.slices.push(slice);
        }
        (planned, planned == self.data_left)
    }

    /// `n` bytes were placed by the kernel as planned, or somewhere else if nobody wants them.
    pub(crate) fn placed(&mut self, n: usize, destination: Option<&Buffer>) {
        if let (Some(digest), Some(destination)) = (&mut self.digest, destination) {
            destination.visit(self.offset, n, |slice| digest.update(slice));
        }
        self.offset += n;
        self.data_left -= n;
    }

    /// Data bytes still to come.
    pub(crate) fn data_left(&self) -> usize {
        self.data_left
    }

    /// Whether everything has come.
    pub(crate) fn is_whole(&self) -> bool {
        self.padding_left == 0 && self.data_left == 0 && self.digest_left == 0
    }

    /// Whether the data is what the peer sent. Asked when whole.
    pub(crate) fn is_intact(&self) -> bool {
        self.digest.as_ref().is_none_or(|digest| digest.finish() == u32::from_le_bytes(self.received_digest))
    }

    fn take_data(&mut self, input: &[u8], destination: Option<&mut Buffer>) -> usize {
        let data = &input[..self.data_left.min(input.len())];
        if data.is_empty() {
            return 0;
        }
        if let Some(buffer) = destination {
            buffer.place(self.offset, data);
            if let Some(digest) = &mut self.digest {
                digest.update(data);
            }
        }
        self.offset += data.len();
        self.data_left -= data.len();
        data.len()
    }

    fn take_digest(&mut self, input: &[u8]) -> usize {
        let n = self.digest_left.min(input.len());
        let at = DIGEST_LEN - self.digest_left;
        if n > 0 {
            self.received_digest[at..at + n].copy_from_slice(&input[..n]);
            self.digest_left -= n;
        }
        n
    }
}

const DIGEST_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use isolane_wire::digest::crc32c;

    use super::*;

    #[test]
    fn copied_and_placed_bytes_are_digested_alike() {
        let data: Vec<u8> = (0..100).collect();
        let mut body = Body::new();
        body.set_digested(true);
        let mut buffer = Buffer::contiguous(200);
        body.start(Shape { padding: 3, data_len: 100 }, 50);
        assert_eq!(body.take(b"pa", Some(&mut buffer)), 2);
        assert_eq!(body.take(&[&b"d"[..], &data[..30]].concat(), Some(&mut buffer)), 31);
        let mut plan = ReceivePlan::new();
        assert_eq!(body.plan(&mut buffer, &mut plan), (70, true));
        plan.slices[0].copy_from_slice(&data[30..]);
        drop(plan);
        body.placed(70, Some(&buffer));
        assert!(!body.is_whole());
        let digest = crc32c(&data).to_le_bytes();
        assert_eq!(body.take(&digest[..1], Some(&mut buffer)), 1);
        assert_eq!(body.take(&[&digest[1..], b"next"].concat(), Some(&mut buffer)), 3);
        assert!(body.is_whole() && body.is_intact());
        assert_eq!(buffer.to_vec()[50..150], data);
    }

    #[test]
    fn foreign_memory_is_placed_in_and_digested_from_copies() {
        let memory = isolane_ring::Memory::create("isolane-test", 8192).unwrap();
        let data: Vec<u8> = (0..4000u32).map(|at| at as u8).collect();
        let mut body = Body::new();
        body.set_digested(true);
        let mut buffer = Buffer::foreign(&memory, 17, 4000).unwrap();
        body.start(Shape { padding: 0, data_len: 4000 }, 0);
        assert_eq!(body.take(&data[..30], Some(&mut buffer)), 30);
        let mut plan = ReceivePlan::new();
        assert_eq!(body.plan(&mut buffer, &mut plan), (3970, true));
        plan.slices[0].copy_from_slice(&data[30..]);
        drop(plan);
        body.placed(3970, Some(&buffer));
        body.take(&crc32c(&data).to_le_bytes(), Some(&mut buffer));
        assert!(body.is_whole() && body.is_intact());
        assert_eq!(buffer.to_vec(), data);
    }

    #[test]
    fn data_without_destination_is_skipped() {
        let mut body = Body::new();
        body.start(Shape { padding: 0, data_len: 10 }, 0);
        assert_eq!(body.take(&[1; 4], None), 4);
        assert_eq!(body.take(&[1; 100], None), 6);
        assert!(body.is_whole() && body.is_intact());
    }
}
