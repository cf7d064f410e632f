//! Requests: decoding and checking a header.
//!
//! [`parse`] returns a command that is valid for the export, or the error to reply.

use isolane_memory::Buffer;
use isolane_volume::VolumeError;

use crate::export::{Export, MAX_PAYLOAD_BYTES};
use crate::handshake::Negotiated;
use crate::wire::{CommandCode, ErrorCode, RequestHeader, command_flag};

/// A command whose blocks exist.
#[derive(Debug)]
pub enum Command {
    /// Read blocks.
    Read {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// Write blocks.
    Write {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Data; empty until it has arrived.
        data: Buffer,
        /// Complete only when the data is durable.
        fua: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Free the space of blocks whose contents are no longer needed.
    Trim {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Complete only when the deallocation is durable.
        fua: bool,
    },
    /// Make blocks read as zeroes.
    WriteZeroes {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Complete only when the zeroes are durable.
        fua: bool,
        /// The space may be freed.
        deallocate: bool,
    },
    /// Report which blocks are allocated.
    BlockStatus {
        /// The first block.
        lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// Report the first extent only.
        one: bool,
    },
    /// Do nothing: a request of no bytes.
    Nothing,
}

/// A valid request.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A command, without its data.
    Command(Command),
    /// The client has ended the transmission.
    Disconnect,
}

/// An error reply: the code, and a message for people.
pub(crate) type Refusal = (ErrorCode, String);

/// Checks a request.
pub(crate) fn parse(
    header: &RequestHeader,
    export: &Export,
    negotiated: &Negotiated,
) -> Result<Parsed, Refusal> {
    let Some(code) = CommandCode::decode(header.command.0) else {
        return Err(invalid(format!("unknown command {}", header.command.0)));
    };
    let (info, flags) = (&export.info, header.flags.0);
    // FUA is valid for each command, because the export accepts it.
    let allowed = command_flag::FUA
        | match code {
            CommandCode::Read if negotiated.structured => command_flag::DF,
            CommandCode::WriteZeroes => command_flag::NO_HOLE,
            CommandCode::BlockStatus => command_flag::REQ_ONE,
            _ => 0,
        };
    if flags & !allowed != 0 {
        return Err(invalid(format!("flags {flags:#x} are invalid for {code}")));
    }
    match code {
        CommandCode::Disconnect => return Ok(Parsed::Disconnect),
        CommandCode::Flush if header.offset.0 == 0 && header.len.0 == 0 => {
            return Ok(Parsed::Command(Command::Flush));
        }
        CommandCode::Flush => return Err(invalid("a flush has no offset and no length".to_owned())),
        CommandCode::Write | CommandCode::WriteZeroes | CommandCode::Trim if info.read_only => {
            return Err((ErrorCode::NotPermitted, VolumeError::ReadOnly.to_string()));
        }
        CommandCode::Trim if !info.deallocate => {
            return Err(invalid("the volume cannot free blocks".to_owned()));
        }
        CommandCode::BlockStatus if !negotiated.has_allocation => {
            return Err(invalid("no metadata context is selected".to_owned()));
        }
        CommandCode::BlockStatus if header.len.0 == 0 => {
            return Err(invalid("a block status of no bytes".to_owned()));
        }
        _ => {}
    }
    let (lba, blocks) = locate(header, export, code)?;
    if blocks == 0 {
        return Ok(Parsed::Command(Command::Nothing));
    }
    let fua = flags & command_flag::FUA != 0;
    Ok(Parsed::Command(match code {
        CommandCode::Read => Command::Read { lba, blocks },
        CommandCode::Write => Command::Write { lba, blocks, data: Buffer::default(), fua },
        CommandCode::Trim => Command::Trim { lba, blocks, fua },
        CommandCode::WriteZeroes => {
            Command::WriteZeroes { lba, blocks, fua, deallocate: flags & command_flag::NO_HOLE == 0 }
        }
        CommandCode::BlockStatus => {
            Command::BlockStatus { lba, blocks, one: flags & command_flag::REQ_ONE != 0 }
        }
        CommandCode::Disconnect | CommandCode::Flush => unreachable!("both have returned"),
    }))
}

/// Returns the blocks of a request.
fn locate(header: &RequestHeader, export: &Export, code: CommandCode) -> Result<(u64, u64), Refusal> {
    let (offset, len) = (header.offset.0, u64::from(header.len.0));
    let has_data = matches!(code, CommandCode::Read | CommandCode::Write);
    if has_data && header.len.0 > MAX_PAYLOAD_BYTES {
        return Err(invalid(format!("{len} bytes in one request; use at most {MAX_PAYLOAD_BYTES}")));
    }
    let block_size = u64::from(export.info.block_size);
    if !offset.is_multiple_of(block_size) || !len.is_multiple_of(block_size) {
        return Err(invalid(format!("{len} bytes from {offset} are not blocks of {block_size} bytes")));
    }
    if offset.checked_add(len).is_none_or(|end| end > export.bytes()) {
        let code = match code {
            CommandCode::Write | CommandCode::WriteZeroes => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        return Err((code, format!("{len} bytes from {offset} are beyond the end at {}", export.bytes())));
    }
    Ok((offset / block_size, len / block_size))
}

fn invalid(message: String) -> Refusal {
    (ErrorCode::Invalid, message)
}

/// Returns the error code for an error of the volume.
pub(crate) fn error_code(error: &VolumeError) -> ErrorCode {
    match error {
        VolumeError::ReadOnly => ErrorCode::NotPermitted,
        VolumeError::NoSpace { .. } => ErrorCode::NoSpace,
        VolumeError::OutOfRange { .. } | VolumeError::WrongLength { .. } => ErrorCode::Invalid,
        VolumeError::Shrunk
        | VolumeError::Gone { .. }
        | VolumeError::SizeUnknown { .. }
        | VolumeError::ReadFailed { .. }
        | VolumeError::WriteFailed { .. }
        | VolumeError::ShortWrite { .. }
        | VolumeError::SyncFailed { .. } => ErrorCode::Io,
    }
}
