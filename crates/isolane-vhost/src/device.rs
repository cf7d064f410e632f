//! The virtio block device as a guest sees it: features, limits, and configuration space (virtio 1.2, section 5.2).

use isolane_layout::layout;
use isolane_volume::{Identity, VolumeInfo};
use vhost::vhost_user::message::VhostUserVirtioFeatures;

layout! {
    /// The configuration space.
    pub struct BlockConfig[60] {
        /// Size in sectors of 512 bytes.
        0 => capacity: u64,
        /// Maximum length of a descriptor, in bytes.
        8 => size_max: u32,
        /// Maximum number of descriptors with data in a request.
        12 => seg_max: u32,
        /// Block size in bytes.
        20 => blk_size: u32,
        /// Blocks in a physical block, as a power of two.
        24 => physical_block_exp: u8,
        /// Maximum number of queues.
        34 => num_queues: u16,
        /// Maximum number of sectors in a range to discard.
        36 => max_discard_sectors: u32,
        /// Maximum number of ranges in a request to discard.
        40 => max_discard_seg: u32,
        /// Alignment of a range to discard, in sectors.
        44 => discard_sector_alignment: u32,
        /// Maximum number of sectors in a range to zero.
        48 => max_write_zeroes_sectors: u32,
        /// Maximum number of ranges in a request to zero.
        52 => max_write_zeroes_seg: u32,
        /// Whether zeroed space can be freed.
        56 => write_zeroes_may_unmap: u8,
    }
}

/// A volume as a virtio block device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Size and features of the volume.
    pub info: VolumeInfo,
    /// Serial number.
    pub id: [u8; ID_BYTES],
    /// Maximum number of queues of one guest.
    pub max_queues: u16,
}

impl Device {
    /// Describes a volume.
    pub fn new(info: VolumeInfo, identity: &Identity, max_queues: u16) -> Device {
        let digits = identity.uuid.simple().to_string();
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&digits.as_bytes()[..ID_BYTES]);
        Device { info, id, max_queues }
    }

    /// Returns the features that a driver can use.
    pub fn features(&self) -> u64 {
        let optional = [
            (self.info.read_only, feature::READ_ONLY),
            (!self.info.read_only, feature::WRITE_ZEROES),
            (!self.info.read_only && self.info.deallocate, feature::DISCARD),
        ];
        optional.iter().filter(|(is_set, _)| *is_set).fold(ALWAYS, |features, (_, bit)| features | bit)
    }

    /// Returns a part of the configuration space; `None` if it is outside.
    pub fn config(&self, offset: u32, len: u32) -> Option<Vec<u8>> {
        let mut space = [0; MAX_CONFIG_BYTES];
        let block_sectors = self.info.block_size / SECTOR_BYTES;
        let config = BlockConfig {
            capacity: self.info.bytes() / u64::from(SECTOR_BYTES),
            size_max: SIZE_MAX,
            seg_max: SEG_MAX,
            blk_size: self.info.block_size,
            physical_block_exp: (PREFERRED_BYTES / self.info.block_size).checked_ilog2().unwrap_or(0) as u8,
            num_queues: self.max_queues,
            max_discard_sectors: MAX_RANGE_SECTORS,
            max_discard_seg: MAX_DISCARD_RANGES,
            discard_sector_alignment: block_sectors,
            max_write_zeroes_sectors: MAX_RANGE_SECTORS,
            max_write_zeroes_seg: 1,
            write_zeroes_may_unmap: self.info.deallocate.into(),
        };
        let encoded = config.encode();
        space[..encoded.len()].copy_from_slice(&encoded);
        let (start, len) = (offset as usize, len as usize);
        space.get(start..)?.get(..len).map(<[u8]>::to_vec)
    }
}

/// Bits of the features.
pub mod feature {
    /// The length of a descriptor is limited.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The number of descriptors is limited.
    pub const SEG_MAX: u64 = 1 << 2;
    /// Writes are rejected.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The block size is in the configuration.
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// Completed writes need a flush. A driver without it expects each write to be durable.
    pub const FLUSH: u64 = 1 << 9;
    /// The physical block size is in the configuration.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// There can be several queues.
    pub const MULTIQUEUE: u64 = 1 << 12;
    /// Space can be discarded.
    pub const DISCARD: u64 = 1 << 13;
    /// Ranges can be zeroed.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor can refer to a table of descriptors.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// Each side publishes the next index for which it needs a notification.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// Virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
}

const ALWAYS: u64 = feature::SIZE_MAX
    | feature::SEG_MAX
    | feature::BLOCK_SIZE
    | feature::FLUSH
    | feature::TOPOLOGY
    | feature::MULTIQUEUE
    | feature::INDIRECT_DESCRIPTORS
    | feature::EVENT_INDEX
    | feature::VERSION_1
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Unit of offsets and lengths in requests.
pub const SECTOR_BYTES: u32 = 512;
/// Length of the serial number.
pub const ID_BYTES: usize = 20;
/// Maximum number of queues of one guest, if the process can have enough descriptors.
pub const MAX_QUEUES: u16 = 256;
/// Maximum number of descriptors of a queue.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Maximum number of ranges in a request to discard.
pub const MAX_DISCARD_RANGES: u32 = 64;
/// Maximum number of sectors in a range: 2 GiB.
pub const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Descriptors with data of one request: with header and status, the size of QEMU's queues.
const SEG_MAX: u32 = 126;
const SIZE_MAX: u32 = 256 << 10;
/// Maximum data of a read or a write, in bytes.
pub const MAX_PAYLOAD_BYTES: u32 = SEG_MAX * SIZE_MAX;
/// Alignment of fast requests: a page of a memory volume, and of the page cache.
const PREFERRED_BYTES: u32 = 4096;
/// Size of the configuration space in the protocol.
const MAX_CONFIG_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(block_size: u32, read_only: bool) -> Device {
        let info = VolumeInfo {
            block_size,
            blocks: 1 << 12,
            read_only,
            volatile_cache: true,
            deallocate: true,
            zeroes_after_deallocate: true,
        };
        Device::new(info, &Identity::derived(b"disk"), MAX_QUEUES)
    }

    #[test]
    fn describes_the_volume() {
        let config = BlockConfig::decode_prefix(&device(4096, false).config(0, 60).unwrap()).unwrap();
        assert_eq!((config.capacity, config.blk_size, config.physical_block_exp), (8 << 12, 4096, 0));
        assert_eq!((config.discard_sector_alignment, config.num_queues), (8, 256));
        let device = device(512, true);
        assert_eq!(device.config(24, 1), Some(vec![3]));
        assert_eq!(device.config(50, 206).map(|bytes| bytes.len()), Some(206));
        for (offset, len) in [(0, 257), (256, 1), (257, 0), (u32::MAX, u32::MAX)] {
            assert_eq!(device.config(offset, len), None);
        }
        assert!(device.id.iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn read_only_volume_offers_no_changes() {
        let changes = feature::DISCARD | feature::WRITE_ZEROES;
        assert_eq!(device(512, false).features() & (changes | feature::READ_ONLY), changes);
        assert_eq!(device(512, true).features() & (changes | feature::READ_ONLY), feature::READ_ONLY);
    }
}
