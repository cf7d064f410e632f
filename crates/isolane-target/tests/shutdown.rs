//! Shutdown of a target: commands in flight finish, half-received transfers are discarded.

mod common;

use std::time::{Duration, Instant};

use common::gate::Gate;
use common::*;
use isolane_target::Target;
use isolane_wire::pdu::{ControllerPdu, H2cData};
use isolane_wire::{Sgl, Status, SubmissionEntry, admin};

/// Far longer than a target needs to stop.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn idle_target_stops_immediately() {
    let (target, address) = start(config(&["mem:1M"]));
    let mut admin = MockHost::admin(address);
    admin.send(admin::async_event_request(), &[]);
    let mut queue = admin.io_queue(1, 31);
    let started = Instant::now();
    let waiting = std::thread::spawn(move || {
        admin.expect_end();
        queue.expect_end();
    });
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "it took {:?}", started.elapsed());
    waiting.join().unwrap();
}

#[test]
fn open_hosts_delay_shutdown_briefly() {
    let (target, address) = start(config(&["mem:1M"]));
    let admin = MockHost::admin(address);
    let started = Instant::now();
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "it took {:?}", started.elapsed());
    drop(admin);
}

#[test]
fn shutdown_discards_half_received_transfer() {
    let (volume, mut config) = (volume("mem:1M"), config(&[]));
    config.subsystems[0].volumes.push((1, volume.clone()));
    let (target, address) = start(config.clone());
    let (_admin, mut queue) = pair(address, 31);
    queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 65536 }, ..write_entry(0, 128) }, &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };
    let header = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: r2t.r2tl, last: true };
    queue.send_bytes(&header.encode(&queue.outbound));
    queue.send_bytes(&[5; 40_000]);
    let started = Instant::now();
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "it took {:?}", started.elapsed());

    let (_target, address) = start(config);
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(queue.fetch(read_entry(0, 128), 65536).1, vec![0; 65536]);
}

/// The admin connection, which has nothing to complete, stays as long: its end would end the others.
#[test]
fn commands_at_volumes_are_completed_before_their_connections_close() {
    let gate = Gate::closed();
    let (target, address) = start(serving(vec![(1, gate.clone())]));
    let (mut admin, mut queue) = pair(address, 31);
    let cid = queue.send(in_capsule(write_entry(0, 1), &[7; 512]), &[7; 512]);
    eventually("the write is at the volume", || gate.arrived() == 1);
    let hosts = std::thread::spawn(move || {
        admin.expect_end();
        queue
    });
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| target.shutdown(TEST_TIMEOUT));
        eventually("it accepts no hosts", || std::net::TcpStream::connect(address).is_err());
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        stopping.join().unwrap().into_result().unwrap();
    });
    let mut queue = hosts.join().unwrap();
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
}

#[test]
fn restart_keeps_acknowledged_writes() {
    let (volume, mut config) = (volume("mem:1M"), config(&[]));
    config.subsystems[0].volumes.push((1, volume));
    let (target, address) = start(config.clone());
    let admin = MockHost::admin(address);
    let mut queue = admin.io_queue(1, 127);
    let writer = std::thread::spawn(move || {
        let mut acknowledged = 0u64;
        loop {
            let data = [block_byte(acknowledged); 512];
            queue.send(in_capsule(write_entry(acknowledged % 2048, 1), &data), &data);
            match queue.try_answer().map(|answer| answer.pdu) {
                Some(ControllerPdu::CapsuleResp(response)) if response.entry.status == Status::SUCCESS => {
                    acknowledged += 1;
                }
                Some(other) => panic!("unexpected {other:?}"),
                None => return acknowledged,
            }
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
    let acknowledged = writer.join().unwrap().min(2048);
    drop(admin);
    let (_target, address) = start(config);
    let (_admin, mut queue) = pair(address, 31);
    for lba in 0..acknowledged {
        assert_eq!(queue.fetch(read_entry(lba, 1), 512).1, vec![block_byte(lba); 512], "block {lba}");
    }
}

/// The same for numbers that differ by the number of blocks.
fn block_byte(number: u64) -> u8 {
    (number % 256) as u8 ^ 0x5a
}

#[test]
fn stopped_target_refuses_connections() {
    let (target, address) = start(config(&["mem:1M"]));
    drop(target);
    assert!(std::net::TcpStream::connect(address).is_err());
}
