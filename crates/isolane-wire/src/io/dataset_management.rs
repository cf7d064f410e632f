//! Dataset Management and its ranges (Base 1.4 §6.7).

use crate::opcode::IoOpcode;

command! {
    /// Dataset Management; its data is a list of [`DsmRange`]s.
    pub struct DatasetManagementCommand: IoOpcode::DatasetManagement => {
        /// Namespace.
        nsid[31:0] => nsid: u32,
        /// NR: ranges, 0's based.
        cdw10[7:0] => nr: u8,
        /// AD: deallocate the ranges.
        cdw11[2:2] => deallocate: bool,
        /// IDW: the ranges will be written as a whole.
        cdw11[1:1] => integral_write: bool,
        /// IDR: the ranges will be read as a whole.
        cdw11[0:0] => integral_read: bool,
    }
}

impl DatasetManagementCommand {
    /// Maximum ranges per command.
    pub const MAX_RANGES: usize = 256;

    /// Returns the number of ranges, 1 to 256.
    pub fn ranges(&self) -> usize {
        usize::from(self.nr) + 1
    }

    /// Returns the length of the command's data in bytes.
    pub fn data_len(&self) -> u32 {
        (self.ranges() * DsmRange::LEN) as u32
    }
}

layout! {
    /// One range of logical blocks.
    #[derive(Copy, Hash)]
    pub struct DsmRange[16] {
        /// Context attributes: hints.
        0 => attributes: u32,
        /// Length in logical blocks; not 0's based.
        4 => blocks: u32,
        /// Starting LBA.
        8 => slba: u64,
    }
}

impl DsmRange {
    /// Decodes the complete ranges in `data`.
    pub fn decode_all(data: &[u8]) -> impl Iterator<Item = Self> + '_ {
        data.as_chunks().0.iter().map(Self::decode)
    }
}
