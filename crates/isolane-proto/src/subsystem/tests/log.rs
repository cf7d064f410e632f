//! Get Log Page: every page, every offset.

use super::*;
use isolane_wire::admin::{NSID_ALL, keep_alive};
use isolane_wire::identify::NamespaceList;
use isolane_wire::log::{
    CommandEffectsLog, ErrorEntry, FirmwareSlots, GenerationLog, HostStagesHeader, SIGNATURE, Smart,
};
use isolane_wire::opcode::{AdminOpcode, IoOpcode};

const PAGES: [(LogPage, u32); 5] = [
    (LogPage::Error, 4096),
    (LogPage::Smart, 512),
    (LogPage::FirmwareSlot, 512),
    (LogPage::ChangedNamespaces, 4096),
    (LogPage::CommandEffects, 4096),
];

#[test]
fn log_pages_read_alike_in_any_segments() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.complete(id, SubmissionEntry::new(0xff, 0));
    for (page, len) in PAGES {
        let whole = harness.log(id, page, 0, len).unwrap();
        let mut pieces = Vec::new();
        for offset in (0..u64::from(len)).step_by(128) {
            pieces.extend(harness.log(id, page, offset, 128).unwrap());
        }
        assert!(whole == pieces, "{page}");
    }
}

#[test]
fn rejects_offset_beyond_page() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let invalid = Err(Status::INVALID_FIELD.with_dnr(true));
    for (page, len) in PAGES {
        let len = u64::from(len);
        assert_eq!(harness.log(id, page, len, 64), Ok(vec![0; 64]));
        for offset in [len + 4, 1 << 32, 1 << 63, u64::MAX - 3] {
            assert_eq!(harness.log(id, page, offset, 64), invalid, "{page} at {offset:#x}");
        }
    }
}

#[test]
fn rejects_unaligned_offset() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for offset in [1, 2, 3, u64::MAX] {
        assert_eq!(harness.log(id, LogPage::Smart, offset, 4), Err(Status::INVALID_FIELD.with_dnr(true)));
    }
}

#[test]
fn pads_page_with_zeroes() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let page = harness.log(id, LogPage::FirmwareSlot, 0, 512).unwrap();
    let more = harness.log(id, LogPage::FirmwareSlot, 0, 4096).unwrap();
    assert_eq!(more[..512], page);
    assert!(more[512..].iter().all(|&byte| byte == 0));
}

#[test]
fn rejects_length_above_mdts() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.log(id, LogPage::Error, 0, 1 << 20).unwrap().len(), 1 << 20);
    let larger = harness.log(id, LogPage::Error, 0, (1 << 20) + 4);
    assert_eq!(larger, Err(Status::INVALID_FIELD.with_dnr(true)));
    let largest = GetLogPageCommand { lid: LogPage::Error.code(), numd: u32::MAX, ..Default::default() };
    let action = harness.execute(id, largest.entry(), u32::MAX);
    assert_eq!(completion(action), rejected_with(Status::DATA_SGL_LENGTH_INVALID), "16 GiB have no SGL");
}

#[test]
fn rejects_offset_in_entries() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let command = GetLogPageCommand { is_index: true, ..GetLogPageCommand::new(LogPage::Error, 1, 64) };
    assert_eq!(harness.fetch(id, command.entry()), Err(Status::INVALID_FIELD.with_dnr(true)));
}

#[test]
fn rejects_unknown_pages() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let invalid = Err(Status::INVALID_LOG_PAGE.with_dnr(true));
    for page in [LogPage::SupportedPages, LogPage::DeviceSelfTest, LogPage::TelemetryHost, LogPage::Discovery]
    {
        assert_eq!(harness.log(id, page, 0, 512), invalid, "{page}");
    }
    let unknown = GetLogPageCommand { lid: 0xff, ..Default::default() };
    assert_eq!(harness.fetch(id, unknown.entry()), invalid);
    let zoned = GetLogPageCommand { csi: 2, ..GetLogPageCommand::new(LogPage::CommandEffects, 0, 4096) };
    assert_eq!(harness.fetch(id, zoned.entry()), invalid);
}

#[test]
fn discovery_offers_two_logs() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    assert!(harness.log(id, LogPage::Error, 0, 64).is_ok());
    for page in [LogPage::Smart, LogPage::FirmwareSlot, LogPage::ChangedNamespaces, LogPage::CommandEffects] {
        assert_eq!(harness.log(id, page, 0, 512), Err(Status::INVALID_LOG_PAGE.with_dnr(true)));
    }
}

#[test]
fn error_log_starts_with_newest() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.complete(id, SubmissionEntry { cid: 7, ..SubmissionEntry::new(0xff, 5) });
    harness.execute(id, SubmissionEntry { cid: 8, ..keep_alive() }, 64);
    let page = harness.log(id, LogPage::Error, 0, 192).unwrap();
    let [newest, older, none] = [0, 64, 128].map(|at| ErrorEntry::decode_prefix(&page[at..]).unwrap());
    assert_eq!((newest.error_count, newest.cid, newest.sqid), (2, 8, 0));
    assert_eq!(newest.status, Status::DATA_SGL_LENGTH_INVALID.with_dnr(true));
    assert_eq!(page[12..14], [0x1e, 0x80], "0Fh and DNR above the phase tag");
    assert_eq!((older.error_count, older.cid, older.nsid), (1, 7, 5));
    assert_eq!(older.status, Status::INVALID_OPCODE.with_dnr(true));
    assert_eq!(none, ErrorEntry::default());
}

#[test]
fn error_log_keeps_64_entries() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for _ in 0..1000 {
        harness.complete(id, SubmissionEntry::new(0xff, 0));
    }
    let page = harness.log(id, LogPage::Error, 0, 4096).unwrap();
    let oldest = ErrorEntry::decode_prefix(&page[63 * 64..]).unwrap();
    assert_eq!(oldest.error_count, 1000 - 63);
    let smart = Smart::decode_prefix(&harness.log(id, LogPage::Smart, 0, 512).unwrap()).unwrap();
    assert_eq!(smart.error_log_entries, 1000);
}

#[test]
fn smart_log_sums_all_queues() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let one = harness.io_queue(id, 1).unwrap();
    one.counters.record_read(512_001);
    harness.drop_queue(id, 1);
    let two = harness.io_queue(id, 1).unwrap();
    two.counters.record_read(4096);
    two.counters.record_write(512);
    harness.wait(7200 * S);
    let smart = Smart::decode_prefix(&harness.log(id, LogPage::Smart, 0, 512).unwrap()).unwrap();
    assert_eq!((smart.host_read_commands, smart.host_write_commands), (2, 1));
    assert_eq!((smart.data_units_read, smart.data_units_written), (2, 1));
    assert_eq!((smart.power_on_hours, smart.available_spare_percent, smart.critical_warning.0), (2, 100, 0));
}

#[test]
fn smart_log_rejects_namespace() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let command = GetLogPageCommand::new(LogPage::Smart, 0, 512);
    for nsid in [0, NSID_ALL] {
        assert!(harness.fetch(id, GetLogPageCommand { nsid, ..command }.entry()).is_ok());
    }
    let one = GetLogPageCommand { nsid: 1, ..command };
    assert_eq!(harness.fetch(id, one.entry()), Err(Status::INVALID_FIELD.with_dnr(true)));
}

#[test]
fn firmware_runs_from_slot_1() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let slots =
        FirmwareSlots::decode_prefix(&harness.log(id, LogPage::FirmwareSlot, 0, 512).unwrap()).unwrap();
    assert_eq!(slots.afi.active(), 1);
    assert_eq!(slots.frs[0].as_str(), Some(env!("CARGO_PKG_VERSION")));
}

#[test]
fn effects_log_lists_supported_commands() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let data = harness.log(id, LogPage::CommandEffects, 0, 4096).unwrap();
    let log = CommandEffectsLog::decode_prefix(&data).unwrap();
    for opcode in 0..=0xff {
        let is_listed = log.admin[usize::from(opcode)].supported();
        let is_fabrics = opcode == AdminOpcode::Fabrics.code();
        let action = harness.execute(id, SubmissionEntry::new(opcode, 0), 1);
        let is_unknown = completion(action) == rejected_with(Status::INVALID_OPCODE);
        assert!(is_fabrics || is_listed != is_unknown, "admin {opcode:#x}");

        let geometry = NamespaceGeometry { block_shift: 9, blocks: 8, read_only: false };
        let is_unknown = parse_io(&SubmissionEntry::new(opcode, 1), &geometry, 1, 4096)
            == Err(Status::INVALID_OPCODE.with_dnr(true));
        assert_ne!(log.io[usize::from(opcode)].supported(), is_unknown, "I/O {opcode:#x}");
    }
    assert!(log.io[usize::from(IoOpcode::Write.code())].block_content());
    assert!(!log.io[usize::from(IoOpcode::Read.code())].block_content());
}

#[test]
fn no_namespace_changes() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let retain =
        GetLogPageCommand { rae: true, ..GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096) };
    let read = GetLogPageCommand { rae: false, ..retain };
    for command in [retain, read] {
        let data = harness.fetch(id, command.entry()).unwrap();
        assert_eq!(NamespaceList::decode(&data.try_into().unwrap()).nsids(), []);
    }
}

#[test]
fn reports_generation_of_each_namespace() {
    let mut config = config();
    config.subsystems[0].namespaces[1].generation = None;
    let mut harness = Harness::with(config);
    let id = harness.ready();
    let page =
        |nsid| GetLogPageCommand { nsid, ..GetLogPageCommand::new(LogPage::Generation, 0, 64) }.entry();
    let log = GenerationLog::decode_prefix(&harness.fetch(id, page(1)).unwrap()).unwrap();
    let expected = GenerationLog {
        signature: SIGNATURE,
        version: 1,
        loses: RestartLoss::Cache.code(),
        nsid: 1,
        generation: [0x41; 16],
    };
    assert_eq!(log, expected);
    assert_eq!(
        harness.fetch(id, page(3)),
        Err(Status::INVALID_FIELD.with_dnr(true)),
        "its volume knows none"
    );
    for nsid in [0, 2, NSID_ALL] {
        assert_eq!(harness.fetch(id, page(nsid)), Err(Status::INVALID_NAMESPACE.with_dnr(true)));
    }
    let discovery = harness.discovery();
    assert_eq!(harness.fetch(discovery, page(1)), Err(Status::INVALID_LOG_PAGE.with_dnr(true)));
}

#[test]
fn host_page_stays_until_offset_zero() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let page = harness.log(id, LogPage::HostStages, 0, 4096).unwrap();
    let header = HostStagesHeader::decode_prefix(&page).unwrap();
    let text = harness.page_of(Host { nqn: Nqn::new(HOSTNQN).ok(), hostid: [7; 16] }).text;
    let expected = HostStagesHeader {
        signature: SIGNATURE,
        version: 1,
        text_bytes: text.len() as u32,
        connections_left_out: 1,
        slow_left_out: 2,
        text_crc: isolane_wire::digest::crc32c(&text),
    };
    assert_eq!(header, expected);
    assert_eq!(page[64..64 + text.len()], text);
    assert!(page[64 + text.len()..].iter().all(|&byte| byte == 0));
    harness.now += S;
    let mut pieces = page[..4].to_vec();
    for offset in (4..header.text_bytes as u64 + 64).step_by(4) {
        pieces.extend(harness.log(id, LogPage::HostStages, offset, 4).unwrap());
    }
    assert_eq!(pieces, page[..pieces.len()], "the first page");
    assert_ne!(harness.log(id, LogPage::HostStages, 0, 4096).unwrap(), page, "a new one");
    // nvme-cli reads a page in pieces, and does not know where the text ends.
    let end = HostStagesHeader::MAX_PAGE as u64;
    for offset in [8192, end - 4096, end] {
        assert_eq!(harness.log(id, LogPage::HostStages, offset, 4096).unwrap(), [0; 4096]);
    }
    for offset in [end + 4, !3] {
        let after_end = harness.log(id, LogPage::HostStages, offset, 4);
        assert_eq!(after_end, Err(Status::INVALID_FIELD.with_dnr(true)));
    }
}

/// The status of a read without a page to which its part belongs.
fn no_page() -> Status {
    Status::COMMAND_SEQUENCE_ERROR.with_dnr(true)
}

#[test]
fn parts_of_dropped_pages_are_errors() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.log(id, LogPage::HostStages, 64, 64), Err(no_page()), "never read at offset 0");
    harness.log(id, LogPage::HostStages, 0, 64).unwrap();
    assert!(harness.log(id, LogPage::HostStages, 64, 64).unwrap().starts_with(&HOSTNQN.as_bytes()[..32]));
    assert_eq!(harness.set_cc(id, Cc(0)), Completion::success());
    assert_eq!(harness.set_cc(id, Cc::enabled()), Completion::success());
    assert_eq!(harness.log(id, LogPage::HostStages, 64, 64), Err(no_page()), "a reset drops the page");
}

#[test]
fn parts_are_errors_until_page_is_collected() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.log(id, LogPage::HostStages, 0, 64).unwrap();
    let first = GetLogPageCommand::new(LogPage::HostStages, 0, 64).entry();
    let action = harness.execute(id, first, 64);
    let Action::CollectHostPage(host) = action else { panic!("{action:?}") };
    assert_eq!(harness.log(id, LogPage::HostStages, 64, 64), Err(no_page()), "a part of the page before");
    let page = harness.page_of(*host);
    assert!(matches!(
        harness.port.handle_host_page(id, &first, 64, &page, harness.now),
        Action::CompleteWithData(..)
    ));
    assert!(harness.log(id, LogPage::HostStages, 64, 64).unwrap().starts_with(&page.text[..32]));
}

#[test]
fn hosts_never_share_pages() {
    let mut harness = Harness::new();
    let first = harness.ready();
    let mut other = MockConnect::admin();
    other.data.hostid = [8; 16];
    let second = harness.connect(&other).unwrap().id;
    harness.set_cc(second, Cc::enabled());
    let own = harness.log(first, LogPage::HostStages, 0, 4096).unwrap();
    assert_eq!(harness.log(second, LogPage::HostStages, 4, 4096), Err(no_page()));
    let page = harness.log(second, LogPage::HostStages, 0, 4096).unwrap();
    assert_ne!(page, own);
    harness.drop_queue(first, 0);
    let gone = harness.execute(first, GetLogPageCommand::new(LogPage::HostStages, 4, 64).entry(), 64);
    assert!(!completion(gone).is_success());
    let reused = harness.connect(&MockConnect::admin()).unwrap().id;
    harness.set_cc(reused, Cc::enabled());
    assert_eq!(harness.log(reused, LogPage::HostStages, 4, 64), Err(no_page()));
}

#[test]
fn keeps_bounded_number_of_host_pages() {
    let mut config = config();
    config.max_associations = 100;
    let mut harness = Harness::with(config);
    let ids: Vec<_> = (0..70).map(|_| harness.ready()).collect();
    for &id in &ids {
        harness.now += Duration::from_millis(1);
        harness.log(id, LogPage::HostStages, 0, 64).unwrap();
    }
    let later = GetLogPageCommand::new(LogPage::HostStages, 4, 64).entry();
    let kept = ids.iter().map(|&id| matches!(harness.execute(id, later, 64), Action::CompleteWithData(..)));
    assert_eq!(kept.collect::<Vec<_>>(), [[false; 6].as_slice(), &[true; 64]].concat(), "the newest 64");
    for &id in ids.iter().rev() {
        let first = harness.log(id, LogPage::HostStages, 0, 64);
        assert!(first.is_ok(), "a page with the time of 64 others is read: {first:?}");
    }
}

#[test]
fn leaves_out_text_beyond_limit() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let entry = GetLogPageCommand::new(LogPage::HostStages, 0, 64).entry();
    let page = |len| HostPage { text: vec![b'x'; len], ..HostPage::default() };
    for (len, expected) in [(HostStagesHeader::MAX_TEXT, 0x3ffc0), (HostStagesHeader::MAX_TEXT + 1, 0)] {
        let action = harness.port.handle_host_page(id, &entry, 64, &page(len), harness.now);
        let Action::CompleteWithData(data, _) = action else { panic!("{action:?}") };
        assert_eq!(HostStagesHeader::decode_prefix(&data).unwrap().text_bytes, expected);
    }
}
