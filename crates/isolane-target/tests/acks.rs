//! The stage `peer`: times until hosts acknowledge sampled sends.

mod common;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use common::*;
use isolane_observe::histogram::Histogram;
use isolane_target::{IoChoice, Mode, Target, TargetConfig};
use isolane_wire::{Sgl, Status, SubmissionEntry};

/// A target that samples each send of a lane without a sample.
fn all(config: TargetConfig) -> TargetConfig {
    TargetConfig { acks: NonZeroU32::new(1), ..config }
}

/// Returns the times of a connection, once it has completed a command.
fn times(target: &Target, queue: u16) -> Option<Histogram> {
    let connections = target.snapshot().numbers.connections;
    connections.into_iter().find(|at| at.queue == queue).and_then(|at| at.peer_times)
}

fn count(target: &Target, queue: u16) -> u64 {
    times(target, queue).map_or(0, |times| times.count())
}

fn read(queue: &mut MockHost) {
    assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
}

#[test]
fn records_each_send_also_if_the_core_sleeps() {
    for (io, mode) in
        [(IoChoice::Auto, Mode::Sleep), (IoChoice::Epoll, Mode::Sleep), (IoChoice::Auto, Mode::Adaptive)]
    {
        let started = Instant::now();
        let (target, address) = start(TargetConfig { io, mode, ..all(config(&["mem:16M"])) });
        let (_admin, mut queue) = pair(address, 31);
        for number in 1..=5 {
            read(&mut queue);
            // Nothing follows, so no event reports the acknowledgment.
            eventually("it is recorded", || count(&target, 1) == number);
        }
        let sum_ns = times(&target, 1).expect("recorded").sum_ns();
        assert!(sum_ns > 0 && Duration::from_nanos(sum_ns) <= started.elapsed(), "they do not overlap");
        let connections = target.snapshot().numbers.connections;
        assert_eq!(connections.len(), 1, "the admin queue has no times: {connections:?}");
    }
}

#[test]
fn serves_others_while_a_host_acknowledges_nothing() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let (target, address) = start(TargetConfig { io, ..all(config(&["mem:16M"])) });
        let (admin, mut stuck) = pair(address, 31);
        read(&mut stuck);
        eventually("it is recorded", || count(&target, 1) == 1);
        let len = 1 << 20;
        let long = SubmissionEntry { sgl: Sgl::Transport { len }, ..read_entry(0, 2048) };
        for _ in 0..24 {
            stuck.send(long, &[]);
        }
        eventually("the socket is full", || {
            let sent = target.counters().sent_bytes;
            std::thread::sleep(Duration::from_millis(20));
            sent > u64::from(len) && target.counters().sent_bytes == sent
        });
        let mut other = admin.io_queue(2, 31);
        read(&mut other);
        eventually("the other one is recorded", || count(&target, 2) == 1);
        assert_eq!(target.counters().connections_open, 3);
        // It has not read all data, so this resets the connection.
        drop(stuck);
        eventually("the connection is closed", || target.counters().connections_open == 2);
        read(&mut other);
        eventually("the other one is recorded", || count(&target, 2) == 2);
    }
}

#[test]
fn records_a_connection_that_moves() {
    let two_reactors = TargetConfig {
        cores: one_core_twice(),
        rebalance_interval: Some(Duration::from_secs(3600)),
        ..all(config(&["mem:16M"]))
    };
    let (target, address) = start(two_reactors);
    let (_admin, mut queue) = pair(address, 31);
    let peer = queue.stream.local_addr().expect("an address");
    let reactor = || target.connections().iter().find(|at| at.peer == peer).map(|at| at.reactor);
    for _ in 0..4 {
        let before = (reactor().expect("connected"), count(&target, 1));
        read(&mut queue);
        eventually("it has moved", || {
            target.relocate(peer, 1 - before.0);
            reactor() == Some(1 - before.0)
        });
        // The move can end the sample of the last read.
        eventually("a read here is recorded", || {
            read(&mut queue);
            count(&target, 1) > before.1 + 1
        });
    }
}

#[test]
fn records_nothing_unless_requested() {
    let (target, address) = start(config(&["mem:16M"]));
    let (_admin, mut queue) = pair(address, 31);
    (0..20).for_each(|_| read(&mut queue));
    eventually("the connection is listed", || target.snapshot().numbers.connections.len() == 1);
    assert_eq!(times(&target, 1), None);
}
