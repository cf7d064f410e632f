//! Limits of a volume that requests must fit.
//!
//! Invariant: the block size is a power of two, and every byte of the volume has an offset of 63 bits.

use isolane_memory::Buffer;

use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::request::{BlockRange, Request};

/// Limits for checking and splitting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoLimits {
    /// A power of two.
    pub block_bytes: u32,
    pub capacity_blocks: u64,
    /// Maximum number of blocks of one command.
    pub part_blocks: u32,
}

impl IoLimits {
    /// Takes the limits of a namespace.
    ///
    /// # Errors
    /// The namespace is not supported.
    pub(crate) fn new(namespace: &NamespaceInfo, info: &Info) -> Result<IoLimits, ConnectError> {
        let unsupported =
            |what: &str| Err(ConnectError::Unsupported(format!("namespace {} {what}", namespace.nsid)));
        if namespace.metadata_bytes != 0 {
            return unsupported("has blocks with metadata");
        }
        if !namespace.block_bytes.is_power_of_two() || !(512..=65_536).contains(&namespace.block_bytes) {
            return unsupported("has blocks that are not 512 bytes to 64 KiB long");
        }
        if namespace.len_bytes() > i64::MAX as u64 {
            return unsupported("has more bytes than a file can have");
        }
        let part_blocks = info.negotiated.max_transfer_bytes / namespace.block_bytes as usize;
        Ok(IoLimits {
            block_bytes: namespace.block_bytes,
            capacity_blocks: namespace.blocks,
            // NLB has 16 bits and is 0's based.
            part_blocks: part_blocks.clamp(1, 65_536) as u32,
        })
    }

    /// Limits commands to `bytes`, but at least one block.
    pub(crate) fn within(self, bytes: usize) -> IoLimits {
        let blocks = (bytes / self.block_bytes as usize).max(1) as u32;
        IoLimits { part_blocks: self.part_blocks.min(blocks), ..self }
    }

    /// Returns the number of commands for a range.
    #[inline]
    pub(crate) fn parts(&self, range: &BlockRange) -> u32 {
        if range.blocks <= u64::from(self.part_blocks) { 1 } else { self.many_parts(range) }
    }

    #[cold]
    fn many_parts(&self, range: &BlockRange) -> u32 {
        u32::try_from(range.blocks.div_ceil(u64::from(self.part_blocks))).unwrap_or(u32::MAX)
    }

    /// Checks a request and returns its blocks: an empty range for a flush or a deallocation.
    #[inline]
    pub(crate) fn check(&self, request: &Request) -> Result<BlockRange, RequestError> {
        let range = match request {
            Request::Read { lba, buffer } | Request::Write { lba, buffer, .. } => {
                BlockRange { lba: *lba, blocks: self.blocks_of(buffer)? }
            }
            Request::WriteZeroes { range, .. } => *range,
            Request::Deallocate { ranges } => {
                self.check_ranges(ranges)?;
                return Ok(BlockRange { lba: 0, blocks: 0 });
            }
            Request::Flush => return Ok(BlockRange { lba: 0, blocks: 0 }),
        };
        self.check_range(&range).map(|()| range)
    }

    /// Returns the number of blocks in a buffer.
    #[inline]
    fn blocks_of(&self, buffer: &Buffer) -> Result<u64, RequestError> {
        let bytes = buffer.len() as u64;
        if bytes == 0 {
            return Err(RequestError::Buffer("the buffer is empty; give it the length of the transfer"));
        }
        if !buffer.is_exclusive() {
            return Err(RequestError::Buffer("the buffer is shared; drop the other references first"));
        }
        // A power of two (see [`IoLimits::new`]): no division.
        let blocks = bytes >> self.block_bytes.trailing_zeros();
        if blocks << self.block_bytes.trailing_zeros() == bytes {
            Ok(blocks)
        } else {
            Err(RequestError::Unaligned { bytes, block_bytes: self.block_bytes })
        }
    }

    #[inline]
    fn check_range(&self, range: &BlockRange) -> Result<(), RequestError> {
        let capacity = self.capacity_blocks;
        match range.lba.checked_add(range.blocks) {
            Some(end) if end <= capacity && range.blocks > 0 => Ok(()),
            _ => Err(RequestError::OutOfRange { lba: range.lba, blocks: range.blocks, capacity }),
        }
    }

    /// Dataset Management accepts up to 256 ranges of 32-bit length.
    fn check_ranges(&self, ranges: &[BlockRange]) -> Result<(), RequestError> {
        let is_fit = |range: &BlockRange| range.blocks <= u64::from(u32::MAX);
        if ranges.is_empty() || ranges.len() > 256 || !ranges.iter().all(is_fit) {
            return Err(RequestError::InvalidRanges);
        }
        ranges.iter().try_for_each(|range| self.check_range(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_table::tests::LIMITS;

    fn read(lba: u64, blocks: usize) -> Request {
        Request::Read { lba, buffer: Buffer::contiguous(blocks * 512) }
    }

    #[test]
    fn rejects_requests_beyond_volume() {
        let error = |request: Request| LIMITS.check(&request).unwrap_err();
        assert!(matches!(error(read(999, 2)), RequestError::OutOfRange { .. }));
        assert!(matches!(error(read(u64::MAX, 1)), RequestError::OutOfRange { .. }));
        assert!(matches!(error(read(0, 0)), RequestError::Buffer(_)));
        let odd = Request::Read { lba: 0, buffer: Buffer::contiguous(100) };
        assert!(matches!(error(odd), RequestError::Unaligned { .. }));
        let shared = Buffer::contiguous(512);
        let _other = shared.share(0, 512);
        let request = Request::Write { lba: 0, buffer: shared, fua: false };
        assert!(matches!(error(request), RequestError::Buffer(_)));
    }

    #[test]
    fn deallocation_is_limited_like_its_command() {
        let parts = |ranges| LIMITS.check(&Request::Deallocate { ranges }).map(|range| LIMITS.parts(&range));
        let range = BlockRange { lba: 1, blocks: 2 };
        assert_eq!(parts(vec![range; 256]).unwrap(), 1);
        assert!(parts(vec![range; 257]).is_err());
        assert!(parts(vec![]).is_err());
        assert!(parts(vec![BlockRange { lba: 999, blocks: 2 }]).is_err());
    }
}
