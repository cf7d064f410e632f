//! Closes of streams with unsent data.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::super::STALL_TIMEOUT;
use super::rig::{ALL, Rig, gone};
use super::table::assert_reset;

/// Returns a fixture with full buffers, and the time of its close. All sockets are still open.
fn closed_with_unsent_data() -> (Rig, Instant) {
    let mut rig = Rig::new(1 << 20, Some(1 << 17));
    while rig.app_write(1 << 20, false).is_ok() {
        rig.poll();
    }
    let now = Instant::now();
    rig.engine.as_mut().expect("an engine").machine.close(now);
    (rig, now)
}

/// Polls until the stream is idle. Returns whether it is closed.
fn is_over(rig: &mut Rig) -> bool {
    let machine = &mut rig.engine.as_mut().expect("an engine").machine;
    machine.on_ready(ALL);
    loop {
        let progress = machine.poll().unwrap();
        if progress.closed || !progress.busy {
            return progress.closed;
        }
    }
}

fn relieve(rig: &mut Rig, now: Instant) -> bool {
    rig.engine.as_mut().expect("an engine").machine.relieve(now)
}

/// One peer reads 1 KB/s for 400 s of simulated time (longer than [`STALL_TIMEOUT`]), in a session that needs memory
/// every second; another reads nothing while its session needs no memory. Then both read everything.
#[test]
fn close_waits_for_slow_and_suspended_peers() {
    for (seconds, per_second) in [(400, 1024), (1, 0)] {
        let (mut rig, start) = closed_with_unsent_data();
        for second in 0..seconds {
            assert!(!relieve(&mut rig, start + Duration::from_secs(second)), "abandoned after {second} s");
            assert!(!is_over(&mut rig), "over after {second} s");
            let _ = rig.peer_read(per_second);
        }
        rig.close(|rig| drop(rig.peer_read(1 << 16)));
        rig.peer.set_nonblocking(false).unwrap();
        while rig.peer_read(1 << 16).unwrap() > 0 {}
        assert_eq!(rig.up.read, rig.up.written);
    }
}

/// Any progress, even in the kernel alone, keeps a stream of a session that needs memory.
#[test]
fn relief_abandons_only_stalled_streams() {
    let (mut rig, start) = closed_with_unsent_data();
    assert!(!is_over(&mut rig));
    let queued = |rig: &Rig| isolane_tcp::socket::unacknowledged_bytes(rig.socket.as_fd()).unwrap();
    assert!(!relieve(&mut rig, start));
    let before = queued(&rig);
    let started = Instant::now();
    while queued(&rig) == before {
        assert!(started.elapsed() < Duration::from_secs(30), "nothing is acknowledged");
        let _ = rig.peer_read(1000);
    }
    let moved = start + STALL_TIMEOUT;
    assert!(!relieve(&mut rig, moved), "the stream has made progress since");
    // Acknowledgments may still be in flight.
    let mut now = moved;
    while !relieve(&mut rig, now) {
        assert!(!is_over(&mut rig));
        now += STALL_TIMEOUT;
    }
    assert!(is_over(&mut rig), "the stream is not abandoned");
    rig.engine.as_mut().expect("an engine").machine.release().unwrap();
    rig.socket = TcpStream::from(gone());
    rig.drop_engine();
    assert_reset(&mut rig);
}

/// Engine and supervisor are killed, or end before the peer has read everything.
#[test]
fn dropped_stream_with_unsent_data_is_reset() {
    for failpoint in [None, Some(1), Some(2)] {
        let (mut rig, now) = closed_with_unsent_data();
        assert!(!is_over(&mut rig));
        rig.failpoint_after = failpoint;
        rig.kill();
        rig.engine.as_mut().expect("an engine").machine.close(now);
        rig.poll();
        rig.socket = TcpStream::from(gone());
        rig.drop_engine();
        assert_reset(&mut rig);
    }
}
