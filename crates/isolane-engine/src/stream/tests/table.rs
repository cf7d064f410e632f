//! Each row of the table.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_attach::control::StreamPlace;
use isolane_attach::layout::stream as at;
use isolane_attach::stream::Block;
use isolane_ring::adopted::{self, State};
use rustix::net::sockopt;

use super::super::{Kept, Machine, Refusal};
use super::rig::{Rig, gone};

#[test]
fn a_check_changes_nothing_and_an_adopted_socket_fails_it() {
    let mut rig = Rig::new(4096, None);
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert!(matches!(Kept::of(rig.socket.as_fd(), rig.kept.place), Err(Refusal::Unfit(_))));
    rig.hand_back();
    let before = Kept::of(rig.socket.as_fd(), rig.kept.place).unwrap();
    assert_eq!(Kept::of(rig.socket.as_fd(), rig.kept.place).unwrap(), before);
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    assert!(!sockopt::socket_oobinline(&rig.socket).unwrap());
}

#[test]
fn what_cannot_be_a_stream_is_refused_with_the_reason() {
    let place = StreamPlace { block: 0, rx: 4096, rx_capacity: 4096, tx: 8192, tx_capacity: 4096 };
    let refused = |socket: &dyn AsFd, reason: &str| {
        let error = Kept::of(socket.as_fd(), place).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(&gone(), "no TCP socket");
    refused(&TcpListener::bind("127.0.0.1:0").unwrap(), "not connected");
    let mut rig = Rig::new(4096, None);
    rig.hand_back();
    rig.socket.shutdown(Shutdown::Both).unwrap();
    refused(&rig.socket, "not connected");
}

#[test]
fn urgent_bytes_are_inline_while_it_is_adopted_and_as_before_when_it_is_not() {
    let mut rig = Rig::new(4096, None);
    for was_inline in [true, false] {
        rig.hand_back();
        sockopt::set_socket_oobinline(&rig.socket, was_inline).unwrap();
        rig.adopt();
        assert!(sockopt::socket_oobinline(&rig.socket).unwrap());
        rig.kill();
        rig.hand_back();
        assert_eq!(sockopt::socket_oobinline(&rig.socket).unwrap(), was_inline);
        rig.adopt();
    }
}

/// Counts that always change are looked at once, whoever writes them.
#[test]
fn an_application_that_always_counts_what_it_sends_keeps_no_engine_from_taking_up() {
    let mut rig = Rig::new(4096, None);
    rig.engine = None;
    let (memory, is_done) = (rig.memory.clone(), AtomicBool::new(false));
    let place = rig.kept.place.block + at::TX_NATIVE;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let counts = (0..u64::MAX).take_while(|_| !is_done.load(Ordering::Relaxed));
            counts.for_each(|count| memory.copy_in(place, &count.to_ne_bytes()).unwrap());
        });
        let block = Block::open(&rig.memory, &rig.kept.place).unwrap();
        while block.tx_native() == 0 {
            std::thread::yield_now();
        }
        let refused = (0..50).find_map(|_| {
            let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
            Machine::take_up(socket, &rig.memory, rig.kept).err()
        });
        is_done.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
}

/// It counts after it has sent, and both before it puts more into the ring.
#[test]
fn an_application_may_send_itself_while_an_engine_takes_up() {
    let mut rig = Rig::new(1 << 16, None);
    let socket = rig.socket.try_clone().unwrap();
    let mut peer = rig.peer.try_clone().unwrap();
    peer.set_nonblocking(false).unwrap();
    let (mut incoming, mut outgoing) = rig.app.take().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut written, mut writes) = (0u64, 0u32);
            while !is_done.load(Ordering::Relaxed) {
                let bytes: Vec<u8> = (written..written + 1000).map(|byte| byte as u8).collect();
                let moved = match outgoing.is_idle().unwrap() && !writes.is_multiple_of(5) {
                    true => outgoing.send_past(socket.as_fd(), &bytes),
                    false => outgoing.try_write(&bytes).map(|moved| moved.bytes),
                };
                written += moved.unwrap_or(0) as u64;
                writes += 1;
            }
            outgoing.shut();
            written
        });
        let reader = scope.spawn(|| {
            let (mut read, mut bytes) = (0u64, [0; 5000]);
            loop {
                let count = std::io::Read::read(&mut peer, &mut bytes).unwrap();
                for byte in &bytes[..count] {
                    assert_eq!(*byte, read as u8, "byte {read}");
                    read += 1;
                }
                if count == 0 {
                    return read;
                }
            }
        });
        for round in 0..300 {
            rig.kill();
            for _ in 0..round % 7 {
                rig.look();
            }
        }
        is_done.store(true, Ordering::Relaxed);
        while !reader.is_finished() {
            rig.look();
        }
        assert_eq!(writer.join().unwrap(), reader.join().unwrap());
    });
    assert!(incoming.try_read(&mut [0]).is_err());
}

/// A peek stops there, and nobody tells of the bytes behind it.
#[test]
fn what_is_behind_an_urgent_byte_comes_without_another() {
    let mut rig = Rig::new(4096, None);
    for _ in 0..3 {
        while rig.look().is_busy {}
        rig.peer_write(3).unwrap();
        rig.peer_write_urgent(1);
        rig.peer_write(4).unwrap();
        rig.until("all of it", |rig| {
            let _ = rig.app_read(100);
            rig.down.read == rig.down.written
        });
    }
    rig.settle();
}

/// A life with everything in it.
fn live(rig: &mut Rig) {
    rig.peer_write(3000).unwrap();
    rig.look();
    rig.until("a step", |rig| rig.app_read(1500).is_ok());
    rig.until("a step", |rig| rig.app_write(100, false).is_ok());
    rig.look();
    rig.until("a step", |rig| rig.peer_read(50).is_ok());
    rig.rest();
    rig.until("a step", |rig| rig.app_read(1000).is_ok());
    rig.until("a step", |rig| rig.app_write(5000, true).is_ok());
    rig.look();
    rig.hand_back();
    rig.native_write(10);
    rig.native_read(20);
    rig.adopt();
    rig.until("a step", |rig| rig.app_write(64, false).is_ok());
    live_past(rig);
    rig.peer_write(10_000).unwrap();
    rig.look();
    let _ = rig.app_read(2000);
    rig.app_want_past(true);
    rig.look();
    let _ = rig.app_write(8000, true);
    rig.settle();
}

/// As [`live`], past the ring.
fn live_past(rig: &mut Rig) {
    rig.peer_write(500).unwrap();
    rig.look();
    rig.app_want_past(true);
    rig.look();
    rig.until("all before", |rig| {
        let _ = rig.app_read(99);
        rig.down.read == rig.down.written
    });
    rig.app_go_past();
    rig.peer_write(700).unwrap();
    rig.look();
    rig.until("a step", |rig| rig.app_read(300).is_ok());
    rig.rest();
    rig.app_want_past(false);
    rig.look();
    rig.app_want_past(true);
    rig.until("a step", |rig| rig.app_read(300).is_ok());
    rig.app_want_past(false);
    rig.until("a step", |rig| rig.app_read(100).is_ok());
}

#[test]
fn the_engine_yields_only_once_what_it_has_fetched_was_read() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.until("bytes in the ring", |rig| rig.app_read(1).is_ok());
    rig.app_want_past(true);
    rig.peer_write(50).unwrap();
    for _ in 0..20 {
        rig.look();
        rig.rest();
        assert!(!rig.app.as_mut().expect("adopted").0.is_past().unwrap());
    }
    assert_eq!(rig.app_read(200).unwrap(), 99, "what comes later stays in the kernel");
    rig.app_go_past();
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert_eq!((rig.app_read(200).unwrap(), rig.native_reads), (50, 1));
}

#[test]
fn while_the_application_receives_itself_the_engine_rests_and_touches_nothing() {
    let mut rig = Rig::new(4096, None);
    rig.app_go_past();
    assert!(!rig.engine.as_ref().expect("one").machine.hears_reads());
    for _ in 0..3 {
        rig.peer_write(1000).unwrap();
        while rig.look().is_busy {}
        assert!(rig.engine.as_mut().expect("one").machine.rest().unwrap(), "it has no work");
        rig.kill();
    }
    assert_eq!(adopted::unread(rig.socket.as_fd()).unwrap(), 3000);
    assert_eq!(rig.app_read(2000).unwrap(), 2000);
    rig.app_want_past(false);
    rig.until("the ring", |rig| rig.app_read(5000).is_ok());
    assert_eq!((rig.down.read, rig.native_reads), (3000, 1));
}

#[test]
fn an_end_past_the_ring_is_told_as_through_it() {
    let mut rig = Rig::new(4096, None);
    rig.app_go_past();
    rig.peer_write(3000).unwrap();
    assert_eq!(rig.app_read(1000).unwrap(), 1000);
    rig.peer.shutdown(Shutdown::Write).unwrap();
    rig.until("the rest", |rig| matches!(rig.app_read(900), Ok(200)));
    rig.until("the end", |rig| matches!(rig.app_read(1), Ok(0)));
    rig.app_want_past(true);
    for _ in 0..3 {
        rig.look();
        assert_eq!(rig.app_read(1).unwrap(), 0, "it stays the end");
    }
}

/// The kernel has let go of the connection: only its counts tell an end in order from a reset.
#[test]
fn an_end_past_the_ring_on_a_connection_that_is_over_in_both_directions_is_in_order() {
    let mut rig = Rig::new(4096, None);
    rig.app_go_past();
    rig.peer_write(700).unwrap();
    assert_eq!(rig.app_read(1000).unwrap(), 700);
    rig.peer.shutdown(Shutdown::Write).unwrap();
    rig.app_shut();
    rig.until("it is over", |rig| {
        let _ = rig.peer_read(1);
        adopted::counters(rig.socket.as_fd()).unwrap().state == State::Closed
    });
    rig.until("the end", |rig| match rig.app_read(1) {
        Ok(count) => count == 0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    });
}

/// Even if the engine's send has been told the error, so that a receive finds an end.
#[test]
fn a_reset_past_the_ring_is_an_error_whoever_was_told() {
    for sends in [false, true] {
        let mut rig = Rig::new(4096, None);
        rig.app_go_past();
        rig.peer_write(3000).unwrap();
        assert_eq!(rig.app_read(3000).unwrap(), 3000);
        sockopt::set_socket_linger(&rig.peer, Some(Duration::ZERO)).unwrap();
        rig.peer = gone().into();
        let start = Instant::now();
        while adopted::counters(rig.socket.as_fd()).unwrap().state != State::Closed {
            assert!(start.elapsed() < Duration::from_secs(30), "no reset comes");
        }
        if sends {
            rig.app_write(10, false).unwrap();
            rig.until("the writer's error", |rig| rig.app_write(1, false).is_err());
        }
        for _ in 0..3 {
            let mut kind = ErrorKind::WouldBlock;
            rig.until("the error", |rig| {
                kind = rig.app_read(10).unwrap_err().kind();
                kind != ErrorKind::WouldBlock
            });
            assert_eq!(kind, ErrorKind::ConnectionReset, "sends {sends}");
        }
    }
}

#[test]
fn a_close_past_the_ring_resets_if_bytes_are_unread_and_only_then() {
    for unread in [0, 60] {
        let mut rig = Rig::new(4096, None);
        rig.app_go_past();
        rig.peer_write(100).unwrap();
        rig.until("the bytes", |rig| rig.app_read(100 - unread).is_ok());
        rig.close(|_| {});
        if unread > 0 {
            assert_reset(&mut rig);
        } else {
            rig.peer.set_nonblocking(false).unwrap();
            assert_eq!(rig.peer_read(10).unwrap(), 0);
        }
    }
}

#[test]
fn a_socket_is_handed_back_past_the_ring() {
    let mut rig = Rig::new(4096, None);
    rig.app_go_past();
    rig.peer_write(100).unwrap();
    rig.until("some bytes", |rig| rig.app_read(40).is_ok());
    rig.hand_back();
    assert_eq!(adopted::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    rig.native_read(60);
    assert_eq!(rig.down.read, 100);
    rig.adopt();
    rig.settle();
}

#[test]
fn numbers_that_cannot_be_harm_the_stream_of_who_wrote_them_alone() {
    for number in [1, 2, u64::MAX, u64::MAX - 1] {
        for word in [at::RX_PAST, at::RX_YIELDED, at::RX_NATIVE] {
            let mut rig = Rig::new(4096, None);
            rig.peer_write(100).unwrap();
            rig.look();
            rig.scribble(word, number);
            for _ in 0..20 {
                rig.look();
                rig.rest();
            }
            rig.kill();
            rig.peer.shutdown(Shutdown::Write).unwrap();
            for _ in 0..20 {
                let _ = rig.app_read(99);
                rig.look();
                rig.rest();
            }
            rig.close(|_| {});
        }
    }
}

#[test]
fn a_stream_survives_the_death_of_its_engine_at_every_point() {
    let deaths = |first: u32, second: Option<u32>| {
        let mut rig = Rig::new(4096, None);
        rig.engine.as_ref().expect("one").machine.fuse.set(Some(first));
        rig.lives = second;
        live(&mut rig);
        rig.kills
    };
    let points = (0..1000).take_while(|first| deaths(*first, None) > 0).count();
    assert!((5..1000).contains(&points), "{points}");
    for first in 0..points as u32 {
        for second in 0..8 {
            deaths(first, Some(second));
        }
    }
}

#[test]
fn an_application_goes_on_by_itself_whenever_engine_and_supervisor_die() {
    for (things, goes_past, shuts) in (0..30).flat_map(|things| {
        [(things, false, false), (things, true, false), (things, false, true), (things, true, true)]
    }) {
        let mut rig = Rig::new(4096, None);
        rig.peer_write(3000).unwrap();
        rig.until("a step", |rig| rig.app_read(1500).is_ok());
        rig.app_write(3000, false).unwrap();
        rig.look();
        if goes_past {
            rig.until("a step", |rig| rig.app_read(1500).is_ok());
            rig.app_go_past();
            rig.peer_write(700).unwrap();
            rig.until("a step", |rig| rig.app_read(300).is_ok());
            rig.until("a step", |rig| rig.app_write(50, true).is_ok());
        }
        let _ = rig.app_read(300);
        rig.app_write(400, false).unwrap();
        rig.peer_write(500).unwrap();
        if shuts {
            rig.app_shut();
        }
        rig.take_back(things);
        match shuts {
            true => rig.socket.shutdown(Shutdown::Write).unwrap(),
            false => rig.native_write(10),
        }
        let start = Instant::now();
        while rig.up.read < rig.up.written || rig.down.read < rig.down.written {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{things} {goes_past} {shuts}: bytes are lost"
            );
            rig.native_read(1000);
            let _ = rig.peer_read(1000);
        }
        assert_eq!(rig.peer_read(1).ok(), shuts.then_some(0));
    }
}

#[test]
fn engines_that_die_while_a_stream_is_adopted_leave_it_to_the_next() {
    for life in 0..5 {
        let mut rig = Rig::new(4096, None);
        rig.hand_back();
        rig.lives = Some(life);
        rig.adopt();
        live(&mut rig);
    }
}

#[test]
fn a_close_sends_what_is_in_the_ring_first_whoever_dies_meanwhile() {
    for life in [None, Some(0), Some(1), Some(2), Some(3), Some(5)] {
        let mut rig = Rig::new(1 << 16, Some(4096));
        while rig.app_write(1 << 16, false).is_ok() {
            rig.look();
        }
        rig.engine.as_ref().expect("one").machine.fuse.set(life);
        rig.close(|rig| drop(rig.peer_read(2000)));
        rig.peer.set_nonblocking(false).unwrap();
        while rig.peer_read(1 << 16).unwrap() > 0 {}
        assert_eq!(rig.up.read, rig.up.written);
    }
}

#[test]
fn a_close_sends_what_is_to_be_shut_down_behind() {
    let mut rig = Rig::new(4096, None);
    rig.app_write(100, false).unwrap();
    rig.app_shut();
    rig.close(|_| {});
    rig.peer.set_nonblocking(false).unwrap();
    assert_eq!((rig.peer_read(200).unwrap(), rig.peer_read(200).unwrap()), (100, 0));
}

/// With bytes in the kernel alone, in the ring, or half read.
#[test]
fn a_close_with_bytes_unread_resets_as_without_an_engine() {
    for (looks, reads) in [(false, 0), (true, 0), (true, 99)] {
        let mut rig = Rig::new(4096, None);
        rig.peer_write(100).unwrap();
        if looks {
            rig.look();
        }
        if reads > 0 {
            rig.app_read(reads).unwrap();
        }
        rig.close(|_| {});
        assert_reset(&mut rig);
    }
}

#[test]
fn a_close_with_all_bytes_read_does_not_reset() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.until("the bytes", |rig| rig.app_read(100).is_ok());
    rig.close(|_| {});
    rig.peer.set_nonblocking(false).unwrap();
    assert_eq!(rig.peer_read(10).unwrap(), 0);
}

#[test]
fn bytes_that_come_while_the_rest_is_sent_reset() {
    let mut rig = Rig::new(1 << 16, Some(4096));
    while rig.app_write(1 << 16, false).is_ok() {
        rig.look();
    }
    let mut has_written = false;
    rig.close(|rig| {
        if !std::mem::replace(&mut has_written, true) {
            rig.peer_write(1).unwrap();
        }
    });
    while !matches!(rig.peer_read(1 << 16), Err(error) if error.kind() == ErrorKind::ConnectionReset) {}
    assert!(rig.up.read < rig.up.written);
}

#[test]
fn a_close_with_linger_0_resets_even_if_bytes_are_to_be_sent() {
    let mut rig = Rig::new(4096, None);
    rig.app_write(100, false).unwrap();
    sockopt::set_socket_linger(&rig.socket, Some(Duration::ZERO)).unwrap();
    rig.close(|_| {});
    assert_reset(&mut rig);
}

#[test]
fn whoever_reads_an_adopted_socket_itself_breaks_its_own_stream() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.look();
    rig.app_read(100).unwrap();
    let mut socket = &rig.socket;
    std::io::Read::read_exact(&mut socket, &mut [0; 100]).unwrap();
    let error = rig.engine.as_mut().expect("one").machine.hand_back().unwrap_err();
    assert!(error.to_string().contains("has read bytes"), "{error}");
}

/// What a client writes into the words before an engine takes them up ends that stream, or is taken as it is.
#[test]
fn words_that_cannot_be_end_their_own_stream_alone() {
    let take_up = |words: &[u64], value: u64| {
        let mut rig = Rig::new(4096, None);
        rig.app_write(100, false).unwrap();
        rig.look();
        rig.engine = None;
        for offset in words {
            rig.memory.copy_in(*offset, &value.to_le_bytes()).unwrap();
        }
        let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
        let Ok(mut machine) = Machine::take_up(socket, &rig.memory, rig.kept) else { return };
        let _ = (machine.look(), machine.rest(), machine.hand_back());
    };
    let places: Vec<u64> = (0..4096 / 128).flat_map(|line| [128 * line, 128 * line + 8]).collect();
    for value in [1, 4096, 1 << 31, 1 << 40, u64::MAX - 1, u64::MAX] {
        places.iter().for_each(|place| take_up(&[*place, place ^ 128], value));
        // All positions of what is received agree with each other.
        take_up(&[at::RX, at::RX + 128, at::RX_DISCARDED, at::RX_DISCARDING], value);
    }
}

pub(super) fn assert_reset(rig: &mut Rig) {
    let start = Instant::now();
    while adopted::counters(rig.peer.as_fd()).unwrap().state != State::Closed {
        assert!(start.elapsed() < Duration::from_secs(30), "no reset comes");
    }
    let mut has_bytes = true;
    while has_bytes {
        match rig.peer_read(1000) {
            Ok(count) => assert!(count > 0, "an end in order"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                has_bytes = false;
            }
        }
    }
}

/// The table of the documentation names a test for each of its rows.
#[test]
fn each_row_of_the_documented_table_has_its_test() {
    let text = include_str!("../../../../../docs/ARCHITECTURE.md");
    let start = text.find("the test (`engine/src/stream/tests/table.rs`)").expect("the table");
    let rows: Vec<&str> = text[start..].lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 10, "{} rows", rows.len());
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().expect("a last column").trim();
        if tests == "the same" || tests.contains(".rs") {
            continue;
        }
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            assert!(include_str!("table.rs").contains(&format!("fn {name}()")), "no test {name}");
        }
    }
}
