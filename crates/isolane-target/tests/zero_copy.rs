//! Zero-copy sends (S7): reads are consistent, and the memory returns to its pool.

mod common;

use std::time::Duration;

use common::*;
use isolane_target::{IoChoice, TargetConfig};
use isolane_wire::pdu::IcReq;
use isolane_wire::{Sgl, Status, SubmissionEntry};

fn zero_copy(volumes: &[&str], io: IoChoice) -> TargetConfig {
    let mut config = config(volumes);
    config.zerocopy_threshold = Some(16 << 10);
    config.io = io;
    config
}

fn write(queue: &mut MockHost, salt: u64) {
    assert_eq!(queue.push(write_entry(0, BLOCKS), &pattern(salt, BYTES)).status, Status::SUCCESS);
}

fn read(queue: &mut MockHost) -> Vec<u8> {
    let (completion, data) = queue.fetch(read_entry(0, BLOCKS), BYTES as u32);
    assert_eq!(completion.status, Status::SUCCESS);
    data
}

#[test]
fn zerocopy_reads_return_consistent_data() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let (target, address) = start(zero_copy(&["mem:4M"], io));
        let (_admin, mut queue) = pair(address, 31);
        for salt in 0..20 {
            write(&mut queue, salt);
            assert_eq!(read(&mut queue), pattern(salt, BYTES));
        }
        eventually("at least the first is counted", || target.counters().zerocopy_bytes > 0);
    }
}

/// A host requests much data, reads nothing, and disconnects: the memory of its zero-copy sends returns.
/// Together they are zerocopy_bytes more than the target has.
#[test]
fn zerocopy_memory_returns_after_disconnect() {
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=4M", directory.path().join("volume").display());
    let mut config = zero_copy(&[&volume], IoChoice::Auto);
    config.max_pool_pages = POOL_PAGES;
    let (target, address) = start(config);
    for _ in 0..2 * POOL_PAGES * PAGE_SIZE / BYTES {
        let zerocopy_bytes = target.counters().zerocopy_bytes;
        let (admin, mut queue) = pair(address, 31);
        for _ in 0..4 {
            let entry =
                SubmissionEntry { sgl: Sgl::Transport { len: BYTES as u32 }, ..read_entry(0, BLOCKS) };
            queue.send(entry, &[]);
        }
        eventually("a whole read is zerocopy_bytes", || {
            target.counters().zerocopy_bytes >= zerocopy_bytes + BYTES as u64
        });
        drop((queue, admin));
        eventually("both connections are gone", || target.counters().connections_open == 0);
    }
    let (_admin, mut queue) = pair(address, 31);
    write(&mut queue, 5);
    assert_eq!(read(&mut queue), pattern(5, BYTES));
    assert_eq!(target.shutdown(Duration::from_secs(20)).into_result(), Ok(()));
}

/// A socket that lingers for its last bytes still counts and holds memory of the target.
#[test]
fn lingering_connections_count_against_limit() {
    let (target, address) =
        start(TargetConfig { max_connections: 2, ..zero_copy(&["mem:4M"], IoChoice::Auto) });
    let (admin, mut queue) = pair(address, 31);
    for _ in 0..16 {
        let entry = SubmissionEntry { sgl: Sgl::Transport { len: BYTES as u32 }, ..read_entry(0, BLOCKS) };
        queue.send(entry, &[]);
    }
    eventually("something is zerocopy_bytes", || target.counters().zerocopy_bytes > 0);
    drop(admin);
    eventually("both are closed", || target.counters().connections_open == 0);
    let connect = || {
        let mut host = MockHost::initialized(address, IcReq::default());
        (host.connect(0, 0xffff, NQN, HOST, 31).status, host)
    };
    let (_first, second) = (connect(), connect());
    let is_refused = second.0 == Status::CONNECT_CONTROLLER_BUSY;
    // A machine that was too slow for this saw the host's patience end.
    assert!(is_refused || target.counters().connections_lingering == 0);
    drop(queue);
    eventually("the peer is gone", || target.counters().connections_lingering == 0);
}

/// The kernel counts the sends of a socket wherever it is, and so does what moves with it.
#[test]
fn zerocopy_survives_migration() {
    let rebalance_interval = Some(Duration::from_secs(3600));
    let (target, address) = start(TargetConfig {
        cores: vec![0, 0],
        rebalance_interval,
        ..zero_copy(&["mem:4M"], IoChoice::Auto)
    });
    let (_admin, mut queue) = pair(address, 31);
    write(&mut queue, 7);
    let peer = queue.stream.local_addr().unwrap();
    let reactor = || target.connections().iter().find(|it| it.peer == peer).map(|it| it.reactor);
    let before = reactor().unwrap();
    eventually("it has moved", || {
        target.relocate(peer, 1 - before);
        reactor() == Some(1 - before)
    });
    assert_eq!(target.counters().zerocopy_bytes, 0, "nothing long was sent before");
    assert_eq!(read(&mut queue), pattern(7, BYTES));
    // It is counted after the send, which its host may see the end of first.
    eventually("it is counted", || target.counters().zerocopy_bytes > 0);
}

/// The least that a target takes.
const POOL_PAGES: usize = 1024;
const PAGE_SIZE: usize = 4096;
const BYTES: usize = 256 << 10;
const BLOCKS: u32 = (BYTES / 512) as u32;
