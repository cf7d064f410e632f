//! Connections that the target reports, and ends that an operator requests.

mod common;

use std::sync::{Arc, Mutex};

use common::auth::{SameForAll, fast, host_config, keys};
use common::stuck::Stuck;
use common::*;
use isolane_target::{
    ConnectionPhase, ConnectionStatus, Disconnected, NamespaceError, TargetEvent, TargetPort,
};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{Nqn, Status};

const OTHER_HOST: &str = "nqn.2014-08.org.example:other-host";

fn host(text: &str) -> Nqn {
    text.parse().unwrap()
}

/// The status of the connection of this host.
fn status_of<'a>(connections: &'a [ConnectionStatus], host: &MockHost) -> &'a ConnectionStatus {
    let peer = host.stream.local_addr().unwrap();
    connections.iter().find(|status| status.peer == peer).unwrap()
}

#[test]
fn reports_port_controller_and_commands() {
    let (stuck, relief) = Stuck::new();
    let mut config = serving(vec![(1, stuck.clone())]);
    config.listen = vec![TargetPort::named("left", "127.0.0.1:0".parse().unwrap())];
    let (target, address) = start(config);
    let control = target.control();
    let (admin, mut queue) = pair(address, 31);
    let waiting = MockHost::initialized(address, IcReq::default());
    queue.send(in_capsule(write_entry(0, 1), &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    eventually("all are there", || control.connections().len() == 3);
    let connections = control.connections();
    let (of_admin, of_queue) = (status_of(&connections, &admin), status_of(&connections, &queue));
    for (status, qid) in [(of_admin, 0), (of_queue, 1)] {
        assert_eq!(status.port.as_deref(), Some("left"));
        assert_eq!((status.host_nqn, status.subsystem_nqn), (Some(host(HOST)), Some(host(NQN))));
        assert_eq!((status.cntlid, status.qid), (Some(admin.cntlid), Some(qid)));
        assert_eq!((status.phase, status.is_authenticated), (ConnectionPhase::Connected, false));
    }
    assert_eq!((of_admin.commands, of_queue.commands), (0, 1));
    let of_waiting = status_of(&connections, &waiting);
    assert_eq!((of_waiting.phase, of_waiting.qid), (ConnectionPhase::Connecting, None));
    let first = of_admin.age;
    eventually("it gets older", || status_of(&control.connections(), &admin).age > first);
    relief.release();
    drop(target);
    assert_eq!(control.connections(), []);
}

#[test]
fn reports_proofs_of_hosts() {
    let (target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let config = host_config(keys(0, None), fast());
    let admin = MockHost::authenticated(address, &config);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    let seen = |of: &MockHost| {
        let connections = target.connections();
        let status = status_of(&connections, of);
        (status.phase, status.is_authenticated)
    };
    assert_eq!(seen(&admin), (ConnectionPhase::Connected, true));
    assert_eq!(seen(&queue), (ConnectionPhase::Authenticating, false));
    queue.authenticate(&config).unwrap();
    assert_eq!(seen(&queue), (ConnectionPhase::Connected, true));
}

#[test]
fn host_is_disconnected_after_its_commands_and_returns() {
    let (stuck, relief) = Stuck::new();
    let (target, address) = start(serving(vec![(1, stuck.clone())]));
    let control = target.control();
    let (mut admin, mut queue) = pair(address, 31);
    let mut discovery = MockHost::initialized(address, IcReq::default());
    assert_eq!(discovery.connect(0, 0xffff, Nqn::DISCOVERY, HOST, 31).status, Status::SUCCESS);
    let mut other = MockHost::admin_with(address, IcReq::default(), OTHER_HOST);
    let cid = queue.send(in_capsule(write_entry(0, 1), &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);

    let ended = control.disconnect_host(&host(HOST)).unwrap();
    assert_eq!(ended, Disconnected { associations: 2, connections: 0 });
    discovery.expect_end();
    eventually("it closes", || {
        let connections = control.connections();
        [&admin, &queue].iter().all(|of| status_of(&connections, of).phase == ConnectionPhase::Closing)
    });
    let again = control.disconnect_host(&host(HOST)).unwrap();
    assert_eq!(again, Disconnected::default(), "it ends already");
    relief.release();
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    queue.expect_end();
    admin.expect_end();
    other.set_property(CC, Cc::enabled().0);
    pair(address, 31);
    assert_eq!(
        control.disconnect_host(&host("nqn.2014-08.org.example:none")).unwrap(),
        Disconnected::default()
    );
    drop(target);
    assert_eq!(control.disconnect_host(&host(HOST)), Err(NamespaceError::Ended));
}

#[test]
fn one_connection_is_disconnected() {
    let config = isolane_target::TargetConfig { cores: one_core_twice(), ..config(&["mem:1M"]) };
    let (target, address) = start(config);
    let control = target.control();
    let (mut admin, mut queue) = pair(address, 31);
    let mut second = admin.io_queue(2, 31);
    let mut waiting = MockHost::initialized(address, IcReq::default());
    let end = |of: &MockHost| control.disconnect_address(of.stream.local_addr().unwrap()).unwrap();
    assert_eq!(end(&queue), Disconnected { associations: 0, connections: 1 });
    queue.expect_end();
    assert_eq!(end(&waiting), Disconnected { associations: 0, connections: 1 });
    waiting.expect_end();
    assert_eq!(second.write(write_entry(1, 1), &[7; 512]).0.status, Status::SUCCESS);
    let mut again = MockHost::initialized(address, IcReq::default());
    eventually("its ID is free", || {
        let answer = again.connect(1, admin.cntlid, NQN, HOST, 31);
        again = if answer.status.is_success() {
            return true;
        } else {
            MockHost::initialized(address, IcReq::default())
        };
        false
    });
    assert_eq!(end(&admin), Disconnected { associations: 1, connections: 0 });
    second.expect_end();
    again.expect_end();
    admin.expect_end();
    assert_eq!(end(&admin), Disconnected::default());
}

#[test]
fn hosts_that_come_and_go_are_events() {
    let (target, address) = start(config(&["mem:1M"]));
    let events = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&events);
    assert!(target.control().on_event(move |event| received.lock().unwrap().push(event)));
    assert!(!target.control().on_event(|_| {}), "there is a receiver");
    let (admin, _queue) = pair(address, 31);
    let (peer, cntlid) = (admin.stream.local_addr().unwrap(), admin.cntlid);
    let (host, subsystem) = (Some(host(HOST)), Some(host(NQN)));
    assert_eq!(*events.lock().unwrap(), [TargetEvent::Connected { peer, host, subsystem, cntlid }]);
    drop(admin);
    eventually("it ends", || events.lock().unwrap().len() == 2);
    let reason = "the association's admin connection is gone";
    assert_eq!(events.lock().unwrap()[1], TargetEvent::Disconnected { host, subsystem, cntlid, reason });
}
