//! Log page C0h of an Isolane target: the stages and slow operations of this host.
//!
//! Each read has an association of its own, without I/O queues. The page is a header and a JSON document, which the
//! caller decodes.
//!
//! Invariant: whatever the target returns, a read takes at most the memory of the longest page, and a number of commands
//! that depends on this length only.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_wire::admin::LogPage;
use isolane_wire::digest::crc32c;
use isolane_wire::log::{HostStagesHeader, SIGNATURE};

use super::admin::{Admin, shutdown};
use super::{at_first_address, discovery};
use crate::error::{ConnectError, Step};
use crate::options::Options;
use crate::uri::Uri;

/// Length of the first read, which every controller allows.
const FIRST_BYTES: usize = 4096;
/// Maximum length of the other reads.
const MAX_PIECE: usize = 64 << 10;

/// A target, and its page for this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPage {
    /// Address of the target.
    pub address: SocketAddr,
    /// Model of its controller.
    pub model: String,
    /// The page; `None` if the controller has none, because the target is another program.
    pub page: Option<HostPage>,
}

/// Log page C0h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPage {
    /// A JSON document of at most 256 KiB, as `isolane snapshot` writes it. It is not checked.
    pub text: Vec<u8>,
    /// Number of connections that did not fit.
    pub connections_left_out: u32,
    /// Number of slow operations that did not fit.
    pub slow_left_out: u32,
}

/// Reason why data is not a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log page C0h: field {field}: {reason}")]
pub struct MalformedPage {
    /// The field.
    pub field: &'static str,
    /// The reason.
    pub reason: String,
}

/// Reads the page of an Isolane target for the host that the options name: its connections, with their stages, and its
/// slow operations.
///
/// # Errors
/// [`ConnectError`]; [`ConnectError::ProtocolViolation`] if the page is malformed.
pub fn read_host_page(uri: &Uri, options: &Options) -> Result<TargetPage, ConnectError> {
    let deadline = Instant::now() + options.connect_timeout;
    // The association is short and needs no keep alive.
    let options = uri.add_keys(Options { keep_alive: Duration::ZERO, ..options.clone() });
    at_first_address(uri, |address| read_at(address, uri, &options, deadline))
}

fn read_at(
    address: SocketAddr,
    uri: &Uri,
    options: &Options,
    deadline: Instant,
) -> Result<TargetPage, ConnectError> {
    let (address, nqn) = match uri.nqn {
        Some(nqn) => (address, nqn),
        None => discovery::only_subsystem(address, options, deadline)?,
    };
    let mut admin = Admin::connect(address, &nqn, options, deadline)?;
    let model = admin.enable_and_identify()?.model;
    let page = page_of(&mut admin)?;
    if let Err(error) = shutdown(admin.connection) {
        log::info!("{address}: controller not shut down cleanly: {error}");
    }
    Ok(TargetPage { address, model, page })
}

fn page_of(admin: &mut Admin) -> Result<Option<HostPage>, ConnectError> {
    let controller = &admin.controller;
    if controller.vendor_signature != SIGNATURE || !controller.vendor_pages.host_stages() {
        return Ok(None);
    }
    let piece = admin.max_transfer_bytes(MAX_PIECE);
    let read = HostPage::assemble(piece, |offset, len| admin.log_page(LogPage::HostStages, 0, offset, len))?;
    let malformed = |error: MalformedPage| admin.connection.protocol_violation(Step::Log, error.to_string());
    read.map(Some).map_err(malformed)
}

impl HostPage {
    /// Assembles the page from reads of at most `max_bytes`; `read` takes an offset and a length in bytes.
    ///
    /// # Errors
    /// The outer one is an error of `read`.
    pub fn assemble<E>(
        max_bytes: usize,
        mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Result<Result<HostPage, MalformedPage>, E> {
        let mut content = read(0, FIRST_BYTES)?;
        let header = match decode_header(&content) {
            Ok(header) => header,
            Err(malformed) => return Ok(Err(malformed)),
        };
        let end = HostStagesHeader::LEN + header.text_bytes as usize;
        let piece = max_bytes.clamp(FIRST_BYTES, MAX_PIECE) & !3;
        content.truncate(FIRST_BYTES.min(end));
        while content.len() < end {
            let len = (end - content.len()).next_multiple_of(4).min(piece);
            let more = read(content.len() as u64, len)?;
            if more.len() != len {
                return Ok(Err(malformed("length", format!("{} bytes returned of {len}", more.len()))));
            }
            content.extend(more);
        }
        content.truncate(end);
        content.drain(..HostStagesHeader::LEN);
        if crc32c(&content) != header.text_crc {
            return Ok(Err(malformed("CRC of the text", String::from("the parts are not of one page"))));
        }
        Ok(Ok(HostPage {
            text: content,
            connections_left_out: header.connections_left_out,
            slow_left_out: header.slow_left_out,
        }))
    }
}

fn decode_header(content: &[u8]) -> Result<HostStagesHeader, MalformedPage> {
    if content.len() != FIRST_BYTES {
        return Err(malformed("length", format!("{} bytes returned of {FIRST_BYTES}", content.len())));
    }
    let short = || malformed("length", String::from("shorter than the header"));
    let header = HostStagesHeader::decode_prefix(content).ok_or_else(short)?;
    if header.signature != SIGNATURE {
        return Err(malformed("signature", String::from("not that of an Isolane target")));
    }
    if header.version < HostStagesHeader::VERSION {
        return Err(malformed("version", format!("{} does not exist", header.version)));
    }
    if header.text_bytes as usize > HostStagesHeader::MAX_TEXT {
        let reason = format!("{} bytes are more than {}", header.text_bytes, HostStagesHeader::MAX_TEXT);
        return Err(malformed("text length", reason));
    }
    Ok(header)
}

fn malformed(field: &'static str, reason: String) -> MalformedPage {
    MalformedPage { field, reason }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::mock::{Script, Target};

    #[test]
    fn other_targets_have_no_page() {
        let target = Target::start(Script::default());
        let found = read_host_page(&target.uri(), &Options::default()).expect("a target");
        assert!(found.page.is_none() && !found.model.is_empty(), "{found:?}");
    }

    #[test]
    fn names_malformed_field_of_target() {
        // Its page has zeroes only.
        let target = Target::start(Script { isolane: true, ..Script::default() });
        let error = read_host_page(&target.uri(), &Options::default()).expect_err("a malformed page");
        let text = error.to_string();
        assert!(text.contains("Get Log Page: log page C0h: field signature: "), "{text}");
    }

    fn content(text_bytes: usize) -> Vec<u8> {
        let text: Vec<u8> = (0..text_bytes).map(|at| (at * 7 / 3) as u8).collect();
        let header = HostStagesHeader {
            signature: SIGNATURE,
            version: 1,
            text_bytes: text_bytes as u32,
            connections_left_out: 3,
            slow_left_out: 4,
            text_crc: crc32c(&text),
        };
        [&header.encode()[..], &text].concat()
    }

    /// Returns the result for a target with this content, and the length of each read.
    fn assemble(content: &[u8], max_bytes: usize) -> (Result<HostPage, MalformedPage>, Vec<usize>) {
        let mut reads = Vec::new();
        let read = |offset: u64, len: usize| {
            assert!(offset.is_multiple_of(4) && len.is_multiple_of(4) && len > 0);
            reads.push(len);
            let mut piece: Vec<u8> = content.iter().skip(offset as usize).take(len).copied().collect();
            piece.resize(len, 0);
            Ok::<_, Infallible>(piece)
        };
        let Ok(result) = HostPage::assemble(max_bytes, read);
        (result, reads)
    }

    #[test]
    fn assembles_pages_of_any_length() {
        for len in [0, 1, 4031, 4032, 4033, 4036, 8193, 100_001, HostStagesHeader::MAX_TEXT] {
            for max_bytes in [0, 4096, 10_000, 65536, usize::MAX] {
                let content = content(len);
                let (page, reads) = assemble(&content, max_bytes);
                let page = page.expect("a page");
                assert!(page.text == content[64..], "{len} bytes in pieces of {max_bytes}");
                assert_eq!((page.connections_left_out, page.slow_left_out), (3, 4));
                assert!(reads.iter().all(|read| *read <= max_bytes.clamp(4096, MAX_PIECE)), "{reads:?}");
            }
        }
    }

    #[test]
    fn rejects_malformed_headers_before_further_reads() {
        let change = |at: usize, byte: u8| {
            let mut content = content(100_000);
            content[at] = byte;
            let (page, reads) = assemble(&content, 65536);
            (page.expect_err("a malformed page").field, reads.len())
        };
        assert_eq!(change(0, 0), ("signature", 1));
        assert_eq!(change(16, 0), ("version", 1));
        assert_eq!(change(23, 0xff), ("text length", 1));
        assert_eq!(change(22, 0x04), ("text length", 1));
    }

    #[test]
    fn rejects_reads_of_wrong_length() {
        for (first, others) in [(64, 0), (0, 0), (8192, 0), (4096, 0), (4096, 1 << 20)] {
            let all = content(100_000);
            let read = |offset: u64, _| {
                let len = if offset == 0 { first } else { others };
                Ok::<_, Infallible>(all.iter().cycle().take(len).copied().collect())
            };
            let Ok(page) = HostPage::assemble(65536, read);
            assert_eq!(page.expect_err("a malformed page").field, "length");
        }
    }

    #[test]
    fn rejects_parts_of_two_pages() {
        let (mut first, second) = (content(100_000), content(100_001));
        first.truncate(50_000);
        let mixed = [&first[..], &second[49_999..]].concat();
        let (page, _) = assemble(&mixed, 4096);
        assert_eq!(page.expect_err("a malformed page").field, "CRC of the text");
    }
}
