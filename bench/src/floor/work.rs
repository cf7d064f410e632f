//! The four shapes of traffic and the bytes each header has.

use serde::Serialize;

/// CapsuleCmd: the 8-byte common header and the 64-byte submission entry.
pub const COMMAND_BYTES: usize = 72;
/// C2HData, H2CData, R2T headers and CapsuleResp all have 24 bytes.
pub const HEADER_BYTES: usize = 24;

/// What one operation carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// 72 bytes out, 24 + 4,096 back.
    Read4k,
    /// 72 + 4,096 bytes out in one capsule, 24 back.
    Write4k,
    /// 72 bytes out, 24 + 131,072 back.
    Read128k,
    /// 72 bytes out, 24 back (R2T), 24 + 131,072 out, 24 back.
    Write128k,
}

impl Work {
    /// Payload of one operation.
    pub fn block_bytes(self) -> usize {
        match self {
            Work::Read4k | Work::Write4k => 4 << 10,
            Work::Read128k | Work::Write128k => 128 << 10,
        }
    }

    /// How many blocks the working set holds.
    pub fn blocks(self) -> usize {
        super::WORKING_SET_BYTES / self.block_bytes()
    }
}

/// A command as the floor needs it: its kind in byte 0, the block's index where an NVMe read has its SLBA.
pub fn encode_command(command: &mut [u8], block: usize) {
    command[0] = COMMAND_PDU;
    command[48..56].copy_from_slice(&(block as u64).to_le_bytes());
}

/// A header that is nothing but its PDU type.
pub const fn header(kind: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header
}

/// The block that a command names.
pub fn decode_block(command: &[u8]) -> usize {
    u64::from_le_bytes(command[48..56].try_into().expect("eight bytes")) as usize
}

/// PDU type of a command capsule.
pub const COMMAND_PDU: u8 = 0x04;
/// PDU type of data from host to controller.
pub const H2C_DATA_PDU: u8 = 0x06;
/// PDU type of a response capsule.
pub const RESPONSE_PDU: u8 = 0x05;
/// PDU type of data from controller to host.
pub const C2H_DATA_PDU: u8 = 0x07;
/// PDU type of a request for write data.
pub const R2T_PDU: u8 = 0x09;
