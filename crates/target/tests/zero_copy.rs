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

/// A host that asks for much and takes nothing: its connection ends with memory lent, and the target ends in order.
#[test]
fn a_host_that_takes_nothing_and_goes_costs_no_memory() {
    let (target, address) = start(zero_copy(&["mem:4M"], IoChoice::Auto));
    for _ in 0..3 {
        let (admin, mut queue) = pair(address, 31);
        for _ in 0..16 {
            let entry =
                SubmissionEntry { sgl: Sgl::Transport { len: BYTES as u32 }, ..read_entry(0, BLOCKS) };
            queue.send(entry, &[]);
        }
        eventually("something is lent", || target.counters().lent_bytes > 0);
        drop((queue, admin));
    }
    eventually("all connections are gone", || target.counters().connections_open == 0);
    let (_admin, mut queue) = pair(address, 31);
    write(&mut queue, 5);
    assert_eq!(read(&mut queue), pattern(5, BYTES));
    assert_eq!(target.shutdown(Duration::from_secs(20)).into_result(), Ok(()));
}

const BYTES: usize = 256 << 10;
const BLOCKS: u32 = (BYTES / 512) as u32;
