//! A host connects, looks around, writes and reads.

mod common;

use common::*;
use isolane_target::{IoChoice, Mode, Operation, TargetConfig};
use isolane_wire::Status;
use isolane_wire::admin::{Cns, IdentifyCommand};
use isolane_wire::pdu::IcReq;

#[test]
fn host_connects_writes_and_reads() {
    let (target, address) = start(config(&["mem:16M"]));
    let mut admin = MockHost::admin(address);
    let (answer, page) = admin.fetch(IdentifyCommand::new(Cns::Namespace, 1).entry(), 4096);
    assert_eq!(answer.status, Status::SUCCESS);
    assert_eq!(u64::from_le_bytes(page[..8].try_into().unwrap()), (16 << 20) / 512);

    let mut queue = admin.io_queue(1, 31);
    let data = pattern(1, 4096);
    assert_eq!(queue.write(write_entry(8, 8), &data).0.status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).1, data);
    assert_eq!(queue.fetch(read_entry(16, 8), 4096).1, vec![0; 4096]);

    // A command counts once its response is sent, which a host can see earlier.
    eventually("all are counted", || target.counters().namespaces[0].get(Operation::Read).commands == 2);
    let counters = target.counters();
    let write = counters.namespaces[0].get(Operation::Write);
    assert_eq!((write.commands, write.bytes, write.errors), (1, 4096, 0));
    assert_eq!(counters.connections_open, 2);
}

#[test]
fn serves_in_every_mode_and_backend() {
    for mode in [Mode::Poll, Mode::Adaptive, Mode::Sleep] {
        for io in [IoChoice::Auto, IoChoice::Epoll] {
            let (_target, address) = start(TargetConfig { mode, io, ..config(&["mem:16M"]) });
            let (_admin, mut queue) = pair(address, 31);
            for at in 0..20 {
                let data = pattern(at, 8192);
                assert_eq!(queue.write(write_entry(at, 16), &data).0.status, Status::SUCCESS);
                assert_eq!(queue.fetch(read_entry(at, 16), 8192).1, data, "{mode:?}, {io:?}");
            }
        }
    }
}

#[test]
fn round_trips_large_write_with_digests() {
    for (header, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let (_target, address) = start(config(&["mem:16M"]));
        let request = digests(header, data_digest);
        let admin = MockHost::admin_with(address, request, HOST);
        let mut queue = admin.io_queue_with(1, 31, request, HOST);
        assert_eq!((queue.inbound.header_digest, queue.inbound.data_digest), (header, data_digest));
        for (at, blocks) in [(0, 1), (3, 100), (1, 2048)] {
            let data = pattern(blocks, blocks as usize * 512);
            assert_eq!(queue.push(write_entry(at, blocks as u32), &data).status, Status::SUCCESS);
            assert_eq!(queue.fetch(read_entry(at, blocks as u32), data.len() as u32).1, data);
        }
    }
}

#[test]
fn honors_requested_data_alignment() {
    let (_target, address) = start(config(&["mem:16M"]));
    let admin = MockHost::admin(address);
    let request = IcReq { hpda: 31, ..digests(true, true) };
    let mut queue = admin.io_queue_with(1, 31, request, HOST);
    let data = pattern(9, 5 * 512);
    assert_eq!(queue.write(write_entry(0, 5), &data).0.status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(0, 5), 5 * 512).1, data);
}
