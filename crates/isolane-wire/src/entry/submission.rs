//! The submission queue entry, 64 bytes (Base 1.4 §4.2).

use super::Sgl;
use crate::opcode::{AdminOpcode, FabricsType, IoOpcode};

bits! {
    /// Byte 1 of a command: fused operation and data pointer type.
    pub struct CommandFlags(u8) {
        /// FUSE: 00b is a normal command; Isolane fuses none.
        fuse / with_fuse: u8 = [1:0],
        /// PSDT: 01b (SGL) is the only legal value over Fabrics.
        psdt / with_psdt: u8 = [7:6],
    }
}

impl CommandFlags {
    /// A normal command with an SGL: the value of every command over Fabrics.
    pub const SGL: Self = Self(0x40);
}

layout! {
    @bare
    /// One command. The typed commands of [`crate::admin`], [`crate::io`], and [`crate::fabrics`]
    /// convert to and from it.
    #[derive(Copy, Default)]
    pub struct SubmissionEntry[64] {
        /// Opcode, see [`crate::opcode`].
        0 => opcode: u8,
        /// Fused operation and data pointer type.
        1 => flags: CommandFlags,
        /// Command identifier, chosen by the queue that submits.
        2 => cid: u16,
        /// Namespace identifier; for Fabrics commands its lowest byte is FCTYPE.
        4 => nsid: u32,
        /// Command dword 2.
        8 => cdw2: u32,
        /// Command dword 3.
        12 => cdw3: u32,
        /// Metadata pointer.
        16 => mptr: u64,
        /// Data pointer.
        24 => sgl: Sgl,
        /// Command dword 10.
        40 => cdw10: u32,
        /// Command dword 11.
        44 => cdw11: u32,
        /// Command dword 12.
        48 => cdw12: u32,
        /// Command dword 13.
        52 => cdw13: u32,
        /// Command dword 14.
        56 => cdw14: u32,
        /// Command dword 15.
        60 => cdw15: u32,
    }
}

const _: () = assert!(size_of::<SubmissionEntry>() <= 80);

impl SubmissionEntry {
    /// Creates a command with this opcode and namespace, an empty SGL, and zeroes otherwise.
    #[inline]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: CommandFlags::SGL, nsid, ..Self::default() }
    }

    /// Returns dwords 10 and 11 as one number: the starting LBA of most I/O commands.
    #[inline]
    pub fn cdw10_11(&self) -> u64 {
        u64::from(self.cdw11) << 32 | u64::from(self.cdw10)
    }

    /// Returns FCTYPE of a Fabrics command (byte 4).
    #[inline]
    pub fn fctype(&self) -> u8 {
        self.nsid.to_le_bytes()[0]
    }
}

impl From<AdminOpcode> for SubmissionEntry {
    #[inline]
    fn from(opcode: AdminOpcode) -> Self {
        Self::new(opcode.code(), 0)
    }
}

impl From<IoOpcode> for SubmissionEntry {
    #[inline]
    fn from(opcode: IoOpcode) -> Self {
        Self::new(opcode.code(), 0)
    }
}

impl From<FabricsType> for SubmissionEntry {
    fn from(fctype: FabricsType) -> Self {
        Self::new(AdminOpcode::Fabrics.code(), fctype.code().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_at_its_dword() {
        let mut bytes: [u8; 64] = core::array::from_fn(|index| index as u8);
        bytes[39] = 0x5b; // an SGL kind that keeps all of its bytes
        let entry = SubmissionEntry::decode(&bytes);
        assert_eq!((entry.opcode, entry.flags, entry.cid), (0, CommandFlags(1), 0x0302));
        assert_eq!((entry.nsid, entry.cdw2, entry.cdw3), (0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c));
        assert_eq!((entry.mptr, entry.fctype()), (0x1716_1514_1312_1110, 4));
        assert_eq!((entry.cdw10, entry.cdw11), (0x2b2a_2928, 0x2f2e_2d2c));
        assert_eq!((entry.cdw12, entry.cdw13), (0x3332_3130, 0x3736_3534));
        assert_eq!((entry.cdw14, entry.cdw15), (0x3b3a_3938, 0x3f3e_3d3c));
        assert_eq!(entry.cdw10_11(), 0x2f2e_2d2c_2b2a_2928);
        assert_eq!(entry.encode(), bytes);
    }

    #[test]
    fn flags_are_fuse_and_psdt() {
        assert_eq!(CommandFlags::SGL, CommandFlags(0).with_psdt(1));
        assert_eq!((CommandFlags(0x82).fuse(), CommandFlags(0x82).psdt()), (2, 2));
    }
}
