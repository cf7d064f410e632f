//! Guests and monitors that break the rules.

mod driver;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use isolane_vhost::device;
use isolane_vhost::request::request_type;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::driver::fixture::{Fixture, IO_ERROR, UNSUPPORTED, check, range, submit_writes};
use crate::driver::waiting::Waiting;
use crate::driver::{Descriptor, GUEST, Guest, INDIRECT, MEMORY_BYTES, Monitor, NEXT, SIZE, USER, WRITE};

#[test]
fn rejects_wrong_requests_and_continues() {
    let fixture = Fixture::of("mem:64M,block-size=4096");
    let (mut guest, _monitor) = fixture.guest(1);
    let end = 64 << 11;
    for (kind, sector, data, len, status) in [
        (request_type::IN, 0, &[][..], 0, IO_ERROR),
        (request_type::IN, 0, &[], 511, IO_ERROR),
        (request_type::IN, 0, &[], 512, IO_ERROR),
        (request_type::IN, 1, &[], 4096, IO_ERROR),
        (request_type::IN, end, &[], 4096, IO_ERROR),
        (request_type::OUT, end - 8, &[], 8192, IO_ERROR),
        (request_type::OUT, u64::MAX - 7, &[], 4096, IO_ERROR),
        (2, 0, &[], 512, UNSUPPORTED),
        (u32::MAX, 0, &[], 0, UNSUPPORTED),
        (request_type::DISCARD, 0, &[], 0, IO_ERROR),
        (request_type::DISCARD, 0, &[0; 15], 15, IO_ERROR),
        (request_type::DISCARD, 0, &[0; 16], 16, IO_ERROR),
        (request_type::DISCARD, 0, &[0; 65 * 16], 65 * 16, IO_ERROR),
        (request_type::DISCARD, 0, &range(0, 8, 1), 16, UNSUPPORTED),
        (request_type::DISCARD, 0, &range(0, u32::MAX, 0), 16, IO_ERROR),
        (request_type::DISCARD, 0, &range(1, 8, 0), 16, IO_ERROR),
        (request_type::WRITE_ZEROES, 0, &range(end - 8, 16, 0), 16, IO_ERROR),
        (request_type::WRITE_ZEROES, 0, &range(u64::MAX - 7, 16, 0), 16, IO_ERROR),
        (request_type::WRITE_ZEROES, 0, &range(0, 8, 2), 16, UNSUPPORTED),
        (request_type::WRITE_ZEROES, 0, &[range(0, 8, 0), range(8, 8, 0)].concat(), 32, IO_ERROR),
    ] {
        let result = guest.run(0, kind, sector, data, len).0;
        assert_eq!(result, status, "request {kind} at {sector} of {len} bytes");
    }
    // Many segments that add up to more than the limit.
    guest.is_indirect = true;
    let parts = [device::MAX_PAYLOAD_BYTES / 3; 4];
    let head = guest.submit(0, request_type::IN, 0, &[], &parts, true);
    assert_eq!(guest.wait(0), [head]);
    assert_eq!(guest.take(0, head, 0).0, IO_ERROR);
    check(&mut guest, 0);
}

#[test]
fn malformed_queue_stops_alone() {
    let fixture = Fixture::of("mem:64M");
    let outside = GUEST + MEMORY_BYTES as u64;
    let descriptor = |address, len, flags, next| Descriptor { address, len, flags, next };
    let header = |next| descriptor(GUEST + (1 << 20), 16, NEXT, next);
    let status = descriptor(GUEST + (2 << 20), 1, WRITE, 0);
    let table = GUEST + (3 << 20);
    let chains: &[(&str, &[Descriptor])] = &[
        ("data outside", &[header(1), descriptor(outside - 1, 2, NEXT | WRITE, 2), status]),
        (
            "data at the end of addresses",
            &[header(1), descriptor(u64::MAX, u32::MAX, NEXT | WRITE, 2), status],
        ),
        ("header outside", &[descriptor(0, 16, NEXT, 1), status]),
        ("loop", &[header(1), descriptor(GUEST + (1 << 20), 16, NEXT, 0)]),
        ("loop of empty descriptors", &[descriptor(GUEST, 0, NEXT, 0)]),
        ("next outside", &[header(SIZE)]),
        ("no status", &[descriptor(GUEST + (1 << 20), 16, 0, 0)]),
        ("short header", &[descriptor(GUEST + (1 << 20), 15, NEXT, 1), status]),
        ("readable after writable", &[descriptor(GUEST, 1, NEXT | WRITE, 1), header(2), status]),
        ("table outside", &[descriptor(outside, 32, INDIRECT, 0)]),
        ("table at the end of addresses", &[descriptor(u64::MAX - 15, 64, INDIRECT, 0)]),
        ("empty table", &[descriptor(table, 0, INDIRECT, 0)]),
        ("part of a descriptor", &[descriptor(table, 31, INDIRECT, 0)]),
        ("huge table", &[descriptor(table, !15, INDIRECT, 0)]),
        ("table with a successor", &[descriptor(table, 32, INDIRECT | NEXT, 1), status]),
        ("table in a table", &[descriptor(table, 32, INDIRECT, 0)]),
    ];
    let (mut other, _other_monitor) = fixture.guest(1);
    for (name, chain) in chains {
        let (mut guest, _monitor) = fixture.guest(2);
        guest.set_entry(3 << 20, 0, descriptor(table, 32, INDIRECT, 0));
        for (at, entry) in chain.iter().enumerate() {
            guest.set_descriptor(0, at as u16, *entry);
        }
        guest.publish(0, 0);
        guest.wait_error(0);
        check(&mut guest, 1);
        check(&mut other, 0);
        assert_eq!(guest.used_index(0), 0, "{name}");
    }
    // Rings.
    for available in [SIZE + 1, 0x8000, u16::MAX] {
        let (mut guest, _monitor) = fixture.guest(2);
        guest.set_available(0, available);
        guest.kick(0);
        guest.wait_error(0);
        check(&mut guest, 1);
    }
    let (mut guest, _monitor) = fixture.guest(2);
    guest.publish(0, SIZE);
    guest.wait_error(0);
    check(&mut guest, 1);
    check(&mut other, 0);
}

#[test]
fn hostile_monitor_ends_alone() {
    let mut fixture = Fixture::of("mem:64M");
    let (mut other, mut other_monitor) = fixture.guest(1);
    let header = |code: u32, flags: u32, size: u32| [code, flags, size].map(u32::to_le_bytes).concat();
    for bytes in [
        vec![0xff; 12],
        vec![0; 4096],
        header(0, 1, 0),
        header(1, 0, 0),
        header(999, 1, 0),
        header(5, 1, 0xfff),
        header(2, 1, u32::MAX),
        header(8, 1, 8),
        [header(5, 1, 8), vec![1; 8]].concat(),
        [header(8, 1, 8), vec![0xff; 8]].concat(),
        [header(31, 1, 20), vec![0xff; 20]].concat(),
    ] {
        let mut stream = UnixStream::connect(fixture.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // The end of the connection, possibly with unread bytes.
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)), "{bytes:?}");
    }
    // One that stops in a message keeps only its own thread.
    let mut silent = UnixStream::connect(fixture.path()).unwrap();
    silent.write_all(&[1, 0, 0]).unwrap();
    check(&mut other, 0);
    type Attempt = fn(&mut Guest, &mut Monitor) -> vhost::Result<()>;
    let attempts: &[(&str, Attempt)] = &[
        ("size of 0", |guest, monitor| monitor.try_start(guest, 0, 0, USER)),
        ("size of 3", |guest, monitor| monitor.try_start(guest, 0, 3, USER)),
        ("size of 2048", |guest, monitor| monitor.try_start(guest, 0, 2048, USER)),
        ("addresses outside", |guest, monitor| monitor.try_start(guest, 0, SIZE, USER + MEMORY_BYTES as u64)),
        ("addresses across the end", |guest, monitor| {
            monitor.try_start(guest, 0, SIZE, USER + MEMORY_BYTES as u64 - 4096)
        }),
        ("addresses elsewhere", |guest, monitor| monitor.try_start(guest, 0, SIZE, 0x1000)),
        ("no memory", |guest, monitor| {
            let regions = [vhost::VhostUserMemoryRegionInfo { memory_size: 1 << 40, ..guest.region() }];
            monitor.frontend.set_mem_table(&regions).map(drop)
        }),
        ("unaligned memory", |guest, monitor| {
            let regions =
                [vhost::VhostUserMemoryRegionInfo { mmap_offset: 512, memory_size: 4096, ..guest.region() }];
            monitor.frontend.set_mem_table(&regions).map(drop)
        }),
        ("memory that can shrink", |guest, monitor| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(MEMORY_BYTES as u64).unwrap();
            let regions =
                [vhost::VhostUserMemoryRegionInfo { mmap_handle: file.as_raw_fd(), ..guest.region() }];
            monitor.frontend.set_mem_table(&regions).map(drop)
        }),
        ("unknown features", |_, monitor| monitor.frontend.set_features(u64::MAX)),
        ("inflight file of another size", |guest, monitor| {
            let size = 1 << 20;
            let inflight = VhostUserInflight {
                mmap_size: size,
                num_queues: 256,
                queue_size: 1024,
                ..Default::default()
            };
            let (_, file) = guest.inflight.as_ref().unwrap();
            monitor.frontend.set_inflight_fd(&inflight, file.as_raw_fd())
        }),
        ("huge inflight file", |_, monitor| {
            let inflight = VhostUserInflight { num_queues: 0xffff, queue_size: 0xffff, ..Default::default() };
            monitor.frontend.get_inflight_fd(&inflight).map(drop)
        }),
        ("change of a started queue", |guest, monitor| {
            monitor.start(guest, 0);
            monitor.frontend.set_vring_num(0, 32)
        }),
        ("other inflight file of a started queue", |guest, monitor| {
            monitor.start(guest, 0);
            let (inflight, file) = guest.inflight.as_ref().unwrap();
            monitor.frontend.set_inflight_fd(inflight, file.as_raw_fd())
        }),
        ("nine regions", |guest, monitor| {
            let region = |at: u64| vhost::VhostUserMemoryRegionInfo {
                guest_phys_addr: GUEST + (at << 32),
                memory_size: 4096,
                ..guest.region()
            };
            monitor.frontend.set_mem_table(&std::array::from_fn::<_, 9, _>(|at| region(at as u64))).map(drop)
        }),
        ("second start", |guest, monitor| {
            monitor.start(guest, 0);
            monitor.try_start(guest, 0, SIZE, USER)
        }),
    ];
    for (name, attempt) in attempts {
        let mut guest = Guest::new();
        let mut monitor = Monitor::connect(&fixture.path(), 0);
        monitor.set_memory(&guest);
        monitor.set_inflight(&mut guest, 1);
        assert!(attempt(&mut guest, &mut monitor).is_err(), "{name}");
        assert!(monitor.frontend.get_features().is_err(), "{name}: the connection continues");
        check(&mut other, 0);
    }
    assert!(other_monitor.config(0, 8).is_ok());
    drop(silent);
    fixture.shutdown().unwrap();
}

#[test]
fn eventfds_do_not_block_the_server() {
    let fixture = Fixture::of("mem:64M");
    let (mut other, _other_monitor) = fixture.guest(1);
    for is_call in [false, true] {
        let (mut guest, _monitor) = fixture.guest(1);
        guest.block_server(0, is_call);
        guest.submit(0, request_type::IN, 0, &[], &[512], true);
        guest.wait_used(0, 1);
        check(&mut other, 0);
    }
}

#[test]
fn limits_connections() {
    let fixture = Fixture::of("mem:1M");
    let mut monitors: Vec<Monitor> = (0..16).map(|_| Monitor::connect(&fixture.path(), 0)).collect();
    let mut refused = UnixStream::connect(fixture.path()).unwrap();
    assert_eq!(refused.read(&mut [0]).unwrap(), 0);
    // The end of one is visible to the next.
    monitors.pop();
    monitors.push(Monitor::connect(&fixture.path(), 0));
}

#[test]
fn memories_of_requests_count_as_a_connection() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, monitor) = fixture.guest(1);
    for at in 0..4u8 {
        guest.submit(0, request_type::OUT, at.into(), &[at; 512], &[512], false);
        volume.started(usize::from(at) + 1);
        let replaced = monitor.frontend.set_mem_table(&[guest.region()]);
        assert_eq!(replaced.is_ok(), at < 3, "memory {at}");
    }
    // The connection has ended. The volume still uses its memories.
    let mut monitors: Vec<Monitor> = (0..15).map(|_| Monitor::connect(&fixture.path(), 0)).collect();
    assert!(!is_accepted(&fixture));
    for at in 0..4 {
        volume.complete(&format!("write {at} {at}"));
    }
    while !is_accepted(&fixture) {
        std::thread::yield_now();
    }
    assert!(monitors.iter_mut().all(|monitor| monitor.config(0, 8).is_ok()));
}

/// Whether the server answers on a new connection.
fn is_accepted(fixture: &Fixture) -> bool {
    let mut stream = UnixStream::connect(fixture.path()).unwrap();
    // The features are requested.
    let _ = stream.write_all(&[1, 1, 0].map(u32::to_le_bytes).concat());
    matches!(stream.read(&mut [0]), Ok(1))
}

#[test]
fn descriptor_in_flight_stops_its_queue() {
    let volume = Waiting::new();
    let fixture = Fixture::new(volume.clone());
    let (mut guest, _monitor) = fixture.guest(2);
    let [head] = submit_writes(&mut guest, 1)[..] else { unreachable!() };
    volume.started(1);
    guest.publish(0, head);
    guest.wait_error(0);
    // The request in flight completes.
    volume.complete("write 0 1");
    assert_eq!(guest.wait(0), [head]);
    let head = guest.submit(1, request_type::OUT, 1, &[9; 512], &[512], false);
    volume.complete("write 1 9");
    assert_eq!(guest.wait(1), [head]);
}

#[test]
fn rejects_descriptors_that_are_no_eventfds() {
    let fixture = Fixture::of("mem:1M");
    let (mut guest, _monitor) = fixture.guest(1);
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    for code in [12, 13, 14] {
        let mut stream = UnixStream::connect(fixture.path()).unwrap();
        let message = [code, 1, 8, 0, 0].map(u32::to_le_bytes).concat();
        stream.send_with_fd(&message[..12], writer.as_raw_fd()).unwrap();
        stream.write_all(&message[12..]).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    check(&mut guest, 0);
}
