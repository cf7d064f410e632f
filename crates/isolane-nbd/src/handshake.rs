//! The handshake: flags and options of the client, without I/O.
//!
//! Every option but [`OptionCode::ExportName`] gets at least one reply. An option that is wrong gets an error with a
//! message, and the client can send others.

use isolane_connection::SendQueue;
use smallvec::SmallVec;

use crate::export::{Export, MAX_PAYLOAD_BYTES};
use crate::wire::{
    BASE_ALLOCATION, Be, BlockSizeInformation, ExportInformation, ExportReply, GREETING_MAGIC, Greeting,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode, OptionReply, ReplyCode, handshake_flag, information,
};

/// Result of the handshake, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Negotiated {
    /// Omit the zeroes of [`OptionCode::ExportName`].
    no_zeroes: bool,
    /// Reply in chunks.
    pub structured: bool,
    /// The client can request extents.
    pub has_allocation: bool,
}

/// State after an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The client can send another option.
    Options,
    /// Requests follow.
    Transmission,
    /// The client has ended the handshake, or named an unknown export without a way to report it.
    Close,
}

/// An error reply: the code, and a message for people.
type Refusal = (ReplyCode, String);

/// Queues the first message.
pub(crate) fn greet(output: &mut SendQueue) {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let greeting = Greeting { magic: Be(GREETING_MAGIC), option_magic: Be(OPTION_MAGIC), flags: Be(flags) };
    output.push::<{ Greeting::LEN }>(&greeting.encode(), None);
}

/// Queues an error reply to an option.
pub(crate) fn refuse(output: &mut SendQueue, option: u32, (code, message): Refusal) {
    reply(output, option, code, message.as_bytes());
}

fn reply(output: &mut SendQueue, option: u32, code: ReplyCode, data: &[u8]) {
    let header = OptionReply {
        magic: Be(OPTION_REPLY_MAGIC),
        option: Be(option),
        reply: Be(code.code()),
        len: Be(data.len() as u32),
    };
    output.push::<{ OptionReply::LEN }>(&header.encode(), None);
    output.push::<0>(data, None);
}

impl Negotiated {
    /// Takes the flags of the client. Returns `false` if one is unknown.
    pub fn handle_flags(&mut self, flags: u32) -> bool {
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        flags & !u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES) == 0
    }

    /// Handles an option with its complete data.
    pub fn handle_option(
        &mut self,
        option: u32,
        data: &[u8],
        export: &Export,
        output: &mut SendQueue,
    ) -> Next {
        let Some(code) = OptionCode::decode(option) else {
            refuse(output, option, unsupported(option));
            return Next::Options;
        };
        match code {
            OptionCode::ExportName if export.has_name(data) => {
                let flags = export.flags(self.structured);
                let header = ExportReply { bytes: Be(export.bytes()), flags: Be(flags) };
                output.push::<{ ExportReply::LEN }>(&header.encode(), None);
                output.push::<0>(if self.no_zeroes { &[] } else { &[0; ZEROES] }, None);
                return Next::Transmission;
            }
            OptionCode::ExportName => return Next::Close,
            OptionCode::Abort => {
                finish(output, option, Ok(()));
                return Next::Close;
            }
            OptionCode::StartTls => {
                let message = "this server has no TLS; use a Unix socket, or a tunnel".to_owned();
                refuse(output, option, (ReplyCode::Unsupported, message));
            }
            OptionCode::StructuredReply => {
                self.structured |= finish(output, option, expect_no_data(data));
            }
            OptionCode::List => {
                let listed = expect_no_data(data).map(|()| {
                    let name = export.name.as_bytes();
                    let len = (name.len() as u32).to_be_bytes();
                    reply(output, option, ReplyCode::Server, &[&len[..], name].concat());
                });
                finish(output, option, listed);
            }
            OptionCode::Info | OptionCode::Go => {
                let informed = self.inform(option, data, export, output);
                if finish(output, option, informed) && code == OptionCode::Go {
                    return Next::Transmission;
                }
            }
            OptionCode::ListMetaContext | OptionCode::SetMetaContext => {
                let is_set = code == OptionCode::SetMetaContext;
                let found = self.find_context(data, export, is_set);
                if is_set {
                    self.has_allocation = found == Ok(true);
                }
                if found == Ok(true) {
                    let id = if is_set { ALLOCATION_ID } else { 0 };
                    let content = [&id.to_be_bytes()[..], BASE_ALLOCATION].concat();
                    reply(output, option, ReplyCode::MetaContext, &content);
                }
                finish(output, option, found.map(drop));
            }
        }
        Next::Options
    }

    /// Queues the information about the export that a client has selected.
    fn inform(
        &self,
        option: u32,
        data: &[u8],
        export: &Export,
        output: &mut SendQueue,
    ) -> Result<(), Refusal> {
        let mut data = Reader(data);
        let name = data.string()?;
        let count = data.u16()?;
        let requested: SmallVec<[u16; 8]> = (0..count).map(|_| data.u16()).collect::<Result<_, _>>()?;
        data.end()?;
        check_name(export, name)?;
        let header = ExportInformation {
            kind: Be(information::EXPORT),
            bytes: Be(export.bytes()),
            flags: Be(export.flags(self.structured)),
        };
        reply(output, option, ReplyCode::Info, &header.encode());
        let sizes = BlockSizeInformation {
            kind: Be(information::BLOCK_SIZE),
            min: Be(export.info.block_size),
            preferred: Be(export.preferred_bytes()),
            max_payload: Be(MAX_PAYLOAD_BYTES),
        };
        reply(output, option, ReplyCode::Info, &sizes.encode());
        let texts = [(information::NAME, &export.name), (information::DESCRIPTION, &export.description)];
        for (kind, text) in texts.into_iter().filter(|(kind, _)| requested.contains(kind)) {
            reply(output, option, ReplyCode::Info, &[&kind.to_be_bytes()[..], text.as_bytes()].concat());
        }
        Ok(())
    }

    /// Returns whether the queries of a client match `base:allocation`.
    fn find_context(&self, data: &[u8], export: &Export, is_set: bool) -> Result<bool, Refusal> {
        if !self.structured {
            return Err(invalid("metadata contexts need structured replies; request these first"));
        }
        let mut data = Reader(data);
        let name = data.string()?;
        let count = data.u32()?;
        let mut is_found = count == 0 && !is_set;
        for _ in 0..count {
            let query = data.string()?;
            if !query.contains(&b':') {
                return Err(invalid("a query has no namespace; use base:allocation"));
            }
            is_found |= query == BASE_ALLOCATION || (!is_set && query == b"base:");
        }
        data.end()?;
        check_name(export, name)?;
        Ok(is_found)
    }
}

/// Queues the final reply. Returns `true` if it is a success.
fn finish(output: &mut SendQueue, option: u32, result: Result<(), Refusal>) -> bool {
    let is_success = result.is_ok();
    match result {
        Ok(()) => reply(output, option, ReplyCode::Ack, b""),
        Err(refusal) => refuse(output, option, refusal),
    }
    is_success
}

/// Returns the error of an option whose data is longer than [`MAX_OPTION_BYTES`].
pub(crate) fn too_big(option: u32) -> Refusal {
    match OptionCode::decode(option) {
        Some(code) => (ReplyCode::TooBig, format!("{code} with more than {MAX_OPTION_BYTES} bytes")),
        None => unsupported(option),
    }
}

fn unsupported(option: u32) -> Refusal {
    (ReplyCode::Unsupported, format!("unknown option {option}"))
}

fn invalid(message: &str) -> Refusal {
    (ReplyCode::Invalid, message.to_owned())
}

fn expect_no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err(invalid("the option has data; send none")) }
}

fn check_name(export: &Export, name: &[u8]) -> Result<(), Refusal> {
    if export.has_name(name) {
        return Ok(());
    }
    let known = if export.name.is_empty() { "the empty name" } else { export.name.as_str() };
    Err((ReplyCode::UnknownExport, format!("no such export; use {known}")))
}

/// Data of an option that is not decoded yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let (taken, tail) = self.0.split_at_checked(len).ok_or_else(|| invalid("the data is too short"))?;
        self.0 = tail;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes a string after its length.
    fn string(&mut self) -> Result<&'a [u8], Refusal> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(invalid("the data is too long")) }
    }
}

/// Maximum data of an option: a name and a query of 4,096 bytes each, and their lengths.
pub(crate) const MAX_OPTION_BYTES: u32 = 16 << 10;
/// ID of `base:allocation` in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;
/// Zeroes after [`ExportReply`].
const ZEROES: usize = 124;
