//! The four kinds of traffic and the bytes of their headers.

use std::io;

use super::memory::Block;
use crate::socket::{COMMAND_PDU, HEADER_BYTES};

/// Payload and direction of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Work {
    /// Sends 72 bytes, receives 24 + 4,096
    Read4k,
    /// Sends 72 + 4,096 bytes in one capsule, receives 24
    Write4k,
    /// Sends 72 bytes, receives 24 + 131,072
    Read128k,
    /// Sends 72 bytes, receives 24 (R2T), sends 24 + 131,072, receives 24
    Write128k,
}

impl Work {
    /// Returns the payload of one operation.
    pub fn block_bytes(self) -> usize {
        match self {
            Work::Read4k | Work::Write4k => 4 << 10,
            Work::Read128k | Work::Write128k => 128 << 10,
        }
    }

    /// Returns the number of blocks in the working set.
    pub fn blocks(self) -> usize {
        super::WORKING_SET_BYTES / self.block_bytes()
    }
}

/// The target's end of a connection of one kind of traffic.
pub trait TargetConn {
    /// Receives once, and sends all replies together.
    fn turn(&mut self, served: &mut [Block]) -> io::Result<()>;
}

/// Encodes the fields that the floor needs: type in byte 0, and block index where an NVMe read has its SLBA.
pub fn encode_command(command: &mut [u8], block: usize) {
    command[0] = COMMAND_PDU;
    command[48..56].copy_from_slice(&(block as u64).to_le_bytes());
}

/// Returns a header with only a PDU type.
pub const fn header(kind: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header
}

/// Returns the block index of a command.
pub fn decode_block(command: &[u8]) -> usize {
    u64::from_le_bytes(command[48..56].try_into().expect("eight bytes")) as usize
}

/// PDU type of data from host to controller.
pub const H2C_DATA_PDU: u8 = 0x06;
/// PDU type of a request for write data.
pub const R2T_PDU: u8 = 0x09;
