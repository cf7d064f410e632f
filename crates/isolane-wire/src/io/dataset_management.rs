//! Dataset Management and its ranges (Base 1.4 §6.7).

use crate::{SubmissionEntry, opcode::IoOpcode};

/// Dataset Management; its data is a list of [`DsmRange`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DatasetManagementCommand {
    /// Namespace.
    pub nsid: u32,
    /// NR: ranges, 0's based.
    pub nr: u8,
    /// AD: deallocate the ranges.
    pub deallocate: bool,
    /// IDW: the ranges will be written as a whole.
    pub integral_write: bool,
    /// IDR: the ranges will be read as a whole.
    pub integral_read: bool,
}

bits! {
    /// Dword 10.
    pub struct Dword10(u32) {
        /// NR.
        nr / with_nr: u8 = [7:0],
    }
}

bits! {
    /// Dword 11.
    pub struct Dword11(u32) {
        /// IDR.
        idr / with_idr: bool = [0:0],
        /// IDW.
        idw / with_idw: bool = [1:1],
        /// AD.
        ad / with_ad: bool = [2:2],
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

    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: Dword10(0).with_nr(self.nr).0,
            cdw11: Dword11(0)
                .with_idr(self.integral_read)
                .with_idw(self.integral_write)
                .with_ad(self.deallocate)
                .0,
            ..SubmissionEntry::new(IoOpcode::DatasetManagement.code(), self.nsid)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword11 = Dword11(entry.cdw11);
        Self {
            nsid: entry.nsid,
            nr: Dword10(entry.cdw10).nr(),
            deallocate: dword11.ad(),
            integral_write: dword11.idw(),
            integral_read: dword11.idr(),
        }
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
