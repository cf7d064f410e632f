//! Volumes behind the target: files and memory, on one core and on several.

mod common;

use std::net::SocketAddr;
use std::thread;

use common::interposer::{Decision, Interposer};
use common::*;
use isolane_target::{IoChoice, StartError, Target, TargetConfig};
use isolane_volume::{Request, VolumeError};
use isolane_wire::io::{DatasetManagementCommand, DsmRange, WriteCommand, WriteZeroesCommand};
use isolane_wire::pdu::ControllerPdu;
use isolane_wire::{Status, io};

/// A target with one file of 16 MiB, and that file's place.
fn file_config(io: IoChoice) -> (tempfile::TempDir, TargetConfig) {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("{},size=16M", dir.path().join("image").display());
    let config = TargetConfig { io, cores: one_core_twice(), ..config(&[&volume]) };
    (dir, config)
}

fn both_ways(test: impl Fn(tempfile::TempDir, TargetConfig)) {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let (dir, config) = file_config(io);
        test(dir, config);
    }
}

#[test]
fn file_keeps_data_over_restart() {
    both_ways(|dir, config| {
        let data = pattern(4, 256 * 1024);
        let (target, address) = start(config);
        let (admin, mut queue) = pair(address, 31);
        assert_eq!(queue.push(write_entry(7, 512), &data).status, Status::SUCCESS);
        let durable = WriteCommand { fua: true, ..WriteCommand::parse(&write_entry(1000, 8)) };
        assert_eq!(queue.write(durable.entry(), &data[..4096]).0.status, Status::SUCCESS);
        assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
        drop((admin, queue));
        target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();

        let again = format!("{}", dir.path().join("image").display());
        let (_target, address) = start(common::config(&[&again]));
        let (_admin, mut queue) = pair(address, 31);
        assert!(queue.fetch(read_entry(7, 512), 256 * 1024).1 == data);
        assert!(queue.fetch(read_entry(1000, 8), 4096).1 == data[..4096]);
    });
}

#[test]
fn zeroed_and_deallocated_blocks_read_as_zeroes() {
    both_ways(|_dir, config| {
        let (_target, address) = start(config);
        let (_admin, mut queue) = pair(address, 31);
        let data = vec![0xff; 64 * 1024];
        assert_eq!(queue.push(write_entry(0, 128), &data).status, Status::SUCCESS);
        for deallocate in [false, true] {
            let slba = 3 + u64::from(deallocate) * 20;
            let zero = WriteZeroesCommand { nsid: 1, slba, nlb: 9, deallocate, ..Default::default() };
            assert_eq!(queue.run(zero.entry()).status, Status::SUCCESS);
        }
        let ranges = [
            DsmRange { attributes: 0, blocks: 16, slba: 64 },
            DsmRange { attributes: 0, blocks: 8, slba: 96 },
        ];
        let data: Vec<u8> = ranges.iter().flat_map(|range| range.encode()).collect();
        let trim = DatasetManagementCommand { nsid: 1, nr: 1, deallocate: true, ..Default::default() };
        assert_eq!(queue.write(trim.entry(), &data).0.status, Status::SUCCESS);
        let read = queue.fetch(read_entry(0, 128), 64 * 1024).1;
        for (lba, block) in read.chunks(512).enumerate() {
            let is_zeroed = [3..13, 23..33, 64..80, 96..104].iter().any(|range| range.contains(&lba));
            assert_eq!(block, [if is_zeroed { 0 } else { 0xff }; 512], "block {lba}");
        }
    });
}

#[test]
fn overlapping_writes_leave_whole_blocks() {
    let files = [IoChoice::Auto, IoChoice::Epoll].map(file_config);
    let memory = TargetConfig { cores: one_core_twice(), ..config(&["mem:16M"]) };
    for config in files.iter().map(|(_, config)| config.clone()).chain([memory]) {
        let (_target, address) = start(config);
        let admin = MockHost::admin(address);
        let queues: Vec<_> = (1..=4).map(|qid| admin.io_queue(qid, 63)).collect();
        let threads = queues.into_iter().map(|queue| thread::spawn(move || race(queue)));
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Writes and reads the same few blocks, many commands at a time; each block read must be of one write.
fn race(mut queue: MockHost) {
    let mut random = fastrand::Rng::new();
    for _ in 0..30 {
        for _ in 0..20 {
            let (slba, blocks) = (random.u64(0..8), random.u32(1..=16));
            let data = vec![random.u8(..); blocks as usize * 512];
            queue.send(in_capsule(write_entry(slba, blocks), &data), &data);
            let sgl = isolane_wire::Sgl::Transport { len: 16 * 512 };
            queue.send(isolane_wire::SubmissionEntry { sgl, ..read_entry(0, 16) }, &[]);
        }
        let mut left = 40;
        while left > 0 {
            let answer = queue.answer();
            match answer.pdu {
                ControllerPdu::CapsuleResp(response) => {
                    assert_eq!(response.entry.status, Status::SUCCESS);
                    left -= 1;
                }
                ControllerPdu::C2hData(_) => {
                    for block in answer.data.chunks(512) {
                        assert!(block.iter().all(|byte| *byte == block[0]), "a block is torn");
                    }
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
}

#[test]
fn failing_volume_fails_only_its_commands() {
    let full = Interposer::over("mem:16M", |request| match request {
        Request::Write { lba: 8.., .. } => Decision::Fail(VolumeError::NoSpace { raw_os_error: 28 }),
        Request::Read { lba: 8.., .. } => Decision::Fail(VolumeError::ReadFailed { raw_os_error: 5 }),
        Request::Flush => Decision::Fail(VolumeError::SyncFailed { raw_os_error: 5 }),
        _ => Decision::Pass(request),
    });
    let (target, address) = start(serving(vec![(1, full)]));
    let (admin, mut queue) = pair(address, 31);
    assert_eq!(queue.push(write_entry(8, 8), &[1; 4096]).status.kind(), Status::CAPACITY_EXCEEDED);
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).0.status.kind(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(queue.run(io::flush(1)).status.kind(), Status::WRITE_FAULT);
    assert_eq!(queue.write(write_entry(0, 8), &[1; 4096]).0.status, Status::SUCCESS);
    let writes = || target.counters().namespaces[0].get(isolane_target::Operation::Write).clone();
    eventually("both are counted", || writes().commands == 2);
    assert_eq!(writes().errors, 1);
    drop((admin, queue));
    let report = target.shutdown(Target::SHUTDOWN_TIMEOUT);
    assert_eq!((report.flushes_failed, report.into_result().is_err()), (1, true));
}

#[test]
fn null_volume_discards_writes() {
    let (_target, address) = start(config(&["null:1T"]));
    let (_admin, mut queue) = pair(address, 31);
    let data = pattern(1, 1 << 20);
    assert_eq!(queue.push(write_entry(1 << 30, 2048), &data).status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(1 << 30, 2048), 1 << 20).1, vec![0; 1 << 20]);
}

#[test]
fn two_namespaces_with_one_identity_are_refused() {
    let volume = "mem:1M,uuid=0f01fb42-9f7f-4856-b0b3-51e60b8de349";
    let error = Target::start(config(&[volume, volume])).err().unwrap();
    assert!(matches!(error, StartError::SameIdentity { .. }), "{error}");
}

#[test]
fn rejects_duplicate_address_immediately() {
    let address: SocketAddr = "127.0.0.1:4420".parse().unwrap();
    let start = |listen: &[SocketAddr]| {
        let listen = listen.iter().map(|&address| address.into()).collect();
        Target::start(TargetConfig { listen, ..config(&["mem:1M"]) })
    };
    let error = start(&[address, address]).err().unwrap();
    assert_eq!(error.to_string(), "127.0.0.1:4420 is given twice: name every address once");
    let any = "127.0.0.1:0".parse().unwrap();
    assert_eq!(start(&[any, any]).unwrap().local_addrs().len(), 2, "port 0 is another one each time");
}

#[test]
fn rejects_address_in_use_with_remedy() {
    let (_target, address) = start(config(&["mem:1M"]));
    let error =
        Target::start(TargetConfig { listen: vec![address.into()], ..config(&["mem:1M"]) }).err().unwrap();
    assert!(error.to_string().contains("choose another port"), "{error}");
}
