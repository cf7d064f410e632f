//! File operations.

mod common;

use common::*;
use isolane_memory::{Buffer, Pool};
use isolane_reactor::file::{FileCompletion, FileOp, FileOpKind};
use isolane_reactor::{Event, Reactor};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

fn file(len: u64) -> Arc<File> {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(len).expect("its length");
    Arc::new(file)
}

fn run(reactor: &mut Reactor, file: &Arc<File>, operation: FileOp) -> FileCompletion {
    reactor.submit_file(42, file, operation);
    assert_eq!(reactor.files_in_flight(), 1);
    let finished = turn_until(reactor, |_, event| match event {
        Event::File(finished) => Some(finished),
        _ => None,
    });
    assert_eq!((finished.token, reactor.files_in_flight()), (42, 0));
    finished
}

fn patterned(len: usize, seed: u8) -> Buffer {
    let mut buffer = Buffer::contiguous(len);
    let bytes: Vec<u8> = (0..len).map(|index| (index / 512) as u8 ^ seed).collect();
    buffer.copy_in(0, &bytes);
    buffer
}

#[test]
fn round_trips_data_in_both_buffer_kinds() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let file = file(0);
        let written = patterned(64 << 10, 0x5a);
        let bytes = written.to_vec();
        for durable in [false, true] {
            let finished =
                run(&mut reactor, &file, FileOp::write(4096, written.clone_for_test(), 0, 64 << 10, durable));
            assert_eq!(finished.result.expect("written"), 64 << 10);
        }
        assert_eq!(run(&mut reactor, &file, FileOp::sync()).result.expect("synced"), 0);
        assert_eq!(run(&mut reactor, &file, FileOp::size()).result.expect("a size"), 68 << 10);
        let mut pool = Pool::new(64);
        for buffer in [Buffer::contiguous(64 << 10), pool.buffer(64 << 10).expect("pages")] {
            let finished = run(&mut reactor, &file, FileOp::read(4096 + 512, buffer, 1024, 32 << 10));
            assert_eq!(finished.result.expect("read"), 32 << 10);
            let buffer = finished.operation.buffer.expect("the buffer");
            assert_eq!(buffer.to_vec()[1024..][..32 << 10], bytes[512..][..32 << 10]);
        }
    });
}

#[test]
fn range_operations_keep_the_size() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let file = file(0);
        file.write_all_at(&[0xff; 64 << 10], 0).expect("written");
        let before = file.metadata().expect("metadata").blocks();
        for (kind, offset) in [(FileOpKind::PunchHole, 0), (FileOpKind::ZeroRange, 32 << 10)] {
            let finished = run(&mut reactor, &file, FileOp::range(kind, offset, 16 << 10));
            match finished.result {
                Ok(count) => assert_eq!(count, 0),
                // Some file systems do not support it.
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
                    continue;
                }
            }
            let mut bytes = vec![1; 16 << 10];
            file.read_exact_at(&mut bytes, offset).expect("read");
            assert!(bytes.iter().all(|&byte| byte == 0));
            assert!(kind == FileOpKind::ZeroRange || file.metadata().expect("metadata").blocks() < before);
        }
        assert_eq!(file.metadata().expect("metadata").len(), 64 << 10);
    });
}

#[test]
fn returns_buffer_on_error_and_short_transfer() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let file = file(1000);
        let finished = run(&mut reactor, &file, FileOp::read(512, Buffer::contiguous(4096), 0, 4096));
        assert_eq!(finished.result.expect("short"), 488);
        let read_only = Arc::new(File::open("/proc/self/exe").expect("open"));
        let finished =
            run(&mut reactor, &read_only, FileOp::write(0, Buffer::contiguous(512), 0, 512, false));
        assert!(finished.result.is_err() && finished.operation.buffer.is_some());
        let finished = run(&mut reactor, &file, FileOp::range(FileOpKind::DeviceZero, 0, 512));
        assert_eq!(finished.result.expect_err("no device").raw_os_error(), Some(25));
        let finished = run(&mut reactor, &file, FileOp::range(FileOpKind::PunchHole, 0, 0));
        assert_eq!(finished.result.expect("nothing to do"), 0);
        let finished = run(&mut reactor, &file, FileOp::read(0, Buffer::contiguous(512), 512, 512));
        assert_eq!(finished.result.expect_err("outside").kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn completes_more_operations_than_the_ring_holds() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let file = file(2000 * 512);
        for index in 0..2000u64 {
            let buffer = patterned(512, index as u8);
            reactor.submit_file(index, &file, FileOp::write(index * 512, buffer, 0, 512, false));
        }
        let mut seen = vec![false; 2000];
        turn_until(&mut reactor, |_, event| {
            let Event::File(finished) = event else { return None };
            assert_eq!(finished.result.expect("written"), 512);
            assert!(!std::mem::replace(&mut seen[finished.token as usize], true));
            seen.iter().all(|&seen| seen).then_some(())
        });
        let mut bytes = vec![0; 2000 * 512];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes.chunks(512).enumerate().all(|(index, block)| block == [index as u8; 512]));
    });
}

/// The first operation on the new thread, and more operations than the ring holds.
#[test]
fn moved_reactor_runs_file_operations() {
    with_each(|config| {
        let mut reactor = reactor(&config);
        let file = file(4096);
        run(&mut reactor, &file, FileOp::sync());
        for count in [1, 20, 1500] {
            reactor = std::thread::spawn({
                let file = file.clone();
                move || {
                    let mut missing: BTreeSet<u64> = (0..count).collect();
                    for token in 0..count {
                        let buffer = Buffer::contiguous(512);
                        reactor.submit_file(token, &file, FileOp::read(0, buffer, 0, 512));
                    }
                    while !missing.is_empty() {
                        turn_until(&mut reactor, |_, event| match event {
                            Event::File(finished) => {
                                assert_eq!(finished.result.expect("read"), 512);
                                assert!(missing.remove(&finished.token), "it ended twice");
                                Some(())
                            }
                            _ => None,
                        });
                    }
                    assert_eq!(reactor.files_in_flight(), 0);
                    reactor
                }
            })
            .join()
            .expect("the other thread");
        }
    });
}

#[test]
fn drop_completes_accepted_operations() {
    with_each(|config| {
        let file = file(0);
        let mut reactor = reactor(&config);
        for index in 0..1000u64 {
            reactor.submit_file(
                index,
                &file,
                FileOp::write(index * 4096, patterned(4096, 0), 0, 4096, false),
            );
        }
        drop(reactor);
        assert_eq!(file.metadata().expect("metadata").len(), 1000 * 4096);
    });
}

trait CloneForTest {
    fn clone_for_test(&self) -> Buffer;
}

impl CloneForTest for Buffer {
    fn clone_for_test(&self) -> Buffer {
        let mut copy = Buffer::contiguous(self.len());
        copy.copy_in(0, &self.to_vec());
        copy
    }
}
