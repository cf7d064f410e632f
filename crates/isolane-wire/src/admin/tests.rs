//! Golden vectors of the admin commands (Base 1.4 §5).

use super::*;
use crate::golden;

/// The bytes of an admin command: opcode, namespace, and dwords from byte 40.
fn command(opcode: u8, nsid: u8, dwords: &[u8]) -> [u8; 64] {
    golden::bytes(&[(0, &[opcode, 0x40]), (4, &[nsid]), (39, &[0x5a]), (40, dwords)])
}

#[test]
fn identify_has_each_field_in_its_place() {
    let identify =
        IdentifyCommand { nsid: 9, cns: 0x13, cntid: 0x0403, cnssid: 0x0605, csi: 0x08, uuid_index: 0x7f };
    let bytes = command(0x06, 9, &[0x13, 0, 3, 4, 5, 6, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f]);
    golden::assert_same(&identify.entry().encode(), &bytes);
    assert_eq!(IdentifyCommand::parse(&SubmissionEntry::decode(&bytes)), identify);
    assert_eq!(IdentifyCommand::new(Cns::Controllers, 9).cns, 0x13);
}

#[test]
fn encodes_get_log_page() {
    let log_page = GetLogPageCommand {
        nsid: 9,
        lid: 0x70,
        lsp: 0x55,
        rae: true,
        numd: 0x0605_0403,
        lsi: 0x0807,
        offset: 0x100f_0e0d_0c0b_0a09,
        is_index: true,
        uuid_index: 0x2a,
        csi: 0x11,
    };
    let dwords = [0x70, 0xd5, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x2a, 0, 0x80, 0x11];
    let bytes = command(0x02, 9, &dwords);
    golden::assert_same(&log_page.entry().encode(), &bytes);
    assert_eq!(GetLogPageCommand::parse(&SubmissionEntry::decode(&bytes)), log_page);
}

#[test]
fn log_page_length_is_in_dwords() {
    let command = GetLogPageCommand::new(LogPage::Discovery, 1024, 4096);
    assert_eq!((command.numd, command.len(), command.offset), (1023, 4096, 1024));
    let longest = GetLogPageCommand { numd: u32::MAX, ..command };
    assert_eq!(longest.len(), 1 << 34);
}

#[test]
fn features_have_each_field_in_its_place() {
    let get = GetFeaturesCommand { nsid: 9, fid: 0x07, sel: 0b011, cdw11: 0x0403_0201 };
    let bytes = command(0x0a, 9, &[0x07, 0x03, 0, 0, 1, 2, 3, 4]);
    golden::assert_same(&get.entry().encode(), &bytes);
    assert_eq!(GetFeaturesCommand::parse(&SubmissionEntry::decode(&bytes)), get);
    assert_eq!(Select::decode(get.sel), Some(Select::SupportedCapabilities));

    let set = SetFeaturesCommand { nsid: 9, fid: 0x0b, save: true, cdw11: 0x0403_0201, cdw12: 0x0807_0605 };
    let bytes = command(0x09, 9, &[0x0b, 0, 0, 0x80, 1, 2, 3, 4, 5, 6, 7, 8]);
    golden::assert_same(&set.entry().encode(), &bytes);
    assert_eq!(SetFeaturesCommand::parse(&SubmissionEntry::decode(&bytes)), set);
}

#[test]
fn abort_names_queue_and_command() {
    let abort = AbortCommand { sqid: 0x0201, cid: 0x0403 };
    let bytes = command(0x08, 0, &[1, 2, 3, 4]);
    golden::assert_same(&abort.entry().encode(), &bytes);
    assert_eq!(AbortCommand::parse(&SubmissionEntry::decode(&bytes)), abort);
    assert!(AbortResponse(1).not_aborted());
}

#[test]
fn decodes_event_type_info_and_log_page() {
    let event = AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery);
    assert_eq!(event.0, 0x0070_f002);
    assert_eq!(event.as_notice(), Some(Notice::DiscoveryLogPageChange));
    assert_eq!(AsyncEvent(0x0002_f001).as_notice(), None);
}

#[test]
fn commands_without_fields_have_their_opcode() {
    assert_eq!(keep_alive().encode(), command(0x18, 0, &[]));
    assert_eq!(async_event_request().encode(), command(0x0c, 0, &[]));
}
