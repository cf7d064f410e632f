//! A target whose connections another one continues.

mod common;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::auth::{SameForAll, fast, host_config, keys};
use common::stuck::Stuck;
use common::*;
use isolane_target::{
    FrozenState, FrozenStateError, NamespaceChange, OfflineVolume, Policy, QosConfig, Refused, Target,
    TargetConfig, TargetPort,
};
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu};
use isolane_wire::{Sgl, Status, SubmissionEntry, admin, digest, io};

const WITHIN: Duration = Duration::from_secs(30);

/// Two reactors, and an address that later targets can inherit.
fn two_cores(volumes: &[&str]) -> TargetConfig {
    TargetConfig { cores: one_core_twice(), ..config(volumes) }
}

/// Returns a copy of a socket of a state.
fn copy_of(state: &FrozenState, number: RawFd) -> std::io::Result<OwnedFd> {
    let mut sockets = state.sockets().iter().filter(|socket| socket.as_raw_fd() == number);
    sockets.next().ok_or(std::io::ErrorKind::NotFound)?.as_fd().try_clone_to_owned()
}

/// Replaces a target, as another process would.
fn upgrade(target: Target, config: &TargetConfig) -> Target {
    let state = target.freeze(WITHIN).unwrap().hand_over().unwrap();
    drop(target);
    continue_with(state, config)
}

fn continue_with(state: FrozenState, config: &TargetConfig) -> Target {
    let read = FrozenState::from_bytes(&state.to_bytes()).unwrap();
    Target::start_from(config.clone(), read, |number| copy_of(&state, number)).unwrap()
}

fn on_transport(entry: SubmissionEntry, len: u32) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::Transport { len }, ..entry }
}

#[test]
fn hosts_do_not_notice_upgrades_under_load() {
    let config = two_cores(&["mem:16M"]);
    let (mut target, address) = start(config.clone());
    let mut admin = MockHost::admin(address);
    let cntlid = admin.cntlid;
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let hosts: Vec<_> = (1..5_u16)
        .map(|qid| {
            let mut queue = admin.io_queue_with(qid, 31, digests(qid.is_multiple_of(2), qid > 2), HOST);
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            thread::spawn(move || {
                let base = u64::from(qid) * 4096;
                let mut seed = 0;
                while !stop.load(Ordering::Relaxed) {
                    seed += 1;
                    let (short, long) = (pattern(seed, 4096), pattern(!seed, 256 << 10));
                    assert_eq!(queue.write(write_entry(base, 8), &short).0.status, Status::SUCCESS);
                    assert_eq!(queue.push(write_entry(base + 8, 512), &long).status, Status::SUCCESS);
                    let (status, data) = queue.fetch(read_entry(base, 8), 4096);
                    assert!(status.status == Status::SUCCESS && data == short);
                    let (status, data) = queue.fetch(read_entry(base + 8, 512), 256 << 10);
                    assert!(status.status == Status::SUCCESS && data == long);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                queue
            })
        })
        .collect();
    for _ in 0..5 {
        let before = rounds.load(Ordering::Relaxed);
        target = upgrade(target, &config);
        eventually("hosts continue", || rounds.load(Ordering::Relaxed) >= before + 8);
    }
    stop.store(true, Ordering::Relaxed);
    let _queues: Vec<MockHost> = hosts.into_iter().map(|host| host.join().unwrap()).collect();
    let associations = target.associations();
    assert_eq!(associations.len(), 1);
    assert_eq!((associations[0].id.cntlid, associations[0].queues), (cntlid, 5));
    assert!(admin.property(CSTS) & 1 == 1, "the controller is still ready");
    let next = MockHost::admin(target.local_addrs()[0]);
    assert_ne!(next.cntlid, cntlid, "new hosts can connect");
    assert_eq!(target.local_addrs(), [address]);
}

#[test]
fn held_async_event_request_completes_after_upgrade() {
    let config = config(&["mem:1M"]);
    let (target, address) = start(config.clone());
    let mut admin = MockHost::admin(address);
    let event = admin.send(admin::async_event_request(), &[]);
    admin.property(CSTS);
    let target = upgrade(target, &config);
    target.add_namespace(None, volume("mem:2M")).unwrap();
    assert_eq!(admin.completion(event).0.status, Status::SUCCESS);
}

#[test]
fn notice_of_another_configuration_follows_upgrade() {
    let before = config(&["mem:1M"]);
    let (target, address) = start(before.clone());
    let mut admin = MockHost::admin(address);
    let event = admin.send(admin::async_event_request(), &[]);
    admin.property(CSTS);
    let mut after = before.clone();
    after.subsystems[0].volumes.push((2, volume("mem:2M")));
    let _target = upgrade(target, &after);
    assert_eq!(admin.completion(event).0.status, Status::SUCCESS, "namespace 2 is new");
}

#[test]
fn carries_parts_of_pdus_and_unsent_data() {
    let config = two_cores(&["mem:4M"]);
    let (mut target, address) = start(config.clone());
    let (_admin, mut queue) = pair(address, 31);
    let data = pattern(5, 8192);
    let header = CapsuleCmd {
        entry: SubmissionEntry { cid: 700, ..in_capsule(write_entry(0, 16), &data) },
        data_len: 8192,
    };
    let bytes = [&header.encode(&queue.outbound)[..], &data].concat();
    let mut rest = &bytes[..];
    for len in [30, 60, 1000, 5000] {
        let (now, later) = rest.split_at(len);
        queue.send_bytes(now);
        rest = later;
        target = upgrade(target, &config);
    }
    queue.send_bytes(rest);
    assert_eq!(queue.completion(700).0.status, Status::SUCCESS);
    let long: Vec<u16> =
        (0..8).map(|_| queue.send(on_transport(read_entry(0, 2048), 1 << 20), &[])).collect();
    target = upgrade(target, &config);
    for cid in long {
        let (status, read) = queue.completion(cid);
        assert!(status.status == Status::SUCCESS && read[..8192] == data);
    }
    drop(target);
}

#[test]
fn sends_no_byte_of_a_state_that_was_taken() {
    let config = two_cores(&["mem:4M"]);
    let data = pattern(7, 1 << 20);
    for is_dropped in [false, true] {
        let (target, address) = start(config.clone());
        let (_admin, mut queue) = pair(address, 31);
        assert_eq!(queue.push(write_entry(0, 2048), &data).status, Status::SUCCESS);
        // More than the buffers of the sockets have room for.
        let reads: Vec<u16> =
            (0..31).map(|_| queue.send(on_transport(read_entry(0, 2048), 1 << 20), &[])).collect();
        let received = Arc::new(AtomicUsize::new(0));
        let frozen = target.freeze(WITHIN).unwrap();
        let reader = {
            let (received, data) = (Arc::clone(&received), data.clone());
            thread::spawn(move || {
                for cid in reads {
                    let (completion, read) = queue.completion(cid);
                    assert!(completion.status == Status::SUCCESS && read == data);
                    received.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        // The host reads everything that its socket has. A pause that is too short can only hide a fault.
        let (mut before, mut pauses) = (0, 0);
        while pauses < 10 {
            thread::sleep(Duration::from_millis(10));
            let now = received.load(Ordering::Relaxed);
            (pauses, before) = if now == before { (pauses + 1, now) } else { (0, now) };
        }
        let _target = if is_dropped {
            drop(frozen);
            target
        } else {
            continue_with(frozen.hand_over().unwrap(), &config)
        };
        reader.join().unwrap();
    }
}

#[test]
fn carries_requested_data_that_the_host_has_not_sent() {
    let config = config(&["mem:4M"]);
    let (target, address) = start(config.clone());
    let (_admin, mut queue) = pair(address, 31);
    let data = pattern(6, 65536);
    let cid = queue.send(on_transport(write_entry(0, 128), 65536), &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
    let _target = upgrade(target, &config);
    queue.send_granted(&r2t, &data);
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    assert!(queue.fetch(read_entry(0, 128), 65536).1 == data);
}

#[test]
fn carries_connections_before_connect() {
    let config = config(&["mem:1M"]);
    let (target, address) = start(config.clone());
    let silent = MockHost::dial(address);
    let mut initialized = MockHost::initialized(address, digests(true, true));
    eventually("both are accepted", || target.counters().connections_open == 2);
    let target = upgrade(target, &config);
    let answer = initialized.connect(0, 0xffff, NQN, HOST, 31);
    assert_eq!(answer.status, Status::SUCCESS);
    assert_eq!(target.counters().connections_before_connect, 1);
    drop(silent);
    eventually("one is left", || target.counters().connections_open == 1);
}

#[test]
fn operation_at_volume_refuses_upgrade() {
    let (stuck, relief) = Stuck::new();
    let (target, address) = start(serving(vec![(1, stuck.clone()), (2, volume("mem:1M"))]));
    let (_admin, mut queue) = pair(address, 31);
    let hung = queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    let refused = target.freeze(Duration::from_millis(50)).unwrap_err();
    let Refused::Unfinished { work, .. } = &refused else { panic!("{refused}") };
    assert_eq!(work, "namespace 1 (stuck): write");
    let other = SubmissionEntry { nsid: 2, ..read_entry(0, 1) };
    assert_eq!(queue.fetch(other, 512).0.status, Status::SUCCESS, "the target continues");
    relief.release();
    assert_eq!(queue.completion(hung).0.status, Status::SUCCESS);
    drop(target.freeze(WITHIN).unwrap());
    let _next = MockHost::admin(address);
}

#[test]
fn dropped_freeze_continues() {
    let (target, address) = start(two_cores(&["mem:4M"]));
    let (_admin, mut queue) = pair(address, 31);
    for seed in 0..20 {
        let data = pattern(seed, 65536);
        let cid = queue.send(on_transport(write_entry(0, 128), 65536), &[]);
        let frozen = target.freeze(WITHIN).unwrap();
        assert_eq!(frozen.state().connections(), 2);
        drop(frozen);
        let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
        queue.send_granted(&r2t, &data);
        assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
        assert!(queue.fetch(read_entry(0, 128), 65536).1 == data);
    }
}

#[test]
fn disconnect_waits_for_the_end_of_a_freeze() {
    let (target, address) = start(two_cores(&["mem:1M"]));
    for _ in 0..20 {
        let mut admin = MockHost::admin(address);
        let frozen = target.freeze(WITHIN).unwrap();
        let control = target.control();
        let begins = AtomicBool::new(false);
        thread::scope(|scope| {
            let request = scope.spawn(|| {
                begins.store(true, Ordering::Release);
                control.disconnect_host(&HOST.parse().unwrap()).unwrap()
            });
            eventually("the request begins", || begins.load(Ordering::Acquire));
            // Long enough for a request that does not wait.
            (0..100).for_each(|_| assert_eq!(target.connections().len(), 1));
            assert!(!request.is_finished());
            drop(frozen);
            assert_eq!(request.join().unwrap().associations, 1);
        });
        admin.expect_end();
        eventually("the connection has ended", || target.counters().connections_open == 0);
    }
}

#[test]
fn association_without_permission_ends() {
    let before = config(&["mem:1M"]);
    let (target, address) = start(before.clone());
    let (mut admin, mut queue) = pair(address, 31);
    let mut after = before.clone();
    after.subsystems[0].allowed_hosts = Some(Vec::new());
    let target = upgrade(target, &after);
    admin.expect_end();
    queue.expect_end();
    assert!(target.associations().is_empty());
}

#[test]
fn altered_state_is_refused() {
    let (target, address) = start(config(&["mem:1M"]));
    let (_admin, _queue) = pair(address, 31);
    let state = target.freeze(WITHIN).unwrap().state().to_bytes();
    assert!(FrozenState::from_bytes(&state).is_ok());
    for len in 0..state.len() {
        assert!(FrozenState::from_bytes(&state[..len]).is_err(), "{len}");
    }
    for at in 0..state.len() {
        let mut altered = state.clone();
        altered[at] ^= 1 << (at % 8);
        assert!(FrozenState::from_bytes(&altered).is_err(), "{at}");
    }
    let mut newer = state;
    newer[8] += 1;
    let found = FrozenState::VERSION + 1;
    let error = FrozenState::from_bytes(&newer).map(drop);
    assert_eq!(error, Err(FrozenStateError::Version { found }));
    assert_eq!(FrozenState::from_bytes(&[0; 100]).map(drop), Err(FrozenStateError::Foreign));
}

/// A state with a valid checksum that no target has written.
fn forged(state: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut content = state[24..].to_vec();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..content.len());
        content[at] = random.u8(..);
    }
    let sum = digest::crc32c(&content).to_le_bytes();
    [&state[..20], &sum, &content].concat()
}

#[test]
fn forged_state_is_refused_or_served() {
    let config = config(&["mem:1M"]);
    let (target, address) = start(config.clone());
    let (mut admin, mut queue) = pair(address, 31);
    admin.send(admin::async_event_request(), &[]);
    queue.send(on_transport(write_entry(0, 128), 65536), &[]);
    queue.answer();
    let state = target.freeze(WITHIN).unwrap().hand_over().unwrap();
    drop(target);
    let bytes = state.to_bytes();
    let mut random = fastrand::Rng::with_seed(7);
    let mut served = 0;
    for _ in 0..2000 {
        let Ok(forged) = FrozenState::from_bytes(&forged(&bytes, &mut random)) else { continue };
        if served < 20 {
            served += 1;
            let take = |number| copy_of(&state, number);
            if let Ok(target) = Target::start_from(config.clone(), forged, take) {
                let frozen = target.freeze(WITHIN).unwrap();
                drop(frozen.hand_over());
            }
        }
    }
    assert!(served > 0, "some alterations are possible values");
}

#[test]
fn carries_what_the_configuration_does_not_say() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = file.path().to_str().unwrap();
    let before = config(&[path, "null:1M", "null:2M"]);
    let (target, address) = start(before.clone());
    let (_admin, mut queue) = pair(address, 31);
    drop(before);
    let nqn = target.volumes()[0].0;
    target.change_namespaces(vec![NamespaceChange::Offline { nsid: 1 }]).unwrap();
    target.change_namespaces(vec![NamespaceChange::ReadOnly { nsid: 2, read_only: true }]).unwrap();
    target.remove_namespace(3).unwrap();
    let list = |target: &Target| target.control().namespaces(&nqn).unwrap().list();
    eventually("both are closed", || list(&target).len() == 2);
    let listed = list(&target);
    // A host without ACRE waits for the volume. It repeats the command later.
    let held = queue.send(read_entry(0, 1), &[]);
    let later = SubmissionEntry { nsid: 2, ..read_entry(0, 1) };
    assert_eq!(queue.fetch(later, 512).0.status, Status::SUCCESS);
    let mut after = config(&[]);
    after.subsystems[0].volumes = vec![(2, target.volumes()[0].2.clone())];
    after.subsystems[0].offline =
        vec![OfflineVolume { nsid: 1, name: "a".into(), reason: "not said".into() }];
    let target = upgrade(target, &after);
    assert!(queue.completion(held).0.status.is(Status::NAMESPACE_NOT_READY));
    assert_eq!(list(&target), listed);
    assert_eq!(listed[0].reason, None, "an operator has taken it offline");
    assert_eq!(target.control().namespaces(&nqn).unwrap().free_nsid(), Some(4), "3 was used");
    let write = SubmissionEntry { nsid: 2, ..in_capsule(write_entry(0, 1), &[1; 512]) };
    assert_ne!(queue.write(write, &[1; 512]).0.status, Status::SUCCESS);
}

#[test]
fn connections_stay_at_ports_with_other_numbers() {
    let port = |name: &str| TargetPort::named(name, "127.0.0.1:0".parse().unwrap());
    let before = TargetConfig { listen: vec![port("a"), port("b"), port("c")], ..config(&["mem:1M"]) };
    let (target, _) = start(before.clone());
    let addresses = target.local_addrs();
    let mut hosts: Vec<_> = [1, 2].map(|at| pair(addresses[at], 31)).into();
    target.control().remove_port("a").unwrap();
    let mut after = TargetConfig { listen: vec![port("c"), port("b")], ..before.clone() };
    let target = upgrade(target, &after);
    assert_eq!(target.local_addrs(), [addresses[2], addresses[1]]);
    for (_, queue) in &mut hosts {
        assert_eq!(queue.fetch(read_entry(0, 1), 512).0.status, Status::SUCCESS);
    }
    // The connections end with their port.
    target.control().remove_port("b").unwrap();
    let (mut admin, mut queue) = hosts.remove(0);
    admin.expect_end();
    queue.expect_end();
    drop((admin, queue));
    eventually("they are closed", || target.counters().connections_open == 2);
    after.listen.clear();
    after.listen.push(port("d"));
    let target = upgrade(target, &after);
    let (mut admin, mut queue) = hosts.remove(0);
    admin.expect_end();
    queue.expect_end();
    assert!(target.associations().is_empty());
}

#[test]
fn host_ends_its_authentication_during_the_freeze() {
    let config = SameForAll::new(vec![keys(0, None)]).config();
    let (mut target, address) = start(config.clone());
    let host = host_config(keys(0, None), Policy::default());
    let mut admin = MockHost::authenticated(address, &host);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&host).unwrap();
    for _ in 0..5 {
        let (awaiting, reply) = queue.challenged(&host).unwrap();
        let frozen = thread::scope(|scope| {
            let frozen = scope.spawn(|| target.freeze(WITHIN).unwrap().hand_over().unwrap());
            queue.pass(&reply);
            assert_eq!(awaiting.handle_success1(&queue.message()).unwrap(), None);
            frozen.join().unwrap()
        });
        drop(target);
        let read = FrozenState::from_bytes(&frozen.to_bytes()).unwrap();
        target = Target::start_from(config.clone(), read, |number| copy_of(&frozen, number)).unwrap();
        assert_eq!(queue.write(write_entry(0, 1), &[9; 512]).0.status, Status::SUCCESS);
        assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    }
}

#[test]
fn connection_in_the_middle_of_its_authentication_is_closed() {
    let config = SameForAll::new(vec![keys(0, None)]).config();
    let (target, address) = start(config.clone());
    let host = host_config(keys(0, None), fast());
    let mut admin = MockHost::authenticated(address, &host);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    let _reply = queue.challenged(&host).unwrap();
    // A host that does not answer holds up nothing but its own connection.
    let frozen = target.freeze(8 * Duration::from_millis(100)).unwrap();
    drop(frozen);
    let state = target.freeze(8 * Duration::from_millis(100)).unwrap().hand_over().unwrap();
    drop(target);
    let read = FrozenState::from_bytes(&state.to_bytes()).unwrap();
    let target = Target::start_from(config, read, |number| copy_of(&state, number)).unwrap();
    drop(state);
    queue.expect_end();
    assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    let mut queue = MockHost::locked(address, 1, admin.cntlid);
    queue.authenticate(&host).unwrap();
    assert_eq!(queue.write(write_entry(0, 1), &[9; 512]).0.status, Status::SUCCESS);
    assert_eq!(target.counters().connections_open, 2);
}

/// The next target has the commands that a limit held in its state: this one must not run them too.
#[test]
fn held_commands_run_once() {
    let config = two_cores(&["mem:16M"]);
    let mut limited = config.clone();
    limited.subsystems[0].qos.insert(1, QosConfig { iops: NonZeroU64::new(2), ..QosConfig::default() });
    let (target, address) = start(limited);
    let (_admin, mut queue) = pair(address, 31);
    let mut left: Vec<u16> = (0..20).map(|_| queue.send(on_transport(read_entry(0, 8), 4096), &[])).collect();
    eventually("commands are held", || target.snapshot().numbers.counters["qos-waits"] > 0);
    let frozen = target.freeze(WITHIN).unwrap();
    // The shares of some come meanwhile.
    thread::sleep(Duration::from_millis(1100));
    let state = frozen.hand_over().unwrap();
    drop(target);
    let read = FrozenState::from_bytes(&state.to_bytes()).unwrap();
    let target = Target::start_from(config, read, |number| copy_of(&state, number)).unwrap();
    while !left.is_empty() {
        let cid = match queue.answer().pdu {
            ControllerPdu::C2hData(header) if header.success => header.cccid,
            ControllerPdu::CapsuleResp(response) => response.entry.cid,
            _ => continue,
        };
        left.remove(left.iter().position(|at| *at == cid).expect("one response for each command"));
    }
    assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
    target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}
