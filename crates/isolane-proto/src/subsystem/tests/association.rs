//! The life of an association: keep alive, loss of connections, fencing, Disconnect.

use super::*;
use isolane_wire::admin::keep_alive;
use isolane_wire::fabrics::{ConnectRejection, DisconnectCommand};

#[test]
fn silent_host_loses_association() {
    let mut world = World::new();
    let connected = world.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    world.set_cc(id, Cc::enabled());
    world.wait(5 * S);
    assert_eq!(world.events(), [], "Connect and Property Set were traffic");
    assert_eq!(world.port.poll_timeout(), Some(world.now + 5 * S));
    world.wait(5 * S);
    assert_eq!(world.events(), [ControlEvent::Close { id, reason: CloseReason::KeepAliveExpired }]);
    assert!(!connected.status.is_ready());
    let action = world.execute(id, keep_alive(), 0);
    assert_eq!(completion(action).status, Status::ABORTED_SQ_DELETION, "too late");

    world.drop_queue(id, 0);
    assert_eq!(world.events(), [ControlEvent::Ended { id }]);
    assert_eq!(world.port.poll_timeout(), None);
}

#[test]
fn any_traffic_keeps_association() {
    let mut world = World::new();
    let id = world.ready();
    let io = world.io_queue(id, 1).unwrap();
    for _ in 0..10 {
        world.wait(4 * S);
        assert_eq!(world.complete(id, keep_alive()), Completion::success());
    }
    for _ in 0..10 {
        world.wait(4 * S);
        io.status.record_traffic();
    }
    assert_eq!(world.events(), []);
}

#[test]
fn reports_effective_kato() {
    let mut world = World::new();
    let id = world.ready();
    assert_eq!(world.feature(id, FeatureId::KeepAliveTimer), Completion::with_dw0(5000));
    world.set_feature(id, FeatureId::KeepAliveTimer, 30_001);
    assert_eq!(world.feature(id, FeatureId::KeepAliveTimer), Completion::with_dw0(31_000));
    assert_eq!(world.port.poll_timeout(), Some(world.now + 31 * S));
}

#[test]
fn keep_alive_stops_with_the_shutdown() {
    let mut world = World::new();
    let id = world.ready();
    world.set_cc(id, Cc::enabled().with_shn(Cc::SHN_NORMAL));
    world.events();
    world.wait(100 * S);
    assert_eq!(world.events(), []);
}

#[test]
fn drops_controller_never_enabled() {
    let mut world = World::new();
    let id = world.admin();
    world.wait(120 * S);
    assert_eq!(world.events(), [ControlEvent::Close { id, reason: CloseReason::KeepAliveExpired }]);
}

#[test]
fn admin_loss_ends_association_after_io() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.port.handle_disconnected(id, 0);
    world.port.handle_drained(id, 0);
    assert_eq!(world.events(), [ControlEvent::Close { id, reason: CloseReason::AdminQueueLost }]);
    world.port.handle_disconnected(id, 1);
    assert_eq!(world.events(), []);
    world.port.handle_drained(id, 1);
    assert_eq!(world.events(), [ControlEvent::Ended { id }]);
    assert!(world.port.associations().is_empty());
}

#[test]
fn orphaned_queue_holds_cntlid_until_io_ends() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.set_cc(id, Cc(0));
    world.port.handle_disconnected(id, 1);
    world.port.handle_stuck(id, 1);
    assert!(!world.csts(id).rdy());
    world.set_cc(id, Cc::enabled());
    world.io_queue(id, 1).unwrap();
    world.drop_queue(id, 1);
    world.drop_queue(id, 0);
    let reason = CloseReason::AdminQueueLost;
    assert_eq!(world.events(), [ControlEvent::CloseIoQueues { id }, ControlEvent::Close { id, reason }]);
    assert_eq!(rejected(world.io_queue(id, 1)).status, Status::CONNECT_CONTROLLER_BUSY);
    world.port.handle_unstuck(id);
    assert_eq!(world.events(), [ControlEvent::Ended { id }]);
}

#[test]
fn admits_a_host_whose_old_association_still_ends() {
    let mut world = World::new();
    let old = world.ready();
    world.io_queue(old, 1).unwrap();
    world.drop_queue(old, 0);
    let new = world.connect(&MockConnect::admin()).unwrap().id;
    assert_ne!(new.cntlid, old.cntlid);
}

#[test]
fn drains_only_hosts_of_accepted_admin_connects() {
    let mut config = config();
    config.subsystem.allowed_hosts = Some(vec![Nqn::new(HOSTNQN).unwrap()]);
    let mut world = World::with(config);
    let id = world.ready();
    let host = |world: &World, connect: &MockConnect| {
        world.port.host_to_drain(&connect.command.entry(), &connect.data.encode())
    };
    let admin = MockConnect::admin();
    let named = host(&world, &admin).unwrap();
    assert_eq!((named.nqn, named.hostid), (Some(Nqn::new(HOSTNQN).unwrap()), admin.data.hostid));
    let mut elsewhere = MockConnect::admin();
    elsewhere.data.subnqn = Nqn::new("nqn.2014-08.org.example:elsewhere").unwrap().into();
    let mut refused = MockConnect::admin();
    refused.data.hostnqn = Nqn::new("nqn.2014-08.org.example:stranger").unwrap().into();
    for connect in [MockConnect::discovery(), MockConnect::io(id, 1), elsewhere, refused] {
        assert_eq!(host(&world, &connect), None, "{connect:?}");
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
    let mut world = World::new();
    let old = world.ready();
    world.io_queue(old, 1).unwrap();
    world.drop_queue(old, 0);
    assert_eq!(rejected(world.io_queue(old, 2)), Completion::failed(Status::CONNECT_CONTROLLER_BUSY));
    world.drop_queue(old, 1);
    assert_eq!(rejected(world.io_queue(old, 2)), ConnectRejection::Data(16).completion().into());
}

#[test]
fn rejects_drain_of_connected_queue() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.port.handle_drained(id, 1);
    assert_eq!(world.port.associations()[0].queues, 2);
}

#[test]
fn ignores_reports_of_gone_association() {
    let mut world = World::new();
    let gone = world.ready();
    world.drop_queue(gone, 0);
    let id = world.ready();
    world.events();
    let impostor = AssociationId { cntlid: id.cntlid, ..gone };
    world.drop_queue(impostor, 0);
    world.port.handle_flushed(impostor, false);
    assert_eq!(world.events(), []);
    assert!(world.csts(id).rdy());
}

#[test]
fn hosts_do_not_disturb_each_other() {
    let mut world = World::new();
    let (one, two) = (world.ready(), world.ready());
    world.io_queue(one, 1).unwrap();
    world.io_queue(two, 1).unwrap();
    world.set_cc(one, Cc(0));
    world.drop_queue(one, 1);
    assert!(!world.csts(one).rdy());
    assert!(world.csts(two).rdy());
}

#[test]
fn disconnect_deletes_an_io_queue_and_nothing_else() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    let entry = DisconnectCommand::default().entry();
    let action = world.port.handle_command(id, 1, &entry, 0, world.now);
    assert_eq!(action, Action::Disconnect(Completion::success()));
    world.drop_queue(id, 1);
    assert!(world.io_queue(id, 1).is_ok());

    assert_eq!(world.complete(id, entry), refused(Status::INVALID_QUEUE_TYPE));
    let unknown = DisconnectCommand { recfmt: 1 }.entry();
    let action = world.port.handle_command(id, 1, &unknown, 0, world.now);
    assert_eq!(completion(action), refused(Status::CONNECT_INCOMPATIBLE_FORMAT));
}

#[test]
fn io_queue_rejects_admin_commands() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    let size = PropertySize::Bytes4;
    for entry in [keep_alive(), PropertyGetCommand { size, offset: offset::CSTS }.entry()] {
        let action = world.port.handle_command(id, 1, &entry, 0, world.now);
        assert_eq!(completion(action), refused(Status::INVALID_OPCODE));
    }
}

#[test]
fn rejects_unknown_admin_opcodes() {
    use isolane_wire::opcode::AdminOpcode;
    let mut world = World::new();
    let id = world.ready();
    for opcode in [AdminOpcode::CreateIoSubmissionQueue, AdminOpcode::FormatNvm, AdminOpcode::SecuritySend] {
        for data_bytes in [0, 4096] {
            let action = world.execute(id, SubmissionEntry::new(opcode.code(), 1), data_bytes);
            assert_eq!(completion(action), refused(Status::INVALID_OPCODE));
        }
    }
    let authentication = SubmissionEntry::new(0x7f, 0x05);
    assert_eq!(completion(world.execute(id, authentication, 64)), refused(Status::INVALID_OPCODE));
    assert_eq!(world.complete(id, SubmissionEntry::new(0xff, 0)), refused(Status::INVALID_OPCODE));
}

#[test]
fn rejects_unexpected_data() {
    let mut world = World::new();
    let id = world.ready();
    let size = PropertySize::Bytes4;
    for entry in [keep_alive(), PropertyGetCommand { size, offset: offset::CSTS }.entry()] {
        let action = world.execute(id, entry, 4096);
        assert_eq!(completion(action), refused(Status::DATA_SGL_LENGTH_INVALID));
    }
}
