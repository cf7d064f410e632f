//! The export: what a client can learn about the volume.

use isolane_volume::VolumeInfo;

use crate::wire::export_flag;

/// Maximum data of a read or a write, in bytes.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;
/// Alignment of fast requests: a page of a memory volume, and of the page cache.
const PREFERRED_BYTES: u32 = 4096;

/// A volume as clients see it.
#[derive(Clone, Debug)]
pub struct Export {
    /// Name by which clients select it. The empty name selects it also.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Size and features of the volume.
    pub info: VolumeInfo,
}

impl Export {
    /// Returns `true` if a client that sends `name` means this export.
    pub fn has_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.info.bytes()
    }

    /// Returns the alignment of fast requests, in bytes.
    pub fn preferred_bytes(&self) -> u32 {
        PREFERRED_BYTES.max(self.info.block_size)
    }

    /// Returns the [`export_flag`]s for a connection.
    pub fn flags(&self, has_structured_replies: bool) -> u16 {
        // All connections use one volume, whose flush covers all completed writes.
        let always = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::CAN_MULTI_CONN;
        let optional = [
            (self.info.read_only, export_flag::READ_ONLY),
            (!self.info.read_only, export_flag::SEND_WRITE_ZEROES),
            (!self.info.read_only && self.info.deallocate, export_flag::SEND_TRIM),
            (has_structured_replies, export_flag::SEND_DF),
        ];
        optional.iter().filter(|(is_set, _)| *is_set).fold(always, |flags, (_, flag)| flags | flag)
    }
}
