//! Connect: every rejection, with the offending field.

use isolane_wire::fabrics::{ConnectAttributes, ConnectRejection, ConnectResponse};

use super::*;

#[track_caller]
fn assert_rejects(connect: &MockConnect, rejection: ConnectRejection) {
    let mut harness = Harness::new();
    assert_eq!(rejected(harness.connect(connect)), rejection.completion().into());
    assert!(harness.port.associations().is_empty(), "a rejected Connect leaves no state");
}

fn invalid(spoil: impl FnOnce(&mut MockConnect)) -> MockConnect {
    let mut connect = MockConnect::admin();
    spoil(&mut connect);
    connect
}

#[test]
fn io_queue_joins_controller() {
    let mut harness = Harness::new();
    let connect = invalid(|connect| {
        connect.command.attributes = ConnectAttributes(0).with_disable_sq_flow_control(true);
    });
    let admin = harness.connect(&connect).unwrap();
    assert_eq!((admin.qid, admin.sqsize, admin.flow_control_disabled), (0, 31, true));
    assert_eq!(ConnectResponse(admin.completion.dw0), ConnectResponse(0).with_cntlid(admin.id.cntlid));
    assert!(!admin.status.is_ready());

    harness.set_cc(admin.id, Cc::enabled());
    assert!(admin.status.is_ready());
    let io = harness.io_queue(admin.id, 1).unwrap();
    assert_eq!((io.id, io.qid, io.sqsize, io.flow_control_disabled), (admin.id, 1, 127, false));
    assert_eq!(harness.port.associations()[0].queues, 2);
}

#[test]
fn rejects_unknown_record_format() {
    let connect = invalid(|connect| connect.command.recfmt = 1);
    assert_eq!(
        rejected(Harness::new().connect(&connect)),
        rejected_with(Status::CONNECT_INCOMPATIBLE_FORMAT)
    );
}

#[test]
fn rejects_connect_data_of_wrong_length() {
    let connect = MockConnect::admin();
    let data = [connect.data.encode().as_slice(), &[0; 4]].concat();
    for data in [&data[..0], &data[..1023], &data] {
        let mut harness = Harness::new();
        let result = harness.port.connect(&connect.command.entry(), data, from(), harness.now);
        assert_eq!(rejected(result), rejected_with(Status::DATA_SGL_LENGTH_INVALID));
    }
}

#[test]
fn reports_offset_of_wrong_subnqn() {
    let unknown = Nqn::new("nqn.2014-08.org.example:other").unwrap().into();
    for subnqn in [unknown, NqnField([b'n'; 256]), NqnField([0; 256]), NqnField([0xff; 256])] {
        let connect = invalid(|connect| connect.data.subnqn = subnqn);
        assert_rejects(&connect, ConnectRejection::Data(256));
    }
}

#[test]
fn reports_offset_of_unterminated_hostnqn() {
    for hostnqn in [NqnField([b'n'; 256]), NqnField([0xff; 256])] {
        let connect = invalid(|connect| connect.data.hostnqn = hostnqn);
        assert_rejects(&connect, ConnectRejection::Data(512));
    }
}

#[test]
fn accepts_empty_hostnqn_without_allow_list() {
    let unnamed = invalid(|connect| connect.data.hostnqn = NqnField::EMPTY);
    let mut harness = Harness::new();
    let admin = harness.connect(&unnamed).unwrap();
    assert_eq!((admin.host.nqn, admin.host.hostid), (None, unnamed.data.hostid));
    harness.set_cc(admin.id, Cc::enabled());
    let mut io = MockConnect::io(admin.id, 1);
    assert_eq!(rejected(harness.connect(&io)), ConnectRejection::Data(512).completion().into());
    io.data.hostnqn = NqnField::EMPTY;
    assert!(harness.connect(&io).is_ok());

    let mut config = config();
    config.subsystems[0].allowed_hosts = Some(vec![Nqn::new(HOSTNQN).unwrap()]);
    let mut harness = Harness::with(config);
    assert_eq!(rejected(harness.connect(&unnamed)), rejected_with(Status::CONNECT_INVALID_HOST));
}

#[test]
fn admin_connect_requires_dynamic_controller() {
    for cntlid in [0, 1, 0xfffe] {
        let connect = invalid(|connect| connect.data.cntlid = cntlid);
        assert_rejects(&connect, ConnectRejection::Data(16));
    }
}

#[test]
fn checks_admin_queue_size() {
    for sqsize in [0, 128, 0xffff] {
        let connect = invalid(|connect| connect.command.sqsize = sqsize);
        assert_rejects(&connect, ConnectRejection::Command(44));
    }
    for sqsize in [1, 31, 127] {
        let connect = invalid(|connect| connect.command.sqsize = sqsize);
        assert!(Harness::new().connect(&connect).is_ok());
    }
}

#[test]
fn checks_io_queue_size() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let mut connect = MockConnect::io(id, 1);
    for sqsize in [0, 256] {
        connect.command.sqsize = sqsize;
        assert_eq!(rejected(harness.connect(&connect)), ConnectRejection::Command(44).completion().into());
    }
    connect.command.sqsize = 255;
    assert!(harness.connect(&connect).is_ok());
}

#[test]
fn rejects_host_not_allowed() {
    let mut config = config();
    config.subsystems[0].allowed_hosts = Some(vec![Nqn::new("nqn.2014-08.org.example:friend").unwrap()]);
    let mut harness = Harness::with(config);
    assert_eq!(rejected(harness.connect(&MockConnect::admin())), rejected_with(Status::CONNECT_INVALID_HOST));
    assert!(harness.connect(&MockConnect::discovery()).is_ok(), "discovery is open to all");
}

#[test]
fn full_port_returns_busy() {
    let mut harness = Harness::with(PortConfig { max_associations: 1, ..config() });
    let id = harness.admin();
    let busy = Completion::failed(Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(rejected(harness.connect(&MockConnect::admin())), busy);
    harness.drop_queue(id, 0);
    assert!(harness.connect(&MockConnect::admin()).is_ok());
}

#[test]
fn reports_unknown_cntlid() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cntlid in [0, id.cntlid + 1, 0xfffe, 0xffff] {
        let connect = MockConnect::io(AssociationId { cntlid, ..id }, 1);
        assert_eq!(rejected(harness.connect(&connect)), ConnectRejection::Data(16).completion().into());
    }
}

#[test]
fn rejects_io_queue_of_other_host() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let mut other_host = MockConnect::io(id, 1);
    other_host.data.hostid = [8; 16];
    assert_eq!(rejected(harness.connect(&other_host)), ConnectRejection::Data(0).completion().into());
    other_host.data.hostnqn = Nqn::new("nqn.2014-08.org.example:other_host").unwrap().into();
    assert_eq!(rejected(harness.connect(&other_host)), ConnectRejection::Data(512).completion().into());
}

#[test]
fn reports_offset_of_excessive_qid() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert!(harness.io_queue(id, 4).is_ok());
    for qid in [5, 0xffff] {
        assert_eq!(rejected(harness.io_queue(id, qid)), ConnectRejection::Command(42).completion().into());
    }
    let other = harness.ready();
    harness.set_feature(other, FeatureId::NumberOfQueues, 0);
    assert!(harness.io_queue(other, 1).is_ok());
    assert_eq!(rejected(harness.io_queue(other, 2)), ConnectRejection::Command(42).completion().into());
}

#[test]
fn discovery_rejects_io_queues() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    let mut connect = MockConnect::io(id, 1);
    connect.data.subnqn = NqnField::from(Nqn::discovery());
    assert_eq!(rejected(harness.connect(&connect)), ConnectRejection::Command(42).completion().into());
}

#[test]
fn rejects_qid_until_its_io_ends() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    let in_use = Completion::failed(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rejected(harness.io_queue(id, 1)), in_use);
    harness.port.handle_disconnected(id, 1);
    assert!(harness.io_queue(id, 1).is_err_and(|refusal| refusal.is_qid_in_use));
    assert_eq!(rejected(harness.io_queue(id, 1)), in_use, "without DNR");
    harness.port.handle_drained(id, 1);
    assert!(harness.io_queue(id, 1).is_ok());
}

#[test]
fn rejects_io_queue_before_ready() {
    let mut harness = Harness::new();
    let id = harness.admin();
    assert_eq!(rejected(harness.io_queue(id, 1)), rejected_with(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn rejects_second_connect() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    let again = MockConnect::admin().command.entry();
    for qid in [0, 1] {
        let action = harness.port.handle_command(id, qid, &again, 1024, harness.now);
        assert_eq!(completion(action), rejected_with(Status::COMMAND_SEQUENCE_ERROR));
    }
}

#[test]
fn does_not_reuse_cntlid_soon() {
    let mut harness = Harness::with(PortConfig { max_associations: 2, ..config() });
    let first = harness.admin();
    assert_eq!(first.cntlid, 1);
    harness.port.nvm.values_mut().next().unwrap().next_cntlid = 0xffec;
    let cntlids = [0xffec, 0xffed, 0xffee, 0xffef, 2, 3];
    for expected in cntlids {
        let id = harness.admin();
        assert_eq!(id.cntlid, expected, "counts on, and skips used ones");
        harness.drop_queue(id, 0);
    }
}

#[test]
fn rejected_connects_leak_nothing() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for _ in 0..1000 {
        rejected(harness.io_queue(id, 5));
        rejected(harness.connect(&invalid(|connect| connect.data.cntlid = 1)));
    }
    assert_eq!(harness.port.associations().len(), 1);
    assert_eq!(harness.port.associations()[0].queues, 1);
    assert_eq!(harness.events(), []);
}
