//! Namespaces that change while hosts use them.

mod common;

use common::*;
use isolane_target::{NamespaceError, TargetConfig};
use isolane_wire::admin::{AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice};
use isolane_wire::{Status, SubmissionEntry, admin};

const BLOCK: [u8; 512] = [7; 512];

fn identify(nsid: u32) -> SubmissionEntry {
    IdentifyCommand { cns: Cns::Namespace.code(), nsid, ..IdentifyCommand::default() }.entry()
}

/// Offset of NSATTR in Identify Namespace; bit 0 is the write protection.
const NSATTR: usize = 99;

#[test]
fn write_protection_changes_under_io() {
    let (target, address) =
        start(TargetConfig { cores: one_core_twice(), ..config(&["mem:16M", "mem:16M"]) });
    let (mut admin, mut first) = pair(address, 31);
    let mut second = admin.io_queue(2, 31);
    let event = admin.send(admin::async_event_request(), &[]);
    assert_eq!(first.write(write_entry(5, 1), &BLOCK).0.status, Status::SUCCESS);

    target.set_read_only(1, true).unwrap();
    let (completion, _) = admin.completion(event);
    let notice = AsyncEvent(completion.dw0).as_notice();
    assert_eq!(notice, Some(Notice::NamespaceAttributeChanged));
    for queue in [&mut first, &mut second] {
        let status = queue.write(write_entry(5, 1), &[8; 512]).0.status;
        assert!(status.is(Status::NAMESPACE_WRITE_PROTECTED) && status.dnr(), "{status:?}");
        assert_eq!(queue.fetch(read_entry(5, 1), 512).1, BLOCK);
        let other = SubmissionEntry { nsid: 2, ..write_entry(5, 1) };
        assert_eq!(queue.write(other, &BLOCK).0.status, Status::SUCCESS, "another namespace");
    }
    assert_eq!(admin.fetch(identify(1), 4096).1[NSATTR], 1);
    assert_eq!(admin.fetch(identify(2), 4096).1[NSATTR], 0);
    let list = GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096).entry();
    assert_eq!(admin.fetch(list, 4096).1[..8], [1, 0, 0, 0, 0, 0, 0, 0]);

    target.set_read_only(1, false).unwrap();
    for queue in [&mut first, &mut second] {
        assert_eq!(queue.write(write_entry(5, 1), &[8; 512]).0.status, Status::SUCCESS);
    }
    assert_eq!(admin.fetch(identify(1), 4096).1[NSATTR], 0);
}

#[test]
fn refuses_unknown_namespace_and_read_only_volume() {
    let (target, address) = start(config(&["mem:16M", "mem:16M,ro"]));
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(target.set_read_only(7, true), Err(NamespaceError::Unknown(7)));
    let error = target.set_read_only(2, false).unwrap_err();
    assert!(matches!(error, NamespaceError::ReadOnlyVolume { nsid: 2, .. }), "{error}");
    let other = SubmissionEntry { nsid: 2, ..write_entry(5, 1) };
    assert!(queue.write(other, &BLOCK).0.status.is(Status::NAMESPACE_WRITE_PROTECTED));
}
