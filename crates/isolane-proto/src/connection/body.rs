//! The part of a PDU after its header: padding, data, and data digest.
//!
//! Places data and checks the digest; the caller decides which memory the data belongs to.
//!
//! Invariant: every data byte is digested once, in order, whether it was copied here or placed by
//! the kernel.

use isolane_connection::{MAX_DESTINATION_BYTES, MAX_DESTINATION_SLICES, ReceivePlan};
use isolane_memory::Buffer;
use isolane_wire::digest::Digest;

use super::header::PduLayout;

/// The body of the current PDU; the default is complete.
#[derive(Default)]
pub(crate) struct Body {
    padding_left: usize,
    data_left: usize,
    /// Offset of the next data byte in the destination.
    offset: usize,
    /// Present if data digests were negotiated; reused for every PDU.
    digest: Option<Digest>,
    digest_left: usize,
    received_digest: [u8; DIGEST_LEN],
}

impl Body {
    /// Enables data digests, if they were negotiated.
    pub(crate) fn set_digested(&mut self, digested: bool) {
        self.digest = digested.then(Digest::default);
    }

    /// Starts a PDU of this layout; its data belongs at `offset` of the destination.
    pub(crate) fn start(&mut self, layout: PduLayout, offset: usize) {
        debug_assert!(self.is_whole(), "a PDU started inside another");
        self.padding_left = usize::from(layout.padding);
        self.data_left = layout.data_len as usize;
        self.offset = offset;
        if let Some(digest) = &mut self.digest
            && layout.data_len > 0
        {
            digest.reset();
            self.digest_left = DIGEST_LEN;
        }
    }

    /// Consumes the bytes of this PDU from the front of `input` and returns their number.
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

    /// Whether padding has not arrived.
    pub(crate) fn is_padded(&self) -> bool {
        self.padding_left > 0
    }

    /// Skips the remaining padding and returns its length.
    pub(crate) fn take_padding(&mut self) -> usize {
        std::mem::take(&mut self.padding_left)
    }

    /// Adds the destination of the remaining data to a receive plan. Returns its length, and
    /// whether all of it fits.
    pub(crate) fn plan<'a>(&self, destination: &'a mut Buffer, plan: &mut ReceivePlan<'a>) -> (usize, bool) {
        if self.padding_left > 0 || self.data_left == 0 {
            return (0, true);
        }
        let (mut planned, len) = (0, self.data_left.min(MAX_DESTINATION_BYTES));
        for (slice, len) in destination.io_slices_mut(self.offset, len).take(MAX_DESTINATION_SLICES) {
            planned += len;
            plan.push(slice);
        }
        (planned, planned == self.data_left)
    }

    /// Records that the kernel placed `n` bytes as planned, or in scratch memory if they are
    /// discarded.
    pub(crate) fn on_placed(&mut self, n: usize, destination: Option<&Buffer>) {
        if let (Some(digest), Some(destination)) = (&mut self.digest, destination) {
            destination.for_each_slice(self.offset, n, |slice| digest.update(slice));
        }
        self.offset += n;
        self.data_left -= n;
    }

    /// Data bytes that have not arrived.
    pub(crate) fn data_left(&self) -> usize {
        self.data_left
    }

    /// Whether the body is complete.
    pub(crate) fn is_whole(&self) -> bool {
        self.padding_left == 0 && self.data_left == 0 && self.digest_left == 0
    }

    /// Whether the data of a complete body matches its digest.
    pub(crate) fn is_digest_ok(&self) -> bool {
        self.digest.as_ref().is_none_or(|digest| digest.finish() == u32::from_le_bytes(self.received_digest))
    }

    /// Appends the bytes of a PDU with this layout that have arrived after its header; its data is in
    /// `destination`.
    pub(crate) fn copy_arrived(&self, layout: PduLayout, destination: &Buffer, bytes: &mut Vec<u8>) {
        let padding = usize::from(layout.padding).saturating_sub(self.padding_left);
        bytes.resize(bytes.len() + padding, 0);
        let len = (layout.data_len as usize).saturating_sub(self.data_left);
        destination.for_each_slice(self.offset - len, len, |slice| bytes.extend_from_slice(slice));
        if self.digest.is_some() && self.data_left == 0 {
            bytes.extend_from_slice(&self.received_digest[..DIGEST_LEN - self.digest_left]);
        }
    }

    /// Bytes of this PDU that have not arrived.
    pub(crate) fn bytes_left(&self) -> usize {
        self.padding_left + self.data_left + self.digest_left
    }

    /// Skips the next `len` bytes.
    pub(crate) fn skip(&mut self, len: usize) {
        self.padding_left = len;
    }

    fn take_data(&mut self, input: &[u8], destination: Option<&mut Buffer>) -> usize {
        let data = &input[..self.data_left.min(input.len())];
        if data.is_empty() {
            return 0;
        }
        if let Some(buffer) = destination {
            buffer.copy_in(self.offset, data);
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
        let mut body = Body::default();
        body.set_digested(true);
        let mut buffer = Buffer::contiguous(200);
        body.start(PduLayout { padding: 3, data_len: 100 }, 50);
        assert_eq!(body.take(b"pa", Some(&mut buffer)), 2);
        assert_eq!(body.take(&[&b"d"[..], &data[..30]].concat(), Some(&mut buffer)), 31);
        let mut plan = ReceivePlan::new();
        assert_eq!(body.plan(&mut buffer, &mut plan), (70, true));
        plan[0].copy_from_slice(&data[30..]);
        drop(plan);
        body.on_placed(70, Some(&buffer));
        assert!(!body.is_whole());
        let digest = crc32c(&data).to_le_bytes();
        assert_eq!(body.take(&digest[..1], Some(&mut buffer)), 1);
        assert_eq!(body.take(&[&digest[1..], b"next"].concat(), Some(&mut buffer)), 3);
        assert!(body.is_whole() && body.is_digest_ok());
        assert_eq!(buffer.to_vec()[50..150], data);
    }

    #[test]
    fn digests_copies_of_shared_memory() {
        let memory = isolane_shm::SharedMemory::create("isolane-test", 8192).unwrap();
        let data: Vec<u8> = (0..4000u32).map(|at| at as u8).collect();
        let mut body = Body::default();
        body.set_digested(true);
        let mut buffer = Buffer::in_shared_memory(&memory, 17, 4000).unwrap();
        body.start(PduLayout { padding: 0, data_len: 4000 }, 0);
        assert_eq!(body.take(&data[..30], Some(&mut buffer)), 30);
        let mut plan = ReceivePlan::new();
        assert_eq!(body.plan(&mut buffer, &mut plan), (3970, true));
        plan[0].copy_from_slice(&data[30..]);
        drop(plan);
        body.on_placed(3970, Some(&buffer));
        body.take(&crc32c(&data).to_le_bytes(), Some(&mut buffer));
        assert!(body.is_whole() && body.is_digest_ok());
        assert_eq!(buffer.to_vec(), data);
    }

    #[test]
    fn data_without_destination_is_skipped() {
        let mut body = Body::default();
        body.start(PduLayout { padding: 0, data_len: 10 }, 0);
        assert_eq!(body.take(&[1; 4], None), 4);
        assert_eq!(body.take(&[1; 100], None), 6);
        assert!(body.is_whole() && body.is_digest_ok());
    }
}
