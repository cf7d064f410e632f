//! Long reads that are sent without a copy: what arrives is right, and all memory comes back.

mod common;

use std::time::Duration;

use common::*;
use isolane_target::{IoChoice, TargetConfig};
use isolane_wire::{Sgl, Status, SubmissionEntry};

fn zero_copy(volumes: &[&str], io: IoChoice) -> TargetConfig {
    let mut config = config(volumes);
    config.zero_copy_above = Some(16 << 10);
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
fn what_is_read_without_a_copy_is_what_was_written_also_when_it_is_overwritten_meanwhile() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let (target, address) = start(zero_copy(&["mem:4M"], io));
        let (_admin, mut queue) = pair(address, 31);
        for salt in 0..20 {
            write(&mut queue, salt);
            assert_eq!(read(&mut queue), pattern(salt, BYTES));
        }
        assert!(target.counters().lent_bytes > 0, "at least the first was lent");
    }
}

/// A host that asks for much and takes nothing: its connection ends with memory lent, and that comes back. Together
/// they are lent more than the target has.
#[test]
fn hosts_that_take_nothing_and_go_cost_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let volume = format!("{},size=4M", directory.path().join("volume").display());
    let mut config = zero_copy(&[&volume], IoChoice::Auto);
    config.pool_pages_max = POOL_PAGES;
    let (target, address) = start(config);
    for _ in 0..2 * POOL_PAGES * PAGE_SIZE / BYTES {
        let lent = target.counters().lent_bytes;
        let (admin, mut queue) = pair(address, 31);
        for _ in 0..4 {
            let entry =
                SubmissionEntry { sgl: Sgl::Transport { len: BYTES as u32 }, ..read_entry(0, BLOCKS) };
            queue.send(entry, &[]);
        }
        eventually("a whole read is lent", || target.counters().lent_bytes >= lent + BYTES as u64);
        drop((queue, admin));
        eventually("both connections are gone", || target.counters().connections_open == 0);
    }
    let (_admin, mut queue) = pair(address, 31);
    write(&mut queue, 5);
    assert_eq!(read(&mut queue), pattern(5, BYTES));
    assert_eq!(target.shutdown(Duration::from_secs(20)).into_result(), Ok(()));
}

/// The least that a target takes.
const POOL_PAGES: usize = 1024;
const PAGE_SIZE: usize = 4096;
const BYTES: usize = 256 << 10;
const BLOCKS: u32 = (BYTES / 512) as u32;
