//! Bounds before authentication: hosts that do not prove who they are keep no other host out, and hold no memory.

mod common;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::auth::{SameForAll, fast, host_config, keys};
use common::*;
use isolane_proto::auth::{ExchangeConfig, HostNegotiating, Nonces};
use isolane_target::{ConnectionLimits, LimitKind, LimitScope, Policy, Target, TargetConfig, TargetLimits};
use isolane_wire::auth::{AuthenticationSendCommand, DhGroup, Hash};
use isolane_wire::pdu::IcReq;
use isolane_wire::{Status, io as nvm};

const MAX: usize = 16;

/// A target that has little space for hosts that have not authenticated, on two reactors.
fn small() -> (Target, SocketAddr) {
    let mut config = SameForAll::new(vec![keys(0, Some(1))]).config();
    config.cores = one_core_twice();
    config.auth.as_mut().unwrap().max_unauthenticated = MAX;
    start(config)
}

/// A connection from 127.0.0.`from`.
fn dial(from: u8, address: SocketAddr) -> MockHost {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(Ipv4Addr::new(127, 0, 0, from).into(), 0).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut host = MockHost::over(TcpStream::from(socket));
    host.initialize(IcReq::default());
    host
}

/// Connects an admin queue, and returns it with the status.
fn connect(from: u8, address: SocketAddr) -> (MockHost, Status) {
    let mut host = dial(from, address);
    let status = host.connect(0, 0xffff, NQN, HOST, 31).status;
    (host, status)
}

fn right() -> ExchangeConfig {
    host_config(keys(0, None), fast())
}

fn is_closed(host: &mut MockHost) -> bool {
    host.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let is_closed = match std::io::Read::read(&mut host.stream, &mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    host.stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    is_closed
}

#[test]
fn address_with_many_unproven_queues_is_refused() {
    let (target, address) = small();
    let admin = MockHost::authenticated(address, &right());
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&right()).unwrap();
    let mut flood: Vec<_> = (0..MAX).map(|_| connect(1, address)).collect();
    assert!(flood.iter().all(|(_, status)| *status == Status::SUCCESS));
    for _ in 0..3 {
        let (mut refused, status) = connect(1, address);
        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
        refused.expect_end();
    }
    let counters = target.counters();
    assert_eq!((counters.connections_unauthenticated, counters.authentication_refused), (MAX as u64, 3));
    assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS);
    // The flood can finish, and its next connections are admitted.
    flood.iter_mut().for_each(|(host, _)| host.authenticate(&right()).unwrap());
    assert_eq!(target.counters().connections_unauthenticated, 0);
    assert_eq!(connect(1, address).1, Status::SUCCESS);
}

#[test]
fn host_of_another_address_displaces_one_of_many() {
    let (target, address) = small();
    let mut flood: Vec<_> = (0..MAX).map(|_| connect(1, address).0).collect();
    let (mut host, status) = connect(2, address);
    assert_eq!(status, Status::SUCCESS);
    eventually("the oldest has ended", || is_closed(&mut flood[0]));
    assert!(!is_closed(&mut flood[1]));
    assert_eq!(target.counters().connections_unauthenticated, MAX as u64);
    host.authenticate(&right()).unwrap();
    let counters = target.counters();
    assert_eq!((counters.connections_unauthenticated, counters.authentication_refused), (MAX as u64 - 1, 1));
    // Now there is space for one of the first address, too.
    let last = connect(1, address);
    assert_eq!(last.1, Status::SUCCESS);
    assert_eq!(connect(1, address).1, Status::CONNECT_CONTROLLER_BUSY);
}

/// I/O queues that do not close after their refusal.
#[test]
fn refused_queues_keep_no_other_host_out() {
    let (target, address) = small();
    let wrong = host_config(keys(2, None), fast());
    let admin = MockHost::authenticated(address, &right());
    let mut flood: Vec<_> =
        (1..=MAX as u16).map(|qid| MockHost::locked(address, qid, admin.cntlid)).collect();
    flood.iter_mut().for_each(|host| assert!(host.authenticate(&wrong).is_err()));
    let (mut host, status) = connect(2, address);
    assert_eq!(status, Status::SUCCESS);
    host.authenticate(&right()).unwrap();
    drop(flood);
    eventually("the flood is gone", || target.counters().connections_open == 2);
    let counters = target.counters();
    assert_eq!((counters.connections_unauthenticated, counters.authentication_refused), (0, MAX as u64));
    assert_eq!(connect(1, address).1, Status::SUCCESS);
}

/// Exponentiations of one address fill the queue; those of another take turns with them.
#[test]
fn flood_of_exponentiations_gives_way_to_another_address() {
    let (_target, address) = start(SameForAll::new(vec![keys(0, None)]).config());
    let policy = |group| Policy { hashes: vec![Hash::Sha256], groups: vec![group] };
    let slow = host_config(keys(0, None), policy(DhGroup::Ffdhe4096));
    let mut flood: Vec<MockHost> = (0..300).map(|_| connect(1, address).0).collect();
    flood.iter_mut().for_each(|host| negotiate(host, &slow));
    let (mut host, status) = connect(2, address);
    assert_eq!(status, Status::SUCCESS);
    host.authenticate(&host_config(keys(0, None), policy(DhGroup::Ffdhe2048))).unwrap();
}

/// Sends the first message, and does not wait for its completion.
fn negotiate(host: &mut MockHost, config: &ExchangeConfig) {
    let nonces = Nonces::generate().unwrap();
    let (_, message) = HostNegotiating::start(config.clone(), 1, nonces).unwrap();
    let entry = AuthenticationSendCommand::new(message.len() as u32).entry();
    host.send(in_capsule(entry, &message), &message);
}

/// Handshakes of all kinds from one address, as fast as possible, while a host of another one works and connects.
#[test]
fn flood_of_hostile_handshakes_leaves_nothing() {
    let (target, address) = small();
    let group = Policy { hashes: vec![Hash::Sha384], groups: vec![DhGroup::Ffdhe2048] };
    let host = host_config(keys(0, Some(1)), group.clone());
    let mut admin = connect(2, address).0;
    admin.authenticate(&right()).unwrap();
    let (is_over, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (host, ended, is_over) = (&host, &ended, &is_over);
            scope.spawn(move || {
                for round in (thread..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    attack(connect(1, address), round, host);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut counted = 0;
        while ended.load(Ordering::Relaxed) < 100 {
            let (mut other, status) = connect(2, address);
            assert_eq!(status, Status::SUCCESS);
            other.authenticate(&host_config(keys(0, None), group.clone())).unwrap();
            assert!(target.counters().connections_unauthenticated <= MAX as u64);
            counted += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(counted > 0);
    });
    eventually("only one queue is left", || target.counters().connections_open == 1);
    assert_eq!(target.counters().connections_unauthenticated, 0);
    assert_eq!(target.associations().len(), 1);
    let message = host_config(keys(0, Some(1)), fast());
    admin.authenticate(&message).unwrap();
}

/// One handshake that fails. A refused Connect is fine.
fn attack((mut host, status): (MockHost, Status), kind: usize, config: &ExchangeConfig) {
    if status != Status::SUCCESS {
        return;
    }
    let wrong = ExchangeConfig { keys: vec![keys(2, None)], ..config.clone() };
    let changed = |value: Vec<u8>| {
        move |reply: &mut Vec<u8>| {
            let at = reply.len() - value.len();
            reply[at..].copy_from_slice(&value);
        }
    };
    let prime_like = |last: u8| [vec![0xff; 255], vec![last]].concat();
    match kind % 9 {
        0 => drop(host.authenticate(&wrong)),
        1 => {} // It only connects.
        2 => negotiate(&mut host, config),
        3 => drop(host.challenged(config)),
        4 => send_reply(&mut host, config, changed(vec![0; 256])),
        5 => send_reply(&mut host, config, changed([vec![0; 255], vec![1]].concat())),
        6 => send_reply(&mut host, config, changed(prime_like(0xfe))),
        7 => send_reply(&mut host, config, changed(prime_like(0xff))),
        _ => send_reply(&mut host, config, |reply| reply.truncate(20)),
    }
}

/// Sends a changed reply, which the target refuses.
fn send_reply(host: &mut MockHost, config: &ExchangeConfig, change: impl Fn(&mut Vec<u8>)) {
    let Ok((_, mut reply)) = host.challenged(config) else { panic!("no challenge") };
    change(&mut reply);
    let answer = host.send_message(&reply);
    assert_eq!(answer.status, Status::SUCCESS);
    assert_eq!(host.message()[..2], [0, 0xf1]);
}

/// A target on two reactors, with these limits of the host.
fn limited(limits: ConnectionLimits) -> (Target, SocketAddr) {
    let limits = TargetLimits { hosts: [(HOST.parse().unwrap(), limits)].into(), ..TargetLimits::default() };
    let config = SameForAll::new(vec![keys(0, Some(1))]).config();
    start(TargetConfig { cores: one_core_twice(), limits, ..config })
}

fn reached(target: &Target, kind: LimitKind) -> u64 {
    target.counters().limits_reached.get(&(LimitScope::Host, kind)).copied().unwrap_or_default()
}

#[test]
fn queues_without_proof_do_not_use_up_limits_of_a_host() {
    let max = |connections| ConnectionLimits {
        connections: Some(connections),
        associations: Some(1),
        commands: Some(64),
        memory: None,
    };
    let (target, address) = limited(max(2));
    let mut others: Vec<_> = (0..4).map(|_| connect(1, address)).collect();
    assert!(others.iter().all(|(_, status)| *status == Status::SUCCESS), "nothing is proven");
    let admin = MockHost::authenticated(address, &right());
    others.extend((0..4).map(|_| connect(1, address)));
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&right()).unwrap();
    assert_eq!(queue.run(nvm::flush(1)).status, Status::SUCCESS);
    assert_eq!(others.iter().filter(|(_, status)| *status == Status::SUCCESS).count(), 4);
    let (mut refused, status) = connect(1, address);
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    refused.expect_end();
    assert_eq!(reached(&target, LimitKind::Connections) + reached(&target, LimitKind::Associations), 5);
}

#[test]
fn proof_above_a_limit_is_refused() {
    let (target, address) =
        limited(ConnectionLimits { associations: Some(1), ..ConnectionLimits::default() });
    for round in 1..=5 {
        let (mut first, mut second) =
            (MockHost::locked(address, 0, 0xffff), MockHost::locked(address, 0, 0xffff));
        first.authenticate(&right()).unwrap();
        let (_, reply) = second.challenged(&right()).map_err(|_| "the challenge is right").unwrap();
        assert_eq!(second.send_message(&reply).status, Status::CONNECT_CONTROLLER_BUSY);
        second.expect_end();
        assert_eq!(reached(&target, LimitKind::Associations), round);
        first.authenticate(&right()).expect("it counts already");
        drop((first, second));
        eventually("both have ended", || target.counters().connections_open == 0);
    }
}
