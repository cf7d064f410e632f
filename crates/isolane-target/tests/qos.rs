//! Maximum speed of a namespace.

mod common;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use common::*;
use isolane_observe::stage::{Operation, Stage};
use isolane_target::{NamespaceChange, NamespaceError, NamespaceState, QosConfig, Target, TargetConfig};
use isolane_wire::admin::SetFeaturesCommand;
use isolane_wire::feature::{FeatureId, HostBehaviorSupport};
use isolane_wire::pdu::ControllerPdu;
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Sgl, Status, SubmissionEntry, admin, io};

const DATA: [u8; 4096] = [7; 4096];

fn on(nsid: u32, entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { nsid, ..entry }
}

/// So slow that the second command of a test never gets its share.
fn still() -> QosConfig {
    QosConfig { bytes: NonZeroU64::new(1), ..QosConfig::default() }
}

fn iops(per_second: u64) -> QosConfig {
    QosConfig { iops: NonZeroU64::new(per_second), ..QosConfig::default() }
}

/// Two namespaces on two cores, of which the first has a maximum speed.
fn limited(qos: QosConfig) -> TargetConfig {
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:16M", "mem:16M"]) };
    config.subsystems[0].qos.insert(1, qos);
    config
}

fn set_qos(target: &Target, nsid: u32, qos: Option<QosConfig>) -> Result<(), NamespaceError> {
    target.change_namespaces(vec![NamespaceChange::Qos { nsid, qos }]).map(drop)
}

fn waits(target: &Target) -> u64 {
    target.snapshot().numbers.counters["qos-waits"]
}

/// Commands of the first namespace that wait: a read, a write with its data, and one without.
struct Held {
    read: u16,
    write: u16,
    requested: u16,
}

impl MockHost {
    fn send_read(&mut self, nsid: u32, lba: u64) -> u16 {
        self.send(SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..on(nsid, read_entry(lba, 8)) }, &[])
    }

    fn send_write(&mut self, nsid: u32, lba: u64, byte: u8) -> u16 {
        let data = [byte; 4096];
        self.send(in_capsule(on(nsid, write_entry(lba, 8)), &data), &data)
    }

    /// The other namespace completes commands meanwhile, so these wait.
    fn hold(&mut self, target: &Target) -> Held {
        let before = waits(target);
        assert_eq!(self.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS, "the first one");
        let held = Held {
            read: self.send_read(1, 0),
            write: self.send_write(1, 8, 8),
            requested: self
                .send(SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..write_entry(16, 8) }, &[]),
        };
        for lba in [0, 8] {
            assert_eq!(self.write(on(2, write_entry(lba, 8)), &DATA).0.status, Status::SUCCESS);
            assert_eq!(self.push(on(2, write_entry(lba, 8)), &DATA).status, Status::SUCCESS);
            assert_eq!(self.fetch(on(2, read_entry(lba, 8)), 4096).1, DATA);
        }
        assert_eq!(self.run(io::flush(1)).status, Status::SUCCESS, "a flush has no limit");
        assert_eq!(waits(target), before + 3);
        held
    }

    /// All are completed, in any order.
    fn finish(&mut self, held: &Held) {
        let mut left = vec![held.read, held.write, held.requested];
        while !left.is_empty() {
            let answer = self.answer();
            let cid = match answer.pdu {
                ControllerPdu::R2t(r2t) => {
                    assert_eq!(r2t.cccid, held.requested);
                    self.send_granted(&r2t, &[9; 4096]);
                    continue;
                }
                ControllerPdu::C2hData(header) => {
                    assert_eq!((header.cccid, answer.data.len()), (held.read, 4096));
                    if !header.success {
                        continue;
                    }
                    held.read
                }
                ControllerPdu::CapsuleResp(response) => {
                    assert_eq!(response.entry.status, Status::SUCCESS);
                    response.entry.cid
                }
                other => panic!("{other:?}"),
            };
            left.remove(left.iter().position(|at| *at == cid).expect("each once"));
        }
    }
}

#[test]
fn reactors_share_a_limit() {
    const RATE: u64 = 400;
    const COMMANDS: usize = 60;
    let (_target, address) = start(limited(QosConfig { burst: Duration::from_millis(50), ..iops(RATE) }));
    let (admin, first) = pair(address, 127);
    let second = admin.io_queue(2, 127);
    let started = Instant::now();
    let threads = [first, second].map(|mut queue| {
        std::thread::spawn(move || {
            let reads: Vec<u16> = (0..COMMANDS as u64).map(|at| queue.send_read(1, at * 8)).collect();
            reads.into_iter().for_each(|cid| assert_eq!(queue.completion(cid).0.status, Status::SUCCESS));
            for at in 0..COMMANDS as u64 / 2 {
                assert_eq!(queue.write(write_entry(at * 8, 8), &DATA).0.status, Status::SUCCESS);
                assert_eq!(queue.push(write_entry(at * 8, 8), &DATA).status, Status::SUCCESS);
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let commands = 4 * COMMANDS as u64;
    let least = Duration::from_secs_f64((commands - 1) as f64 / RATE as f64) - Duration::from_millis(50);
    assert!(started.elapsed() >= least, "{commands} commands in {:?}", started.elapsed());
}

#[test]
fn limit_delays_no_other_namespace_and_ends_live() {
    let (target, address) = start(limited(still()));
    let (mut admin, mut queue) = pair(address, 31);
    admin.send(admin::async_event_request(), &[]);
    let held = queue.hold(&target);
    assert_eq!(target.namespace_control().list()[0].qos, Some(still()));
    assert_eq!(target.namespace_control().list()[0].oldest_command, None, "none is at the volume");
    set_qos(&target, 1, None).unwrap();
    queue.finish(&held);
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).1, [8; 4096]);
    assert_eq!(queue.fetch(read_entry(16, 8), 4096).1, [9; 4096]);
    assert_eq!(target.namespace_control().list()[0].qos, None);

    let snapshot = target.snapshot();
    assert_eq!(snapshot.numbers.counters["limit-waits"], 0, "no other limit");
    let in_limit = |operation| {
        let mut series = snapshot.numbers.series.iter();
        series.any(|at| {
            at.volume == 0
                && at.operation == operation
                && at.stage(Stage::Limit).is_some_and(|at| at.sum_ns() > 0)
        })
    };
    assert!(in_limit(Operation::Read) && in_limit(Operation::Write));
    // No host can see a change.
    admin.set_property(CC, Cc::enabled().0);
}

#[test]
fn limit_of_one_direction_delays_no_other() {
    let qos = QosConfig { read_bytes: NonZeroU64::new(1), ..QosConfig::default() };
    let (target, address) = start(limited(qos));
    let (_admin, mut queue) = pair(address, 31);
    queue.fetch(read_entry(0, 8), 4096);
    let read = queue.send_read(1, 0);
    for lba in 0..4 {
        assert_eq!(queue.write(write_entry(lba * 8, 8), &DATA).0.status, Status::SUCCESS);
        assert_eq!(queue.push(write_entry(lba * 8, 8), &DATA).status, Status::SUCCESS);
    }
    set_qos(&target, 1, Some(iops(1_000_000))).unwrap();
    assert_eq!(queue.completion(read).1, DATA, "it is executed after the writes");
}

#[test]
fn closed_connection_releases_held_commands() {
    let (target, address) = start(limited(still()));
    let (mut admin, mut queue) = pair(address, 31);
    queue.hold(&target);
    drop(queue);
    eventually("the connection has ended", || target.counters().connections_open == 1);
    let mut queue = admin.io_queue(1, 31);
    queue.hold_again();
    admin.set_property(CC, 0);
    eventually("the reset has ended", || !Csts(admin.property(CSTS) as u32).rdy());
    queue.expect_end();
    admin.set_property(CC, Cc::enabled().0);
    eventually("it is enabled", || Csts(admin.property(CSTS) as u32).rdy());
    set_qos(&target, 1, None).unwrap();
    let mut queue = admin.io_queue(1, 31);
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).1, [0; 4096], "no held write was executed");
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
}

impl MockHost {
    fn hold_again(&mut self) {
        self.send_read(1, 0);
        self.send_write(1, 8, 8);
        assert_eq!(self.fetch(on(2, read_entry(0, 8)), 4096).1, DATA);
    }

    /// A command that has not started is not executed at the volume before.
    fn expect_given_back(&mut self, cid: u16) {
        let status = self.completion(cid).0.status;
        assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr(), "{status:?}");
    }
}

#[test]
fn held_commands_delay_no_shutdown() {
    let (target, address) = start(limited(still()));
    let (_admin, mut queue) = pair(address, 127);
    queue.hold(&target);
    (0..100).for_each(|_| _ = queue.send_write(1, 8, 8));
    assert_eq!(queue.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS);
    let started = Instant::now();
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "it took {:?}", started.elapsed());
}

#[test]
fn limit_survives_other_volumes_until_removal() {
    let (target, address) = start(limited(still()));
    let (_admin, mut queue) = pair(address, 31);
    let change = |change| target.change_namespaces(vec![change]).unwrap();
    let status = |target: &Target| {
        let list = target.namespace_control().list();
        list.into_iter().find(|at| at.nsid == 1).map(|at| (at.state, at.qos))
    };
    let replace = || NamespaceChange::Replace { nsid: 1, volume: volume("mem:16M"), may_shrink: false };

    let held = queue.hold(&target);
    let closing = change(NamespaceChange::Offline { nsid: 1 }).closing;
    [held.read, held.write, held.requested].into_iter().for_each(|cid| queue.expect_given_back(cid));
    assert!(closing.wait(TEST_TIMEOUT), "the commands have ended");
    assert_eq!(status(&target), Some((NamespaceState::Offline, Some(still()))));
    change(replace());
    // The share of the first command is still to be paid.
    let write = queue.send_write(1, 0, 1);
    assert_eq!(queue.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS);
    let closing = change(replace()).closing;
    queue.expect_given_back(write);
    assert!(closing.wait(TEST_TIMEOUT));
    assert_eq!(status(&target), Some((NamespaceState::Online, Some(still()))));

    assert_eq!(set_qos(&target, 9, Some(still())), Err(NamespaceError::Unknown(9)));
    change(NamespaceChange::Remove { nsid: 1 });
    change(NamespaceChange::Add { nsid: Some(1), volume: volume("mem:16M") });
    eventually("others are closed", || target.namespace_control().list().len() == 2);
    assert_eq!(status(&target), Some((NamespaceState::Online, None)), "another namespace");
    (0..4).for_each(|_| assert_eq!(queue.fetch(read_entry(0, 8), 4096).1, [0; 4096]));
}

#[test]
fn new_association_waits_for_older_held_write() {
    let (target, address) = start(limited(still()));
    let (_old_admin, mut old) = pair(address, 31);
    old.fetch(read_entry(0, 8), 4096);
    let older = old.send_write(1, 8, 1);
    assert_eq!(old.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS);
    let (_admin, mut new) = pair(address, 31);
    let newer = new.send_write(1, 8, 2);
    assert_eq!(new.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS);
    set_qos(&target, 1, None).unwrap();
    assert_eq!(new.completion(newer).0.status, Status::SUCCESS);
    assert_eq!(old.completion(older).0.status, Status::SUCCESS);
    assert_eq!(new.fetch(read_entry(8, 8), 4096).1, [2; 4096], "the older write came later");
}

/// A host that gives up would reset the controller, with all other namespaces.
#[test]
fn answers_commands_that_a_limit_holds_for_long() {
    let answer_within = Duration::from_millis(100);
    let (target, address) = start(TargetConfig { answer_within, ..limited(still()) });
    for (hosts, acre) in [0, 1].into_iter().enumerate() {
        let (mut admin, mut queue) = pair(address, 31);
        let fid = FeatureId::HostBehaviorSupport.code();
        let behavior = HostBehaviorSupport { acre, ..HostBehaviorSupport::default() };
        let set = SetFeaturesCommand { fid, ..SetFeaturesCommand::default() }.entry();
        assert_eq!(admin.write(set, &behavior.encode()).0.status, Status::SUCCESS);
        let commands_before = waits(&target);
        if hosts == 0 {
            assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS, "the first one");
        }
        let requested = SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..write_entry(16, 8) };
        let zeroes = io::WriteZeroesCommand { nsid: 1, slba: 24, nlb: 7, ..Default::default() };
        let held = [
            queue.send_read(1, 0),
            queue.send_write(1, 8, 8),
            queue.send(requested, &[]),
            queue.send(zeroes.entry(), &[]),
        ];
        for cid in held {
            let status = queue.completion(cid).0.status;
            assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr(), "{status:?}");
            assert_eq!(status.crd(), acre);
            queue.reuse_cid(cid);
        }
        assert_eq!(waits(&target), commands_before + 4);
        // None has begun at the volume, which is not to blame.
        let status = target.namespace_control().list().swap_remove(0);
        assert_eq!((status.state, status.oldest_command), (NamespaceState::Online, None));
        assert_eq!(status.orphans, []);
        assert_eq!(queue.write(on(2, write_entry(0, 8)), &DATA).0.status, Status::SUCCESS);
    }
    set_qos(&target, 1, None).unwrap();
    let (_admin, mut queue) = pair(address, 31);
    for lba in [8, 16] {
        assert_eq!(
            queue.fetch(read_entry(lba, 8), 4096).1,
            [0; 4096],
            "a write that was answered has landed"
        );
    }
    assert_eq!(queue.push(write_entry(16, 8), &DATA).status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(16, 8), 4096).1, DATA);
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
}

/// The wait for the limit is not the volume's.
#[test]
fn command_that_waited_has_its_time_at_the_volume() {
    let gate = gate::Gate::closed();
    let answer_within = Duration::from_secs(3);
    let mut config = TargetConfig {
        cores: one_core_twice(),
        stall_after: Duration::from_secs(3),
        answer_within,
        ..serving(vec![(1, gate.clone()), (2, volume("mem:16M"))])
    };
    config.subsystems[0].qos.insert(1, still());
    let (target, address) = start(config);
    let (_admin, mut queue) = pair(address, 31);
    gate.open();
    assert_eq!(queue.write(write_entry(0, 8), &DATA).0.status, Status::SUCCESS, "the first one");
    gate.close();
    let write = queue.send_write(1, 8, 1);
    assert_eq!(queue.fetch(on(2, read_entry(0, 8)), 4096).0.status, Status::SUCCESS);
    set_qos(&target, 1, None).unwrap();
    eventually("it is at the volume", || gate.arrived() == 1);
    gate.open();
    assert_eq!(queue.completion(write).0.status, Status::SUCCESS);
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
}
