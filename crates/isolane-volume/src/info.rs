//! Size and features of a volume, and ranges of its blocks.

use crate::{Generation, Identity, VolumeError};

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl BlockRange {
    /// Whether two ranges, neither of them empty, have a block in common.
    #[inline]
    pub fn overlaps(self, other: BlockRange) -> bool {
        self.lba < other.lba.saturating_add(other.blocks) && other.lba < self.lba.saturating_add(self.blocks)
    }
}

/// Size and features of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Block size in bytes: 512 or 4,096.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Writes are rejected.
    pub read_only: bool,
    /// A power cut may lose a completed write without `fua` until the next flush.
    pub volatile_cache: bool,
    /// Deallocate has an effect.
    pub deallocate: bool,
    /// Deallocated blocks read as zeroes (DLFEAT).
    pub zeroes_after_deallocate: bool,
}

/// Consecutive blocks that are stored in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of blocks.
    pub blocks: u64,
    /// They use no space, and read as zeroes.
    pub is_hole: bool,
}

/// A condition of a volume while it is open, such as the progress of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Name of the volume or member.
    pub name: String,
    /// State, and the remedy if it needs one.
    pub text: String,
    /// Data is lost unless the operator acts.
    pub is_failure: bool,
}

/// Description of a volume, which does not change while the volume is open.
#[derive(Clone, Debug)]
pub struct VolumeDescription {
    /// Name for log lines: a path, or `mem:1G`.
    pub name: String,
    /// Size and features.
    pub info: VolumeInfo,
    /// Identity, stable across restarts if the volume is persistent.
    pub identity: Identity,
    /// Generation, which changes whenever completed writes may have been lost. `None` if it is not known: a host
    /// then cannot tell a restart from a network break.
    pub generation: Option<Generation>,
}

impl VolumeInfo {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Checks that a range of blocks exists and returns its offset and length in bytes.
    #[inline]
    pub(crate) fn locate(&self, lba: u64, blocks: u64) -> Result<(u64, u64), VolumeError> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.blocks) {
            return Err(VolumeError::OutOfRange { lba, blocks, volume_blocks: self.blocks });
        }
        let block_size = u64::from(self.block_size);
        Ok((lba * block_size, blocks * block_size))
    }
}

/// Supported block sizes, in bytes.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];
