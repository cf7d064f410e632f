//! Every cause of a failure: its status, and whether the same command fails again.

use isolane_wire::Sgl;
use isolane_wire::admin::{AbortCommand, Cns, IdentifyCommand, async_event_request};
use isolane_wire::fabrics::DisconnectCommand;
use isolane_wire::io::{ReadCommand, WriteCommand};
use isolane_wire::opcode::{AdminOpcode, IoOpcode};

use super::*;
use crate::failure::Failure;
use crate::target::{MAX_ASYNC_EVENTS, Transfer, capsule};

/// Between the two attempts, the target ends everything that can end without the host.
#[test]
fn failed_command_fails_again_exactly_with_dnr() {
    for &failure in Failure::ALL {
        let Some((first, again)) = attempts(failure) else { continue };
        assert_eq!(first, failure.status(), "{failure:?}");
        assert_eq!(again == first, first.dnr(), "{failure:?}: {again} at the second attempt");
        assert!(again == first || again.is_success(), "{failure:?}: {again} at the second attempt");
    }
}

/// Status of a command that fails for this cause, and of the same command later. `None`: the driver
/// or another command decides.
fn attempts(failure: Failure) -> Option<(Status, Status)> {
    Some(match failure {
        Failure::Opcode => twice(|harness, id| harness.complete(id, SubmissionEntry::new(0xc0, 0)).status),
        Failure::Field => twice(|harness, id| harness.set_feature(id, FeatureId::PowerManagement, 1).status),
        Failure::Prp => always(in_capsule(|entry| entry.flags = Default::default())),
        Failure::SglType => always(in_capsule(|entry| entry.sgl = Sgl::Other([0x40; 16]))),
        Failure::SglOffset => always(in_capsule(|entry| entry.sgl = Sgl::InCapsule { offset: 8, len: 512 })),
        Failure::SglLength => always(in_capsule(|entry| entry.sgl = Sgl::InCapsule { offset: 0, len: 8 })),
        Failure::Namespace => twice(|harness, id| {
            harness.fetch(id, IdentifyCommand::new(Cns::Namespace, 0).entry()).unwrap_err()
        }),
        Failure::LbaRange => always(parse_write(4096, false)),
        Failure::WriteProtected => always(parse_write(0, true)),
        Failure::LogPage => twice(|harness, id| {
            let page = GetLogPageCommand { lid: 0x7f, ..Default::default() };
            harness.fetch(id, page.entry()).unwrap_err()
        }),
        Failure::FeatureSave => twice(|harness, id| {
            let fid = FeatureId::Arbitration.code();
            let command = SetFeaturesCommand { fid, save: true, ..Default::default() };
            harness.complete(id, command.entry()).status
        }),
        Failure::FeatureChange => {
            twice(|harness, id| harness.set_feature(id, FeatureId::InterruptCoalescing, 0).status)
        }
        Failure::FeatureNamespace => twice(|harness, id| {
            let fid = FeatureId::Arbitration.code();
            let command = SetFeaturesCommand { fid, nsid: 1, ..Default::default() };
            harness.complete(id, command.entry()).status
        }),
        Failure::AsyncEventLimit => twice(|harness, id| {
            (0..MAX_ASYNC_EVENTS as u16).for_each(|cid| _ = harness.execute(id, event_request(cid), 0));
            harness.complete(id, event_request(100)).status
        }),
        Failure::Sequence => {
            let mut harness = Harness::new();
            let id = harness.admin();
            let mut connect = || rejected(harness.io_queue(id, 1)).status;
            (connect(), connect())
        }
        Failure::RecordFormat => always(refused(|connect| connect.command.recfmt = 1)),
        Failure::ConnectParameter => always(refused(|connect| connect.data.cntlid = 1)),
        Failure::HostNotAllowed => {
            let mut config = config();
            config.subsystems[0].allowed_hosts = Some(Vec::new());
            always(rejected(Harness::with(config).connect(&MockConnect::admin())).status)
        }
        Failure::QueueType => {
            twice(|harness, id| harness.complete(id, DisconnectCommand::default().entry()).status)
        }
        Failure::QidInUse => {
            let (mut harness, id) = with_io_queue();
            harness.port.handle_disconnected(id, 1);
            let first = rejected(harness.io_queue(id, 1)).status;
            harness.port.handle_drained(id, 1);
            (first, harness.io_queue(id, 1).unwrap().completion.status)
        }
        Failure::Resetting => {
            let (mut harness, id) = with_io_queue();
            harness.set_cc(id, Cc(0));
            let first = harness.set_cc(id, Cc::enabled()).status;
            harness.drop_queue(id, 1);
            (first, harness.set_cc(id, Cc::enabled()).status)
        }
        Failure::Busy => {
            let mut harness = Harness::with(PortConfig { max_associations: 1, ..config() });
            let id = harness.admin();
            let first = rejected(harness.connect(&MockConnect::admin())).status;
            harness.drop_queue(id, 0);
            (first, harness.connect(&MockConnect::admin()).unwrap().completion.status)
        }
        Failure::QueueDeleted => {
            let mut harness = Harness::new();
            let id = harness.ready();
            harness.drop_queue(id, 0);
            let first = harness.complete(id, isolane_wire::admin::keep_alive()).status;
            let id = harness.ready();
            (first, harness.complete(id, isolane_wire::admin::keep_alive()).status)
        }
        Failure::Aborted => {
            let mut harness = Harness::new();
            let id = harness.ready();
            harness.execute(id, event_request(1), 0);
            harness.complete(id, AbortCommand { sqid: 0, cid: 1 }.entry());
            let first = harness.port.poll_async_event(id).unwrap().1.status;
            let again = harness.execute(id, event_request(1), 0);
            assert_eq!(again, Action::HoldAsyncEvent);
            (first, Status::SUCCESS)
        }
        // The connection and the driver of a target use these; their tests compare the status.
        Failure::CidInUse | Failure::NotReady | Failure::DataDigest | Failure::FlushTimeout => return None,
        Failure::Read | Failure::Write | Failure::ReadTruncated | Failure::WriteTruncated => return None,
        Failure::SyncFailed | Failure::NoSpace | Failure::Internal => return None,
        Failure::Stalled | Failure::Offline | Failure::Authentication => return None,
    })
}

/// The data of an opcode that the queue does not offer is not checked.
#[test]
fn unknown_command_is_invalid_opcode_whatever_its_sgl() {
    let fabrics = |fctype: u8| {
        let entry = SubmissionEntry::new(AdminOpcode::Fabrics.code(), u32::from(fctype));
        assert_eq!(entry.fctype(), fctype);
        entry
    };
    let wrong = Failure::SglType.status();
    let status = |entry: SubmissionEntry, is_io| invalid_transfer_status(&entry, is_io, wrong);
    for is_io in [false, true] {
        assert_eq!(status(fabrics(0x02), is_io), Failure::Opcode.status());
        assert_eq!(status(fabrics(0x01), is_io), wrong);
        assert_eq!(status(SubmissionEntry::new(0xc1, 1), is_io), Failure::Opcode.status());
    }
    let (identify, read) = (AdminOpcode::Identify.code(), IoOpcode::DatasetManagement.code());
    assert_eq!(status(SubmissionEntry::new(identify, 1), false), wrong);
    assert_eq!(status(SubmissionEntry::new(identify, 1), true), Failure::Opcode.status());
    assert_eq!(status(SubmissionEntry::new(read, 1), true), wrong);
    assert_eq!(status(SubmissionEntry::new(IoOpcode::Compare.code(), 1), true), Failure::Opcode.status());
}

/// Runs a command twice on one ready controller; the second time after its timers have run.
fn twice(mut command: impl FnMut(&mut Harness, AssociationId) -> Status) -> (Status, Status) {
    let mut harness = Harness::new();
    let id = harness.ready();
    let first = command(&mut harness, id);
    harness.wait(S);
    (first, command(&mut harness, id))
}

/// A status that depends on the command alone.
fn always(status: Status) -> (Status, Status) {
    (status, status)
}

/// Status of a Write of 512 bytes in the capsule, changed.
fn in_capsule(change: impl Fn(&mut SubmissionEntry)) -> Status {
    let mut entry = WriteCommand { nsid: 1, ..Default::default() }.entry();
    entry.sgl = Sgl::InCapsule { offset: 0, len: 512 };
    assert!(matches!(capsule::transfer(&entry, 512), Transfer::FromHost { len: 512, .. }));
    change(&mut entry);
    match capsule::transfer(&entry, 512) {
        Transfer::Invalid(status) => status,
        other => panic!("accepted: {other:?}"),
    }
}

fn parse_write(slba: u64, read_only: bool) -> Status {
    let geometry = NamespaceGeometry { block_shift: 9, blocks: 2048, read_only };
    let entry = WriteCommand { nsid: 1, slba, ..Default::default() }.entry();
    assert!(parse_io(&ReadCommand { nsid: 1, ..Default::default() }.entry(), &geometry, 512, 512).is_ok());
    parse_io(&entry, &geometry, 512, 512).unwrap_err()
}

fn refused(change: impl Fn(&mut MockConnect)) -> Status {
    let mut connect = MockConnect::admin();
    change(&mut connect);
    rejected(Harness::new().connect(&connect)).status
}

fn with_io_queue() -> (Harness, AssociationId) {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    (harness, id)
}

fn event_request(cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..async_event_request() }
}
