//! Associations: keep alive, loss of connections, fencing, Disconnect.

use super::*;
use isolane_wire::admin::keep_alive;
use isolane_wire::fabrics::{ConnectRejection, DisconnectCommand};

#[test]
fn silent_host_loses_association() {
    let mut harness = Harness::new();
    let connected = harness.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    harness.set_cc(id, Cc::enabled());
    harness.wait(5 * S);
    assert_eq!(harness.events(), [], "Connect and Property Set were traffic");
    assert_eq!(harness.port.poll_timeout(), Some(harness.now + 5 * S));
    harness.wait(5 * S);
    assert_eq!(harness.events(), [ControlEvent::Close { id, reason: CloseReason::KeepAliveExpired }]);
    assert!(!connected.status.is_ready());
    let action = harness.execute(id, keep_alive(), 0);
    assert_eq!(completion(action).status, Status::ABORTED_SQ_DELETION, "too late");

    harness.drop_queue(id, 0);
    assert_eq!(harness.events(), [ControlEvent::Ended(id)]);
    assert_eq!(harness.port.poll_timeout(), None);
}

#[test]
fn any_traffic_keeps_association() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let io = harness.io_queue(id, 1).unwrap();
    for _ in 0..10 {
        harness.wait(4 * S);
        assert_eq!(harness.complete(id, keep_alive()), Completion::success());
    }
    for _ in 0..10 {
        harness.wait(4 * S);
        io.status.record_traffic();
    }
    assert_eq!(harness.events(), []);
}

#[test]
fn reports_effective_kato() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.feature(id, FeatureId::KeepAliveTimer), Completion::with_dw0(5000));
    harness.set_feature(id, FeatureId::KeepAliveTimer, 30_001);
    assert_eq!(harness.feature(id, FeatureId::KeepAliveTimer), Completion::with_dw0(31_000));
    assert_eq!(harness.port.poll_timeout(), Some(harness.now + 31 * S));
}

#[test]
fn shutdown_stops_keep_alive() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_cc(id, Cc::enabled().with_shn(Cc::SHN_NORMAL));
    harness.events();
    harness.wait(100 * S);
    assert_eq!(harness.events(), []);
}

#[test]
fn drops_controller_never_enabled() {
    let mut harness = Harness::new();
    let id = harness.admin();
    harness.wait(120 * S);
    assert_eq!(harness.events(), [ControlEvent::Close { id, reason: CloseReason::KeepAliveExpired }]);
}

#[test]
fn admin_loss_ends_association_after_io() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.port.handle_disconnected(id, 0);
    harness.port.handle_drained(id, 0);
    assert_eq!(harness.events(), [ControlEvent::Close { id, reason: CloseReason::AdminQueueLost }]);
    harness.port.handle_disconnected(id, 1);
    assert_eq!(harness.events(), []);
    harness.port.handle_drained(id, 1);
    assert_eq!(harness.events(), [ControlEvent::Ended(id)]);
    assert!(harness.port.associations().is_empty());
}

#[test]
fn orphaned_queue_holds_cntlid_until_io_ends() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.set_cc(id, Cc(0));
    harness.port.handle_disconnected(id, 1);
    harness.port.handle_stuck(id, 1);
    assert!(!harness.csts(id).rdy());
    harness.set_cc(id, Cc::enabled());
    harness.io_queue(id, 1).unwrap();
    harness.drop_queue(id, 1);
    harness.drop_queue(id, 0);
    let reason = CloseReason::AdminQueueLost;
    assert_eq!(harness.events(), [ControlEvent::CloseIoQueues(id), ControlEvent::Close { id, reason }]);
    assert_eq!(rejected(harness.io_queue(id, 1)).status, Status::CONNECT_CONTROLLER_BUSY);
    harness.port.handle_unstuck(id);
    assert_eq!(harness.events(), [ControlEvent::Ended(id)]);
}

#[test]
fn admits_host_while_old_association_ends() {
    let mut harness = Harness::new();
    let old = harness.ready();
    harness.io_queue(old, 1).unwrap();
    harness.drop_queue(old, 0);
    let new = harness.connect(&MockConnect::admin()).unwrap().id;
    assert_ne!(new.cntlid, old.cntlid);
}

#[test]
fn drains_only_hosts_of_accepted_admin_connects() {
    let mut config = config();
    config.subsystems[0].allowed_hosts = Some(vec![Nqn::new(HOSTNQN).unwrap()]);
    let mut harness = Harness::with(config);
    let id = harness.ready();
    let host = |harness: &Harness, connect: &MockConnect| {
        harness.port.host_to_drain(&connect.command.entry(), &connect.data.encode(), from())
    };
    let admin = MockConnect::admin();
    let (subsystem, named) = host(&harness, &admin).unwrap();
    assert_eq!(subsystem, SubsystemId::FIRST);
    assert_eq!((named.nqn, named.hostid), (Some(Nqn::new(HOSTNQN).unwrap()), admin.data.hostid));
    let mut elsewhere = MockConnect::admin();
    elsewhere.data.subnqn = Nqn::new("nqn.2014-08.org.example:elsewhere").unwrap().into();
    let mut unknown = MockConnect::admin();
    unknown.data.hostnqn = Nqn::new("nqn.2014-08.org.example:stranger").unwrap().into();
    for connect in [MockConnect::discovery(), MockConnect::io(id, 1), elsewhere, unknown] {
        assert_eq!(host(&harness, &connect), None, "{connect:?}");
    }
}

#[test]
fn compares_unnamed_hosts_by_identifier() {
    let host =
        |name: Option<&str>, id| Host { nqn: name.map(|name| Nqn::new(name).unwrap()), hostid: [id; 16] };
    let (a, b) = (Some("nqn.2014-08.org.example:a"), Some("nqn.2014-08.org.example:b"));
    assert!(host(a, 1).matches(&host(a, 2)));
    assert!(!host(a, 1).matches(&host(b, 1)));
    assert!(host(None, 1).matches(&host(a, 1)) && host(a, 1).matches(&host(None, 1)));
    assert!(!host(None, 1).matches(&host(None, 2)) && !host(a, 1).matches(&host(None, 2)));
}

#[test]
fn old_cntlid_is_known_until_io_ends() {
    let mut harness = Harness::new();
    let old = harness.ready();
    harness.io_queue(old, 1).unwrap();
    harness.drop_queue(old, 0);
    assert_eq!(rejected(harness.io_queue(old, 2)), Completion::failed(Status::CONNECT_CONTROLLER_BUSY));
    harness.drop_queue(old, 1);
    assert_eq!(rejected(harness.io_queue(old, 2)), ConnectRejection::Data(16).completion().into());
}

#[test]
fn rejects_drain_of_connected_queue() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.port.handle_drained(id, 1);
    assert_eq!(harness.port.associations()[0].queues, 2);
}

#[test]
fn ignores_reports_of_gone_association() {
    let mut harness = Harness::new();
    let gone = harness.ready();
    harness.drop_queue(gone, 0);
    let id = harness.ready();
    harness.events();
    let impostor = AssociationId { cntlid: id.cntlid, ..gone };
    harness.drop_queue(impostor, 0);
    harness.port.handle_flushed(impostor, false);
    assert_eq!(harness.events(), []);
    assert!(harness.csts(id).rdy());
}

#[test]
fn hosts_do_not_disturb_each_other() {
    let mut harness = Harness::new();
    let (one, two) = (harness.ready(), harness.ready());
    harness.io_queue(one, 1).unwrap();
    harness.io_queue(two, 1).unwrap();
    harness.set_cc(one, Cc(0));
    harness.drop_queue(one, 1);
    assert!(!harness.csts(one).rdy());
    assert!(harness.csts(two).rdy());
}

#[test]
fn disconnect_deletes_only_its_io_queue() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    let entry = DisconnectCommand::default().entry();
    let action = harness.port.handle_command(id, 1, &entry, 0, harness.now);
    assert_eq!(action, Action::Disconnect(Completion::success()));
    harness.drop_queue(id, 1);
    assert!(harness.io_queue(id, 1).is_ok());

    assert_eq!(harness.complete(id, entry), rejected_with(Status::INVALID_QUEUE_TYPE));
    let unknown = DisconnectCommand { recfmt: 1 }.entry();
    let action = harness.port.handle_command(id, 1, &unknown, 0, harness.now);
    assert_eq!(completion(action), rejected_with(Status::CONNECT_INCOMPATIBLE_FORMAT));
}

#[test]
fn io_queue_rejects_admin_commands() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    let size = PropertySize::Bytes4;
    for entry in [keep_alive(), PropertyGetCommand { size, offset: offset::CSTS }.entry()] {
        let action = harness.port.handle_command(id, 1, &entry, 0, harness.now);
        assert_eq!(completion(action), rejected_with(Status::INVALID_OPCODE));
    }
}

#[test]
fn rejects_unknown_admin_opcodes() {
    use isolane_wire::opcode::AdminOpcode;
    let mut harness = Harness::new();
    let id = harness.ready();
    for opcode in [AdminOpcode::CreateIoSubmissionQueue, AdminOpcode::FormatNvm, AdminOpcode::SecuritySend] {
        for data_bytes in [0, 4096] {
            let action = harness.execute(id, SubmissionEntry::new(opcode.code(), 1), data_bytes);
            assert_eq!(completion(action), rejected_with(Status::INVALID_OPCODE));
        }
    }
    let authentication = SubmissionEntry::new(0x7f, 0x05);
    assert_eq!(completion(harness.execute(id, authentication, 64)), rejected_with(Status::INVALID_OPCODE));
    assert_eq!(harness.complete(id, SubmissionEntry::new(0xff, 0)), rejected_with(Status::INVALID_OPCODE));
}

#[test]
fn rejects_unexpected_data() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let size = PropertySize::Bytes4;
    for entry in [keep_alive(), PropertyGetCommand { size, offset: offset::CSTS }.entry()] {
        let action = harness.execute(id, entry, 4096);
        assert_eq!(completion(action), rejected_with(Status::DATA_SGL_LENGTH_INVALID));
    }
}
