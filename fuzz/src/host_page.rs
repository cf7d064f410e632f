//! Target for log page C0h, as a host reads it from a malicious target.
//!
//! Invariant: a read has bounded memory and a bounded number of commands, and any text gives a document or an error that
//! names a field.

use std::convert::Infallible;

use isolane_host::HostPage;
use isolane_inspect::source::decode;
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{Connection, SlowOperation, Snapshot, VERSION};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};
use isolane_observe::verdict::{Options, explain};
use isolane_wire::digest::crc32c;
use isolane_wire::log::{HostStagesHeader, SIGNATURE};

use crate::Target;
use crate::input::Input;
use crate::snapshot::check;

/// All targets.
pub(crate) const TARGETS: &[Target] = &[Target { name: "host-page", check: page, corpus: pages }];

/// The first bytes choose the piece of the reader, the faults of the target, and whether the CRC is right; the others
/// are the content.
fn page(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (max_bytes, fault) = (input.u32() as usize, input.u8());
    let mut content = bytes[bytes.len().min(PREFIX)..].to_vec();
    if max_bytes.is_multiple_of(2) {
        repair(&mut content);
    }
    let mut commands = 0;
    let read = |offset: u64, len: usize| {
        commands += 1;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let mut piece: Vec<u8> = content[start..].iter().take(len).copied().collect();
        if fault != commands {
            piece.resize(len, b' ');
        }
        Ok::<_, Infallible>(piece)
    };
    let Ok(result) = HostPage::assemble(max_bytes, read);
    assert!(usize::from(commands) <= 1 + HostStagesHeader::MAX_PAGE / 4096, "{commands} commands");
    match result {
        Ok(page) => {
            assert!(page.text.len() <= HostStagesHeader::MAX_TEXT);
            match decode(&page.text) {
                Ok(snapshot) => check(&explain(&snapshot, Options::default())),
                Err(invalid) => assert!(!invalid.field.is_empty(), "{invalid}"),
            }
        }
        Err(malformed) => assert!(!malformed.field.is_empty()),
    }
}

/// Sets the CRC of the text, so that its content is decoded.
fn repair(content: &mut Vec<u8>) {
    let Some(mut header) = HostStagesHeader::decode_prefix(content) else { return };
    let end = HostStagesHeader::LEN + (header.text_bytes as usize).min(HostStagesHeader::MAX_TEXT);
    content.resize(content.len().max(end), b' ');
    header.text_crc = crc32c(&content[HostStagesHeader::LEN..end]);
    content[..HostStagesHeader::LEN].copy_from_slice(&header.encode());
}

/// Bytes before the content.
const PREFIX: usize = 5;

fn pages() -> Vec<Vec<u8>> {
    let document = |count| serde_json::to_vec(&snapshot(count)).expect("JSON");
    let texts = [b"{}".to_vec(), document(0), document(30), document(300)];
    texts.iter().map(|text| to_input(text)).collect()
}

fn to_input(text: &[u8]) -> Vec<u8> {
    let header = HostStagesHeader {
        signature: SIGNATURE,
        version: HostStagesHeader::VERSION,
        text_bytes: text.len() as u32,
        connections_left_out: 0,
        slow_left_out: 1,
        text_crc: crc32c(text),
    };
    [&[0, 32, 0, 0, 0xff], &header.encode()[..], text].concat()
}

/// A page with these slow operations.
fn snapshot(count: u64) -> Snapshot {
    let mut totals = Histogram::new(Resolution::Four);
    totals.record(100_000, 1000);
    totals.record(20_000_000, count);
    let connection = Connection {
        id: 1,
        host: String::from("nqn.x"),
        totals: vec![(SizeClass::Small, totals)],
        stages_ns: vec![(Stage::Device, count * 20_000_000)],
        ..Connection::default()
    };
    let slow = |at: u64| SlowOperation {
        side: Side::Target,
        at_unix_us: at,
        volume: 0,
        operation: Operation::Read,
        bytes: 4096,
        lba: at,
        core: 0,
        connection: 1,
        cid: at as u16,
        depth: 1,
        total_ns: 20_000_000,
        stages: vec![(Stage::Device, 20_000_000)],
        last_member: None,
    };
    let mut snapshot = Snapshot { version: VERSION, at_unix_ms: 1, ..Snapshot::default() };
    snapshot.numbers.connections.push(connection);
    snapshot.slow = (0..count).map(slow).collect();
    snapshot
}
