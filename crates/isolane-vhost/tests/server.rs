//! The server with a real socket, guest memory, and a driver.

mod driver;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use isolane_reactor::IoChoice;
use isolane_vhost::device::{self, feature};
use isolane_vhost::request::request_type;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

use crate::driver::fixture::{Fixture, IO_ERROR, OK, check, range, submit_writes};
use crate::driver::waiting::Waiting;
use crate::driver::{GUEST, Guest, Monitor, NO_STATUS, USER};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ seed ^ at as u8).collect()
}

#[test]
fn serves_each_request() {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let file = format!("{},size=64M", dir.path().join("disk").display());
    for (text, is_indirect, io) in [
        ("mem:64M", false, IoChoice::Auto),
        ("mem:64M,block-size=4096", true, IoChoice::Epoll),
        (&file, false, IoChoice::Auto),
        (&file, true, IoChoice::Epoll),
    ] {
        let mut fixture = Fixture::of_with(text, io);
        let (mut guest, _monitor) = fixture.guest(1);
        guest.is_indirect = is_indirect;
        // Contiguous data, and scattered data, of which no part is a block.
        let data = pattern(40960, 7);
        assert_eq!(guest.run(0, request_type::OUT, 8, &data, 40960).0, OK, "{text}");
        let parts = [1, 511, 4096, 8000, 20192, 8160];
        let head = guest.submit(0, request_type::OUT, 96, &data, &parts, false);
        assert_eq!(guest.wait(0), [head]);
        assert_eq!(guest.take(0, head, 0).0, OK);
        assert_eq!(guest.run(0, request_type::FLUSH, 0, &[], 0).0, OK);
        for sector in [8, 96] {
            let head = guest.submit(0, request_type::IN, sector, &[], &parts, true);
            assert_eq!(guest.wait(0), [head]);
            assert!(guest.take(0, head, 40960) == (OK, data.clone()), "{text}: sector {sector}");
        }
        let zeroes = range(16, 8, 1);
        assert_eq!(guest.run(0, request_type::WRITE_ZEROES, 0, &zeroes, 16).0, OK, "{text}");
        let discards = [range(24, 8, 0), range(104, 8, 0)].concat();
        assert_eq!(guest.run(0, request_type::DISCARD, 0, &discards, 32).0, OK, "{text}");
        let (status, read) = guest.run(0, request_type::IN, 8, &[], 16384);
        assert_eq!((status, &read[..4096], &read[12288..]), (OK, &data[..4096], &data[12288..16384]));
        assert_eq!(read[4096..8192], [0; 4096], "{text}");
        assert_eq!(read[8192..12288], [0; 4096], "{text}: a hole of a file or of memory");
        let (status, id) = guest.run(0, request_type::GET_ID, 0, &[], 20);
        assert!(status == OK && id.iter().all(u8::is_ascii_hexdigit), "{id:?}");
        fixture.shutdown().unwrap();
    }
}

#[test]
fn describes_the_device() {
    let fixture = Fixture::of("mem:64M");
    let mut monitor = Monitor::connect(&fixture.path(), 0);
    let config = monitor.config(0, 60).unwrap();
    assert_eq!(config[..8], (64u64 << 11).to_le_bytes());
    assert_eq!(monitor.config(8, 8).unwrap(), config[8..16]);
    assert_eq!(monitor.frontend.get_queue_num().unwrap(), u64::from(device::MAX_QUEUES));
    let ro = Fixture::of("mem:64M,ro");
    let (mut guest, _monitor) = ro.guest(1);
    assert_eq!(guest.run(0, request_type::OUT, 0, &[1; 512], 512).0, IO_ERROR);
    assert_eq!(guest.run(0, request_type::WRITE_ZEROES, 0, &range(0, 8, 0), 16).0, IO_ERROR);
    assert_eq!(guest.run(0, request_type::IN, 0, &[], 512), (OK, vec![0; 512]));
}

#[test]
fn queues_and_guests_share_the_volume() {
    const QUEUES: usize = 4;
    let fixture = Fixture::of("mem:64M");
    let (mut guest, _monitor) = fixture.guest(QUEUES);
    let (mut other, _other_monitor) = fixture.guest(1);
    for round in 0..20 {
        let mut heads = vec![Vec::new(); QUEUES];
        for (queue, heads) in heads.iter_mut().enumerate() {
            for at in 0..16u64 {
                let data = pattern(4096, (round + at) as u8 + queue as u8);
                heads.push(guest.submit(
                    queue,
                    request_type::OUT,
                    (at * 4 + queue as u64) * 8,
                    &data,
                    &[4096],
                    false,
                ));
            }
        }
        for (queue, heads) in heads.into_iter().enumerate() {
            let mut done = Vec::new();
            while done.len() < heads.len() {
                done.extend(guest.wait(queue));
            }
            done.sort_unstable();
            let mut expected = heads;
            expected.sort_unstable();
            assert_eq!(done, expected);
            assert!(done.into_iter().all(|head| guest.take(queue, head, 0).0 == OK));
        }
    }
    for at in 0..16u64 {
        for queue in 0..QUEUES {
            let expected = pattern(4096, (19 + at) as u8 + queue as u8);
            let read = other.run(0, request_type::IN, (at * 4 + queue as u64) * 8, &[], 4096);
            assert!(read == (OK, expected), "{at} {queue}");
        }
    }
}

#[test]
fn successor_repeats_exactly_the_unfinished_requests() {
    let first = Waiting::new();
    let mut fixture = Fixture::new(first.clone());
    let (mut guest, monitor) = fixture.guest(1);
    let heads = submit_writes(&mut guest, 8);
    first.started(8);
    // Completed in another order than started, and one descriptor is used again.
    for at in [5, 0, 3] {
        first.complete(&format!("write {at} {}", at + 1));
        assert_eq!(guest.wait(0), [heads[at]]);
        guest.take(0, heads[at], 0);
    }
    guest.submit(0, request_type::FLUSH, 0, &[], &[], false);
    let late = guest.submit(0, request_type::OUT, 9, &[77; 512], &[512], false);
    first.started(7);
    let second = Waiting::new();
    fixture.start(second.clone());
    drop(monitor);
    // Made available while there is no server.
    guest.submit(0, request_type::OUT, 10, &[78; 512], &[512], false);
    let _monitor = fixture.attach(&mut guest, 1);
    let expected = [
        "write 1 2",
        "write 2 3",
        "write 4 5",
        "write 6 7",
        "write 7 8",
        "flush",
        "write 9 77",
        "write 10 78",
    ];
    assert_eq!(second.started(expected.len()), expected);
    second.complete("write 9 77");
    assert_eq!(guest.wait(0), [late]);
    assert_eq!(guest.take(0, late, 0).0, OK);
    // A third one repeats the others.
    let third = Waiting::new();
    fixture.start(third.clone());
    let _monitor = fixture.attach(&mut guest, 1);
    let expected: Vec<&str> = expected.into_iter().filter(|name| *name != "write 9 77").collect();
    assert_eq!(third.started(expected.len()), expected);
    for name in expected {
        third.complete(name);
    }
    let mut done = 0;
    while done < 7 {
        done += guest.wait(0).len();
    }
    assert_eq!(third.started.lock().unwrap().len(), 0);
}

#[test]
fn new_connection_waits_for_requests_of_the_old() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, monitor) = fixture.guest(1);
    submit_writes(&mut guest, 2);
    volume.started(2);
    drop(monitor);
    let mut monitor = fixture.attach(&mut guest, 1);
    // The server replies after it has started the queue.
    monitor.config(0, 8).unwrap();
    assert_eq!(volume.started(2).len(), 2, "a request was repeated while it was in flight");
    volume.complete("write 0 1");
    monitor.config(0, 8).unwrap();
    assert_eq!(volume.started(1).len(), 1);
    volume.complete("write 1 2");
    assert_eq!(volume.started(2), ["write 0 1", "write 1 2"]);
    volume.complete("write 0 1");
    volume.complete("write 1 2");
    let mut done = 0;
    while done < 2 {
        done += guest.wait(0).len();
    }
    assert_eq!(guest.used_index(0), 2);
}

#[test]
fn stop_waits_for_changes_of_the_old_connection() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut other, _other_monitor) = fixture.guest(1);
    let (mut guest, monitor) = fixture.guest(1);
    submit_writes(&mut guest, 1);
    volume.started(1);
    drop(monitor);
    let monitor = fixture.attach(&mut guest, 1);
    let is_completed = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = scope.spawn(|| {
            let base = monitor.frontend.get_vring_base(0).unwrap();
            assert!(is_completed.load(Ordering::Acquire), "stopped while the volume reads guest memory");
            base
        });
        // Turns of the server, in which it would stop the queue.
        for _ in 0..100 {
            assert_eq!(other.run(0, request_type::GET_ID, 0, &[], 20).0, OK);
        }
        is_completed.store(true, Ordering::Release);
        volume.complete("write 0 1");
        assert_eq!(stop.join().unwrap(), 1);
    });
}

#[test]
fn writes_without_memory_end_with_their_connection() {
    const LEN: u32 = 1 << 20;
    // 12 more than the memory for data.
    const WRITES: usize = 140;
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, monitor) = fixture.guest(3);
    guest.is_indirect = true;
    for at in 0..WRITES {
        guest.submit(at % 3, request_type::OUT, 0, &[1; 512], &[LEN], false);
    }
    assert_eq!(volume.started(WRITES - 12).len(), WRITES - 12);
    drop(monitor);
    // The end of the connection is visible to the next.
    let mut monitor = fixture.attach(&mut guest, 3);
    monitor.config(0, 8).unwrap();
    (0..WRITES - 12).for_each(|_| volume.complete("write 0 1"));
    // The new connection repeats all, the late ones of the old have ended.
    for _ in 0..WRITES {
        volume.complete("write 0 1");
    }
    for (queue, count) in [47, 47, 46].into_iter().enumerate() {
        guest.wait_used(queue, count);
    }
    assert!(volume.started.lock().unwrap().is_empty(), "a request of the old connection was started");
}

#[test]
fn reads_of_the_old_connection_hold_no_queue() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, monitor) = fixture.guest(1);
    guest.submit(0, request_type::IN, 0, &[], &[512], true);
    guest.submit(0, request_type::FLUSH, 0, &[], &[], false);
    volume.started(2);
    drop(monitor);
    let (mut other, _monitor) = fixture.guest(1);
    submit_writes(&mut other, 1);
    assert_eq!(volume.started(3)[2], "write 0 1");
}

#[test]
fn large_requests_of_queues_alternate() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut old, monitor) = fixture.guest(1);
    submit_writes(&mut old, 1);
    volume.started(1);
    drop(monitor);
    // Both queues start together, after the write.
    let (mut guest, _monitor) = fixture.guest(2);
    for _ in 0..8 {
        for queue in 0..2 {
            guest.submit(queue, request_type::IN, queue as u64, &[], &[512 << 10], true);
        }
    }
    volume.complete("write 0 1");
    let started = volume.started(16);
    let visits: Vec<&[String]> = started.chunks(2).collect();
    assert!(visits.iter().all(|visit| visit[0] == visit[1]), "{started:?}");
    assert!(visits.windows(2).all(|next| next[0] != next[1]), "{started:?}");
}

#[test]
fn reads_have_limited_memory() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut other, _other_monitor) = fixture.guest(1);
    let (mut guest, _monitor) = fixture.guest(3);
    guest.is_indirect = true;
    for at in 0..140 {
        guest.submit(at % 3, request_type::IN, 0, &[], &[1 << 20], true);
    }
    let name = volume.started(128).remove(0);
    // Turns of the server, in which it would start others.
    for _ in 0..20 {
        assert_eq!(other.run(0, request_type::GET_ID, 0, &[], 20).0, OK);
    }
    assert_eq!(volume.started(128).len(), 128);
    (0..12).for_each(|_| volume.complete(&name));
    assert_eq!(volume.started(128).len(), 128);
}

#[test]
fn stop_waits_for_requests() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, mut monitor) = fixture.guest(1);
    submit_writes(&mut guest, 2);
    volume.started(2);
    let frontend = monitor.frontend.clone();
    let stop = thread::spawn(move || frontend.get_vring_base(0).unwrap());
    volume.complete("write 1 2");
    assert_eq!(guest.wait(0).len(), 1);
    assert!(!stop.is_finished());
    volume.complete("write 0 1");
    assert_eq!(stop.join().unwrap(), 2);
    assert_eq!(guest.used_index(0), 2);
    // It takes no request until it is started again.
    guest.submit(0, request_type::OUT, 5, &[5; 512], &[512], false);
    monitor.config(0, 8).unwrap();
    assert!(volume.started.lock().unwrap().is_empty());
    monitor.start(&mut guest, 0);
    assert_eq!(volume.started(1), ["write 5 5"]);
}

#[test]
fn disabled_queue_is_not_served() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, mut monitor) = fixture.guest(1);
    monitor.frontend.set_vring_enable(0, false).unwrap();
    submit_writes(&mut guest, 1);
    monitor.config(0, 8).unwrap();
    assert!(volume.started.lock().unwrap().is_empty());
    monitor.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(volume.started(1), ["write 0 1"]);
}

#[test]
fn writes_of_a_driver_without_flush_are_durable() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let mut guest = Guest::new();
    let mut monitor = Monitor::connect(&fixture.path(), feature::FLUSH | feature::EVENT_INDEX);
    monitor.set_memory(&guest);
    monitor.start(&mut guest, 0);
    submit_writes(&mut guest, 1);
    assert_eq!(volume.started(1), ["write 0 1 fua"]);
    volume.complete("write 0 1 fua");
    assert_eq!(guest.wait(0).len(), 1);
}

#[test]
fn failures_are_io_errors() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, _monitor) = fixture.guest(1);
    let write = guest.submit(0, request_type::OUT, 0, &[1; 512], &[512], false);
    volume.fail("write 0 1");
    assert_eq!(guest.wait(0), [write]);
    assert_eq!(guest.take(0, write, 0).0, IO_ERROR);
    let flush = guest.submit(0, request_type::FLUSH, 0, &[], &[], false);
    volume.fail("flush");
    assert_eq!(guest.wait(0), [flush]);
    assert_eq!(guest.take(0, flush, 0).0, IO_ERROR);
}

#[test]
fn memory_can_be_replaced_while_queues_run() {
    let fixture = Fixture::of("mem:64M");
    let (mut guest, monitor) = fixture.guest(1);
    check(&mut guest, 0);
    let more = Guest::new();
    let region = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST + (1 << 32),
        userspace_addr: USER + (1 << 32),
        ..more.region()
    };
    monitor.frontend.set_mem_table(&[guest.region(), region]).unwrap();
    check(&mut guest, 0);
    // The queue is not inside of this memory.
    assert!(monitor.frontend.set_mem_table(&[region]).is_err());
    let (mut other, _monitor) = fixture.guest(1);
    check(&mut other, 0);
}

#[test]
fn shutdown_completes_requests_and_flushes() {
    let volume = Waiting::new();
    let mut fixture = Fixture::new(volume.clone());
    let (mut guest, monitor) = fixture.guest(1);
    let heads = submit_writes(&mut guest, 1);
    volume.started(1);
    let thread = thread::spawn(move || {
        let result = fixture.shutdown();
        (fixture, result)
    });
    volume.complete("write 0 1");
    assert_eq!(guest.wait(0), heads);
    volume.complete("flush");
    thread.join().unwrap().1.unwrap();
    assert!(monitor.frontend.get_features().is_err(), "the connection is left");
    assert_ne!(guest.take(0, heads[0], 0).0, NO_STATUS);
}

#[test]
fn failed_flush_is_an_error() {
    let volume = Waiting::new();
    let mut fixture = Fixture::new(volume.clone());
    let thread = thread::spawn(move || fixture.shutdown());
    volume.fail("flush");
    let error = thread.join().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("mem:1M: flush failed: "), "{error}");
}
