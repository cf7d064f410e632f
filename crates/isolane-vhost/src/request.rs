//! Requests: a chain becomes a command to the volume, or a status.
//!
//! Invariant: a command addresses only blocks that exist, and has a bounded length.

use isolane_layout::layout;
use isolane_volume::BlockRange;
use smallvec::SmallVec;

use crate::chain::{Chain, ChainError};
use crate::device::{Device, MAX_DISCARD_RANGES, MAX_PAYLOAD_BYTES, MAX_RANGE_SECTORS, SECTOR_BYTES};
use crate::memory::GuestBuffer;

layout! {
    /// The start of a request.
    pub struct BlockHeader[16] {
        /// A [`request_type`].
        0 => kind: u32,
        /// Offset in sectors.
        8 => sector: u64,
    }
}

layout! {
    /// A range to discard or to zero.
    pub struct RangeSegment[16] {
        /// Offset in sectors.
        0 => sector: u64,
        /// Length in sectors.
        8 => sectors: u32,
        /// [`UNMAP`], or 0.
        12 => flags: u32,
    }
}

/// Codes of requests.
pub mod request_type {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u32 = 4;
    /// Read the serial number.
    pub const GET_ID: u32 = 8;
    /// Free the space of ranges.
    pub const DISCARD: u32 = 11;
    /// Zero a range.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Flag of a range: zeroed space can be freed.
pub const UNMAP: u32 = 1;

/// A valid request.
#[derive(Debug)]
pub enum Command {
    /// Read blocks.
    Read {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Destination of the data.
        data: GuestBuffer,
    },
    /// Write blocks.
    Write {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// The data.
        data: GuestBuffer,
    },
    /// Make all completed writes durable.
    Flush,
    /// Free the space of ranges.
    Discard(SmallVec<[BlockRange; 1]>),
    /// Zero a range.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The space may be freed.
        deallocate: bool,
    },
    /// Read the serial number.
    Id(GuestBuffer),
}

impl Command {
    /// Returns the size of the data of a read or a write.
    pub(crate) fn data_bytes(&self) -> usize {
        match self {
            Command::Read { data, .. } | Command::Write { data, .. } => data.len(),
            Command::Flush | Command::Discard(_) | Command::WriteZeroes { .. } | Command::Id(_) => 0,
        }
    }
}

/// Status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// The request failed.
    IoError = 1,
    /// The device does not know the request.
    Unsupported = 2,
}

/// A request that fails without the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// The status.
    pub status: Status,
    /// The rule that the driver violated.
    pub reason: &'static str,
}

const fn io_error(reason: &'static str) -> Rejection {
    Rejection { status: Status::IoError, reason }
}

/// The destination of the status of a request.
#[derive(Debug)]
pub(crate) struct Reply {
    status: GuestBuffer,
    /// Length of the data before the status.
    data_len: usize,
}

impl Reply {
    /// Writes the status. Returns the number of bytes that the device has written.
    pub fn finish(&self, status: Status) -> u32 {
        self.status.copy_in(0, &[status as u8]);
        let data = if status == Status::Ok { self.data_len } else { 0 };
        data as u32 + 1
    }
}

/// Parses a chain, with header, data, and status in any framing.
pub(crate) fn parse(
    chain: Chain,
    device: &Device,
) -> Result<(Reply, Result<Command, Rejection>), ChainError> {
    let Chain { mut readable, mut writable } = chain;
    if readable.len() < BlockHeader::LEN || writable.is_empty() {
        return Err(ChainError::TooShort { readable: readable.len(), writable: writable.len() });
    }
    let status = writable.split_off(writable.len() - 1);
    let payload = readable.split_off(BlockHeader::LEN);
    let mut header = [0; BlockHeader::LEN];
    readable.copy_out(0, &mut header);
    let reply = Reply { status, data_len: writable.len() };
    Ok((reply, command(&BlockHeader::decode(&header), payload, writable, device)))
}

fn command(
    header: &BlockHeader,
    readable: GuestBuffer,
    writable: GuestBuffer,
    device: &Device,
) -> Result<Command, Rejection> {
    match header.kind {
        request_type::IN => {
            let BlockRange { lba, blocks } = transfer(header.sector, &writable, device)?;
            Ok(Command::Read { lba, blocks, data: writable })
        }
        request_type::OUT => {
            reject_read_only(device)?;
            let BlockRange { lba, blocks } = transfer(header.sector, &readable, device)?;
            Ok(Command::Write { lba, blocks, data: readable })
        }
        request_type::FLUSH => Ok(Command::Flush),
        request_type::GET_ID => Ok(Command::Id(writable)),
        request_type::DISCARD => {
            reject_read_only(device)?;
            discard(&readable, device)
        }
        request_type::WRITE_ZEROES => {
            reject_read_only(device)?;
            write_zeroes(&readable, device)
        }
        _ => Err(Rejection { status: Status::Unsupported, reason: "an unknown type of request" }),
    }
}

fn reject_read_only(device: &Device) -> Result<(), Rejection> {
    if device.info.read_only { Err(io_error("a change of a read-only volume")) } else { Ok(()) }
}

/// Returns the blocks of a read or write.
fn transfer(sector: u64, data: &GuestBuffer, device: &Device) -> Result<BlockRange, Rejection> {
    if data.is_empty() || data.len() > MAX_PAYLOAD_BYTES as usize {
        return Err(io_error("no data, or more than the device accepts"));
    }
    if !data.len().is_multiple_of(SECTOR_BYTES as usize) {
        return Err(io_error("the length of the data is not a multiple of 512"));
    }
    blocks(sector, data.len() as u64 / u64::from(SECTOR_BYTES), device)
}

/// Converts sectors to blocks that exist.
fn blocks(sector: u64, sectors: u64, device: &Device) -> Result<BlockRange, Rejection> {
    let block_sectors = u64::from(device.info.block_size / SECTOR_BYTES);
    if !sector.is_multiple_of(block_sectors) || !sectors.is_multiple_of(block_sectors) {
        return Err(io_error("the request is not aligned to the block size"));
    }
    let range = BlockRange { lba: sector / block_sectors, blocks: sectors / block_sectors };
    match range.lba.checked_add(range.blocks) {
        Some(end) if end <= device.info.blocks => Ok(range),
        _ => Err(io_error("the request exceeds the volume")),
    }
}

fn discard(data: &GuestBuffer, device: &Device) -> Result<Command, Rejection> {
    if !device.info.deallocate {
        return Err(Rejection { status: Status::Unsupported, reason: "the volume cannot discard" });
    }
    let segments = ranges(data, MAX_DISCARD_RANGES as usize)?;
    let ranges = segments.iter().map(|segment| match segment.flags {
        0 => range(segment, device),
        _ => Err(Rejection { status: Status::Unsupported, reason: "unknown flags of a range" }),
    });
    Ok(Command::Discard(ranges.collect::<Result<_, _>>()?))
}

fn write_zeroes(data: &GuestBuffer, device: &Device) -> Result<Command, Rejection> {
    let segments = ranges(data, 1)?;
    let [segment] = &segments[..] else { return Err(io_error("more ranges than the device accepts")) };
    if segment.flags & !UNMAP != 0 {
        return Err(Rejection { status: Status::Unsupported, reason: "unknown flags of a range" });
    }
    Ok(Command::WriteZeroes { range: range(segment, device)?, deallocate: segment.flags & UNMAP != 0 })
}

/// Reads 1 to `max_count` ranges.
fn ranges(data: &GuestBuffer, max_count: usize) -> Result<SmallVec<[RangeSegment; 1]>, Rejection> {
    if data.is_empty() || !data.len().is_multiple_of(RangeSegment::LEN) {
        return Err(io_error("the data is not a list of ranges"));
    }
    let count = data.len() / RangeSegment::LEN;
    if count > max_count {
        return Err(io_error("more ranges than the device accepts"));
    }
    let segments = (0..count).map(|index| {
        let mut bytes = [0; RangeSegment::LEN];
        data.copy_out(index * RangeSegment::LEN, &mut bytes);
        RangeSegment::decode(&bytes)
    });
    Ok(segments.collect())
}

fn range(segment: &RangeSegment, device: &Device) -> Result<BlockRange, Rejection> {
    if segment.sectors == 0 || segment.sectors > MAX_RANGE_SECTORS {
        return Err(io_error("an empty range, or one longer than the device accepts"));
    }
    blocks(segment.sector, segment.sectors.into(), device)
}
