//! Hosts that hold memory of the target, or request more than it has.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isolane_reactor::{IoChoice, Mode};
use isolane_target::{Placement, TargetConfig};
use isolane_wire::admin::{GetLogPageCommand, LogPage};
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu};
use isolane_wire::{Sgl, Status, SubmissionEntry};

use crate::common::*;

/// Sends commands without reading a response.
fn burst(host: &mut MockHost, count: u16, entry: SubmissionEntry) {
    let capsule = |cid| CapsuleCmd { entry: SubmissionEntry { cid, ..entry }, data_len: 0 };
    let bytes: Vec<u8> = (0..count).flat_map(|cid| capsule(cid).encode(&host.outbound).to_vec()).collect();
    host.send_bytes(&bytes);
}

fn with_len(entry: SubmissionEntry, len: u32) -> SubmissionEntry {
    SubmissionEntry { sgl: Sgl::Transport { len }, ..entry }
}

/// Runs one test at a time, because the memory of the process is measured.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resident memory of the process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

const MIB: u32 = 1 << 20;

/// `count` pages from `first` on, filled with words that contain the page and the round.
fn pages_of_round(round: u32, first: u32, count: u32) -> Vec<u8> {
    let word = |page| (u64::from(round) << 32 | u64::from(page)).to_le_bytes();
    (first..first + count).flat_map(|page| word(page).repeat(PAGE / 8)).collect()
}

/// Rounds in which the pages from `first` on were written. Checks that no page is torn.
fn rounds_of(bytes: &[u8], first: u32) -> Vec<u32> {
    let round_of = |(page, bytes): (u32, &[u8])| {
        let round = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        assert!(bytes == pages_of_round(round, page, 1), "page {page} is torn");
        round
    };
    (first..).zip(bytes.chunks(PAGE)).map(round_of).collect()
}

/// Receives the data of `count` reads, in any order.
fn receive_reads(host: &mut MockHost, count: usize) -> HashMap<u16, Vec<u8>> {
    let mut all = HashMap::<u16, Vec<u8>>::new();
    let mut ended = 0;
    while ended < count {
        let answer = host.answer();
        match answer.pdu {
            ControllerPdu::C2hData(header) => {
                let data = all.entry(header.cccid).or_default();
                assert_eq!(header.datao as usize, data.len());
                data.extend(answer.data);
                ended += usize::from(header.success);
            }
            ControllerPdu::CapsuleResp(response) => {
                assert_eq!(response.entry.status, Status::SUCCESS);
                ended += 1;
            }
            other => panic!("expected a response, got {other:?}"),
        }
    }
    all
}

const PAGE: usize = 4096;

#[test]
fn stalled_writes_do_not_starve_other_hosts() {
    let _alone = alone();
    let (target, address) = start(config(&["mem:16M"]));
    let (_bad_admin, mut bad) = pair(address, 255);
    burst(&mut bad, 250, with_len(write_entry(0, 2048), MIB));
    bad.answer();
    let (_admin, mut good) = pair(address, 31);
    assert_eq!(good.push(write_entry(0, 2048), &pattern(1, MIB as usize)).status, Status::SUCCESS);
    assert_eq!(good.fetch(read_entry(0, 2048), MIB).0.status, Status::SUCCESS);
    assert_eq!(target.counters().connections_open, 4, "no connection was closed");
}

#[test]
fn unread_responses_do_not_starve_other_hosts() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=16M", directory.path().join("image").display());
    let (target, address) = start(config(&[&volume]));
    let (_bad_admin, mut bad) = pair(address, 255);
    burst(&mut bad, 250, with_len(read_entry(0, 2048), MIB));
    bad.answer();
    let (_admin, mut good) = pair(address, 31);
    assert_eq!(good.fetch(read_entry(0, 2048), MIB).0.status, Status::SUCCESS);
    assert_eq!(good.push(write_entry(0, 2048), &pattern(1, MIB as usize)).status, Status::SUCCESS);
    assert_eq!(target.counters().connections_open, 4, "no connection was closed");
}

#[test]
fn unread_log_pages_use_bounded_memory() {
    let _alone = alone();
    let (_target, address) = start(config(&["mem:1M"]));
    let before = resident_bytes();
    let mut host = MockHost::admin(address);
    // Commands that fit into small socket buffers: the target stops reading.
    for _ in 0..4 {
        burst(&mut host, 50, with_len(GetLogPageCommand::new(LogPage::Error, 0, MIB).entry(), MIB));
    }
    host.answer();
    std::thread::sleep(Duration::from_millis(300));
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 64 << 20, "{} MiB", taken >> 20);
}

#[test]
fn overwritten_blocks_of_unread_responses_are_freed() {
    let _alone = alone();
    let (_target, address) = start(config(&["mem:64M"]));
    let (_admin, mut writer) = pair(address, 31);
    let (_bad_admin, mut bad) = pair(address, 255);
    let data = pattern(1, MIB as usize);
    (0..64)
        .for_each(|at| assert_eq!(writer.push(write_entry(at * 2048, 2048), &data).status, Status::SUCCESS));
    let before = resident_bytes();
    let mut bytes = Vec::new();
    for at in 0..64 {
        let entry = SubmissionEntry { cid: at, ..with_len(read_entry(u64::from(at) * 2048, 2048), MIB) };
        bytes.extend_from_slice(&CapsuleCmd { entry, data_len: 0 }.encode(&bad.outbound));
    }
    bad.stream.write_all(&bytes).unwrap();
    bad.answer();
    (0..64)
        .for_each(|at| assert_eq!(writer.push(write_entry(at * 2048, 2048), &data).status, Status::SUCCESS));
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 24 << 20, "{} MiB", taken >> 20);
}

#[test]
fn hosts_cannot_keep_all_memory_together() {
    let _alone = alone();
    let (target, address) = start(config(&["mem:16M"]));
    let bad_admin = MockHost::admin(address);
    let mut bad: Vec<MockHost> = (1..24).map(|qid| bad_admin.io_queue(qid, 63)).collect();
    // Writes of 68 KiB fill the gaps between writes of 1 MiB.
    for (at, host) in bad.iter_mut().enumerate() {
        let blocks = if at < 15 { 2048 } else { 136 };
        burst(host, 60, with_len(write_entry(0, blocks), blocks * 512));
    }
    let (_admin, mut good) = pair(address, 31);
    eventually("the memory is used", || target.counters().deferred_commands > 15 * 50);
    assert_eq!(good.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
    assert_eq!(good.write(write_entry(0, 8), &[1; 4096]).0.status, Status::SUCCESS);
    // Two writes with R2T at a time.
    for _ in 0..2 {
        good.send(with_len(write_entry(0, 128), 65_536), &[]);
    }
    let granted = [good.answer(), good.answer()];
    assert_eq!(target.counters().connections_open, 26, "small commands do not wait for a disconnect");
    for answer in granted {
        let ControllerPdu::R2t(r2t) = answer.pdu else { panic!("no R2T") };
        good.send_granted(&r2t, &[1; 65_536]);
        assert_eq!(good.completion(r2t.cccid).0.status, Status::SUCCESS);
    }
    assert_eq!(good.push(write_entry(0, 2048), &pattern(1, MIB as usize)).status, Status::SUCCESS);
    assert!(target.counters().connections_open < 26, "large commands get the memory of stalled hosts");
}

#[test]
fn closed_connections_free_their_memory() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=16M", directory.path().join("image").display());
    let (target, address) = start(config(&[&volume, "mem:16M"]));
    let admin = MockHost::admin(address);
    for round in 0..100 {
        let mut bad = admin.io_queue(1, 63);
        let nsid = 1 + round % 2;
        burst(&mut bad, 8, SubmissionEntry { nsid, ..with_len(read_entry(0, 2048), MIB) });
        for cid in 100..108 {
            let entry = SubmissionEntry { cid, nsid, ..with_len(write_entry(0, 2048), MIB) };
            bad.send_bytes(&CapsuleCmd { entry, data_len: 0 }.encode(&bad.outbound));
        }
        bad.answer();
        drop(bad);
        eventually("the queue is gone", || target.counters().connections_open == 1);
    }
    let (_admin, mut good) = pair(address, 31);
    let deferred = target.counters().deferred_commands;
    assert_eq!(good.push(write_entry(0, 2048), &pattern(1, MIB as usize)).status, Status::SUCCESS);
    assert_eq!(good.fetch(read_entry(0, 2048), MIB).0.status, Status::SUCCESS);
    assert_eq!(target.counters().deferred_commands, deferred, "no command waited for memory");
}

/// Hosts on both cores send long and short reads of 4 MiB and receive nothing while another host overwrites the
/// range many times.
fn overwrite_during_unread_reads(config: TargetConfig) {
    let _alone = alone();
    let placement = Placement::RoundRobin;
    // On a loaded machine the writes take longer than the default stall limit.
    let stall_timeout = Duration::from_secs(600);
    let (_target, address) =
        start(TargetConfig { cores: one_core_twice(), placement, stall_timeout, ..config });
    let (_admin, mut writer) = pair(address, 31);
    let mut write = |round| {
        for at in 0..4 {
            let data = pages_of_round(round, at * 256, 256);
            let answer = writer.push(write_entry(u64::from(at) * 2048, 2048), &data);
            assert_eq!(answer.status, Status::SUCCESS);
        }
    };
    write(0);
    let bad_admin = MockHost::admin(address);
    let mut bad: Vec<MockHost> = (1..5).map(|qid| bad_admin.io_queue(qid, 127)).collect();
    // First page and number of pages of each read.
    let reads: Vec<(u32, u32)> =
        (0..100).map(|at| (at * 37 % 992, [32, 1, 8, 24][at as usize % 4])).collect();
    for host in &mut bad {
        let entry = |&(first, count)| with_len(read_entry(u64::from(first) * 8, count * 8), count * 4096);
        let entries = (0..).zip(reads.iter().map(entry));
        let capsule = |(cid, entry)| CapsuleCmd { entry: SubmissionEntry { cid, ..entry }, data_len: 0 };
        let bytes: Vec<u8> = entries.flat_map(|it| capsule(it).encode(&host.outbound).to_vec()).collect();
        host.send_bytes(&bytes);
        host.stream.peek(&mut [0]).unwrap();
    }
    let before = resident_bytes();
    (1..=ROUNDS).for_each(write);
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 96 << 20, "{} MiB", taken >> 20);
    for host in &mut bad {
        let answers = receive_reads(host, reads.len());
        for (cid, (first, count)) in (0..).zip(&reads) {
            let rounds = rounds_of(&answers[&cid], *first);
            assert_eq!(rounds.len(), *count as usize);
            assert!(rounds.iter().all(|round| *round <= ROUNDS));
        }
        let (answer, data) = host.fetch(read_entry(0, 256), 128 << 10);
        assert_eq!((answer.status, rounds_of(&data, 0)), (Status::SUCCESS, vec![ROUNDS; 32]));
    }
}

/// 128 MiB.
const ROUNDS: u32 = 32;

#[test]
fn unread_responses_stay_intact_during_writes() {
    overwrite_during_unread_reads(TargetConfig { mode: Mode::Sleep, ..config(&["mem:4M"]) });
}

#[test]
fn unread_responses_stay_intact_on_epoll() {
    let (mode, io) = (Mode::Adaptive, IoChoice::Epoll);
    overwrite_during_unread_reads(TargetConfig { mode, io, scheduling: false, ..config(&["mem:4M"]) });
}

#[test]
fn unread_zerocopy_responses_stay_intact() {
    let (mode, zerocopy_threshold) = (Mode::Poll, Some(0));
    overwrite_during_unread_reads(TargetConfig { mode, zerocopy_threshold, ..config(&["mem:4M"]) });
}
