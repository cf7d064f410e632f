//! Received bytes of a lane with checksums: collects each segment, and checks it before it is used.
//!
//! Invariant: no byte of a segment is placed, and nothing of it is processed, before both checksums are right. A segment
//! that has arrived in part has changed nothing.

use std::io::IoSliceMut;
use std::ops::Range;

use isolane_connection::ReceivePlan;

use super::CHECKED_SEGMENT_BYTES;
use crate::wire::{CHECKSUM_BYTES, MAX_PREFIX_BYTES, Segment, SegmentError, SegmentHeader, checksum};

/// The receiving half of a lane with checksums.
pub(super) struct CheckedInput {
    buffer: Box<[u8]>,
    /// Bytes of the buffer that have arrived, and are not processed.
    unread: Range<usize>,
}

/// Why a lane with checksums cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckError {
    /// Bytes were changed on their way.
    Checksum,
    /// The peer has sent an invalid segment.
    Segment(SegmentError),
}

impl Default for CheckedInput {
    fn default() -> CheckedInput {
        CheckedInput { buffer: vec![0; BUFFER_BYTES].into(), unread: 0..0 }
    }
}

impl CheckedInput {
    /// See [`super::ReliableConnection::fill_receive_plan`].
    pub(super) fn fill_plan<'a>(&'a mut self, plan: &mut ReceivePlan<'a>) -> usize {
        // A segment fits into half of the buffer, so the unread part of one never fills it.
        if self.unread.start > 0 && self.unread.end > BUFFER_BYTES / 2 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let free = &mut self.buffer[self.unread.end..];
        let len = free.len();
        plan.push(IoSliceMut::new(free));
        len
    }

    /// Records received bytes.
    pub(super) fn received(&mut self, count: usize) {
        self.unread.end += count;
    }

    /// Returns the next segment that has arrived completely, and the place of its payload.
    pub(super) fn next_segment(&mut self) -> Result<Option<(Segment, Range<usize>)>, CheckError> {
        let unread = &self.buffer[self.unread.clone()];
        let Some(opcode) = unread.first() else {
            self.unread = 0..0;
            return Ok(None);
        };
        let Some(end_of_header) = checked(unread, 0, SegmentHeader::LEN)? else { return Ok(None) };
        // From here on, the header is as the peer has sent it.
        let prefix_len = Segment::prefix_len(*opcode).map_err(CheckError::Segment)?;
        let extension_len = prefix_len - SegmentHeader::LEN;
        let header = SegmentHeader::decode_prefix(unread);
        let length = header.map_or(0, |header| header.length);
        if length > CHECKED_SEGMENT_BYTES {
            let limit = CHECKED_SEGMENT_BYTES;
            return Err(CheckError::Segment(SegmentError::TooLong { length, limit }));
        }
        let content_len = extension_len + length as usize;
        let end =
            if content_len > 0 { checked(unread, end_of_header, content_len)? } else { Some(end_of_header) };
        let Some(end) = end else { return Ok(None) };
        let (mut prefix, payload_at) = ([0; MAX_PREFIX_BYTES], end_of_header + extension_len);
        prefix[..SegmentHeader::LEN].copy_from_slice(&unread[..SegmentHeader::LEN]);
        prefix[SegmentHeader::LEN..prefix_len].copy_from_slice(&unread[end_of_header..payload_at]);
        let segment =
            Segment::decode(&prefix[..prefix_len], CHECKED_SEGMENT_BYTES).map_err(CheckError::Segment)?;
        let start = self.unread.start + payload_at;
        self.unread.start += end;
        Ok(Some((segment, start..start + length as usize)))
    }

    /// Returns the payload of the last segment.
    pub(super) fn payload(&self, place: Range<usize>) -> &[u8] {
        &self.buffer[place]
    }

    /// Discards all unread bytes.
    pub(super) fn discard(&mut self) {
        self.unread = 0..0;
    }
}

/// Checks `len` bytes from `at` on against the checksum after them. Returns the offset of the byte after that, or `None`
/// if bytes are missing.
fn checked(bytes: &[u8], at: usize, len: usize) -> Result<Option<usize>, CheckError> {
    let end = at + len;
    let Some(found) = bytes.get(end..end + CHECKSUM_BYTES) else { return Ok(None) };
    if checksum(&bytes[at..end]) == found {
        Ok(Some(end + CHECKSUM_BYTES))
    } else {
        Err(CheckError::Checksum)
    }
}

/// Length of the buffer of a lane in bytes.
const BUFFER_BYTES: usize = 4 * CHECKED_SEGMENT_BYTES as usize;
const _: () = assert!(
    CHECKED_SEGMENT_BYTES as usize + MAX_PREFIX_BYTES + 2 * CHECKSUM_BYTES <= BUFFER_BYTES / 2,
    "a segment fits into half of the buffer"
);
