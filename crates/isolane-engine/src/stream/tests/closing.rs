//! Streams that are closed while bytes are left to be sent.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolane_ring::adopted;

use super::super::STALLED;
use super::rig::{ALL, Rig, gone};
use super::table::assert_reset;

/// A rig whose ring and kernel are full, closed at the returned moment. Nobody has dropped the socket yet.
fn closed_with_bytes_left() -> (Rig, Instant) {
    let mut rig = Rig::new(1 << 20, Some(1 << 17));
    while rig.app_write(1 << 20, false).is_ok() {
        rig.look();
    }
    let now = Instant::now();
    rig.engine.as_mut().expect("one").machine.close(now);
    (rig, now)
}

/// Looks as often as there is something to do; whether the stream is over.
fn is_over(rig: &mut Rig) -> bool {
    let machine = &mut rig.engine.as_mut().expect("one").machine;
    machine.on_ready(ALL);
    loop {
        let looked = machine.look().unwrap();
        if looked.is_over || !looked.is_busy {
            return looked.is_over;
        }
    }
}

fn relieve(rig: &mut Rig, now: Instant) -> bool {
    rig.engine.as_mut().expect("one").machine.relieve(now)
}

/// A peer that takes 1 KB/s for 400 s of simulated time (longer than [`STALLED`]), in a session that needs memory every second of it; and one that
/// takes nothing for as long as its session needs none. Then both take everything.
#[test]
fn close_waits_for_slow_and_for_suspended_peers() {
    for (seconds, per_second) in [(400, 1024), (1, 0)] {
        let (mut rig, start) = closed_with_bytes_left();
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

/// Any movement, also in the kernel alone, keeps a stream whose session needs its room.
#[test]
fn relief_abandons_only_streams_that_do_not_move() {
    let (mut rig, start) = closed_with_bytes_left();
    assert!(!is_over(&mut rig));
    let queued = |rig: &Rig| adopted::unacknowledged(rig.socket.as_fd()).unwrap();
    assert!(!relieve(&mut rig, start));
    let before = queued(&rig);
    let begun = Instant::now();
    while queued(&rig) == before {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is acknowledged");
        let _ = rig.peer_read(1000);
    }
    let moved = start + STALLED;
    assert!(!relieve(&mut rig, moved), "it has moved since");
    // Acknowledgements may still be on their way.
    let mut now = moved;
    while !relieve(&mut rig, now) {
        assert!(!is_over(&mut rig));
        now += STALLED;
    }
    assert!(is_over(&mut rig), "it is abandoned");
    rig.engine.as_mut().expect("one").machine.hand_back().unwrap();
    rig.socket = TcpStream::from(gone());
    rig.drop_engine();
    assert_reset(&mut rig);
}

/// As when engine and supervisor are killed, or end before the peer has taken everything.
#[test]
fn streams_dropped_before_their_last_byte_is_sent_are_reset() {
    for dies in [None, Some(1), Some(2)] {
        let (mut rig, now) = closed_with_bytes_left();
        assert!(!is_over(&mut rig));
        rig.lives = dies;
        rig.kill();
        rig.engine.as_mut().expect("one").machine.close(now);
        rig.look();
        rig.socket = TcpStream::from(gone());
        rig.drop_engine();
        assert_reset(&mut rig);
    }
}
