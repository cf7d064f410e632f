//! Each row of the table.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_engine_api::layout::stream as at;
use isolane_engine_api::stream::{ControlBlock, StreamLayout};
use isolane_tcp::TcpState;
use rustix::net::sockopt;

use super::super::{SocketRefusal, StreamMachine, StreamRecord};
use super::rig::{Rig, gone};

#[test]
fn capture_leaves_socket_unchanged() {
    let mut rig = Rig::new(4096, None);
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert!(matches!(
        StreamRecord::capture(rig.socket.as_fd(), rig.record.place),
        Err(SocketRefusal::Unsupported(_))
    ));
    rig.release();
    let before = StreamRecord::capture(rig.socket.as_fd(), rig.record.place).unwrap();
    assert_eq!(StreamRecord::capture(rig.socket.as_fd(), rig.record.place).unwrap(), before);
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    assert!(!sockopt::socket_oobinline(&rig.socket).unwrap());
}

#[test]
fn capture_rejects_other_sockets_with_reason() {
    let place = StreamLayout { block: 0, rx: 4096, rx_capacity: 4096, tx: 8192, tx_capacity: 4096 };
    let refused = |socket: &dyn AsFd, reason: &str| {
        let error = StreamRecord::capture(socket.as_fd(), place).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(&gone(), "not a TCP socket");
    refused(&TcpListener::bind("127.0.0.1:0").unwrap(), "not connected");
    let mut rig = Rig::new(4096, None);
    rig.release();
    rig.socket.shutdown(Shutdown::Both).unwrap();
    refused(&rig.socket, "not connected");
}

#[test]
fn release_restores_oob_inline() {
    let mut rig = Rig::new(4096, None);
    for was_inline in [true, false] {
        rig.release();
        sockopt::set_socket_oobinline(&rig.socket, was_inline).unwrap();
        rig.adopt();
        assert!(sockopt::socket_oobinline(&rig.socket).unwrap());
        rig.kill();
        rig.release();
        assert_eq!(sockopt::socket_oobinline(&rig.socket).unwrap(), was_inline);
        rig.adopt();
    }
}

/// Counts are read once, even if they change all the time.
#[test]
fn resume_tolerates_changing_counts() {
    let mut rig = Rig::new(4096, None);
    rig.engine = None;
    let (memory, is_done) = (rig.memory.clone(), AtomicBool::new(false));
    let place = rig.record.place.block + at::TX_BYPASSED;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let counts = (0..u64::MAX).take_while(|_| !is_done.load(Ordering::Relaxed));
            counts.for_each(|count| memory.copy_in(place, &count.to_ne_bytes()).unwrap());
        });
        let block = ControlBlock::open(&rig.memory, &rig.record.place).unwrap();
        while block.tx_bypassed.get() == 0 {
            std::thread::yield_now();
        }
        let refused = (0..50).find_map(|_| {
            let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
            StreamMachine::resume(socket, &rig.memory, rig.record).err()
        });
        is_done.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
}

/// It counts after it has sent, and before it writes into the ring.
#[test]
fn resume_tolerates_direct_sends() {
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
                let moved = if outgoing.is_idle().unwrap() && !writes.is_multiple_of(5) {
                    outgoing.send_direct(socket.as_fd(), &bytes)
                } else {
                    outgoing.try_write(&bytes).map(|moved| moved.bytes)
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
                rig.poll();
            }
        }
        is_done.store(true, Ordering::Relaxed);
        while !reader.is_finished() {
            rig.poll();
        }
        assert_eq!(writer.join().unwrap(), reader.join().unwrap());
    });
    assert!(incoming.try_read(&mut [0]).is_err());
}

/// A peek stops there, and no event announces the bytes after it.
#[test]
fn receives_data_after_urgent_byte() {
    let mut rig = Rig::new(4096, None);
    for _ in 0..3 {
        while rig.poll().busy {}
        rig.peer_write(3).unwrap();
        rig.peer_write_urgent(1);
        rig.peer_write(4).unwrap();
        rig.until("all of it", |rig| {
            let _ = rig.app_read(100);
            rig.down.read == rig.down.written
        });
    }
    rig.finish();
}

/// Runs a stream through all operations.
fn live(rig: &mut Rig) {
    rig.peer_write(3000).unwrap();
    rig.poll();
    rig.until("a step", |rig| rig.app_read(1500).is_ok());
    rig.until("a step", |rig| rig.app_write(100, false).is_ok());
    rig.poll();
    rig.until("a step", |rig| rig.peer_read(50).is_ok());
    rig.prepare_idle();
    rig.until("a step", |rig| rig.app_read(1000).is_ok());
    rig.until("a step", |rig| rig.app_write(5000, true).is_ok());
    rig.poll();
    rig.release();
    rig.native_write(10);
    rig.native_read(20);
    rig.adopt();
    rig.until("a step", |rig| rig.app_write(64, false).is_ok());
    live_bypassing(rig);
    rig.peer_write(10_000).unwrap();
    rig.poll();
    let _ = rig.app_read(2000);
    rig.app_set_bypass(true);
    rig.poll();
    let _ = rig.app_write(8000, true);
    rig.finish();
}

/// As [`live`], bypassing the ring.
fn live_bypassing(rig: &mut Rig) {
    rig.peer_write(500).unwrap();
    rig.poll();
    rig.app_set_bypass(true);
    rig.poll();
    rig.until("all before", |rig| {
        let _ = rig.app_read(99);
        rig.down.read == rig.down.written
    });
    rig.app_start_bypass();
    rig.peer_write(700).unwrap();
    rig.poll();
    rig.until("a step", |rig| rig.app_read(300).is_ok());
    rig.prepare_idle();
    rig.app_set_bypass(false);
    rig.poll();
    rig.app_set_bypass(true);
    rig.until("a step", |rig| rig.app_read(300).is_ok());
    rig.app_set_bypass(false);
    rig.until("a step", |rig| rig.app_read(100).is_ok());
}

#[test]
fn bypass_starts_once_peeked_data_was_read() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.until("bytes in the ring", |rig| rig.app_read(1).is_ok());
    rig.app_set_bypass(true);
    rig.peer_write(50).unwrap();
    for _ in 0..20 {
        rig.poll();
        rig.prepare_idle();
        assert!(!rig.app.as_mut().expect("adopted").0.is_bypassing().unwrap());
    }
    assert_eq!(rig.app_read(200).unwrap(), 99, "later data stays in the kernel");
    rig.app_start_bypass();
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), 0);
    assert_eq!((rig.app_read(200).unwrap(), rig.direct_reads), (50, 1));
}

#[test]
fn bypassed_engine_is_idle_and_touches_nothing() {
    let mut rig = Rig::new(4096, None);
    rig.app_start_bypass();
    assert!(!rig.engine.as_ref().expect("an engine").machine.wants_reads());
    for _ in 0..3 {
        rig.peer_write(1000).unwrap();
        while rig.poll().busy {}
        assert!(rig.engine.as_mut().expect("an engine").machine.prepare_idle().unwrap(), "it has no work");
        rig.kill();
    }
    assert_eq!(isolane_tcp::unread_bytes(rig.socket.as_fd()).unwrap(), 3000);
    assert_eq!(rig.app_read(2000).unwrap(), 2000);
    rig.app_set_bypass(false);
    rig.until("the ring", |rig| rig.app_read(5000).is_ok());
    assert_eq!((rig.down.read, rig.direct_reads), (3000, 1));
}

#[test]
fn reports_end_while_bypassed() {
    let mut rig = Rig::new(4096, None);
    rig.app_start_bypass();
    rig.peer_write(3000).unwrap();
    assert_eq!(rig.app_read(1000).unwrap(), 1000);
    rig.peer.shutdown(Shutdown::Write).unwrap();
    rig.until("the rest", |rig| matches!(rig.app_read(900), Ok(200)));
    rig.until("the end", |rig| matches!(rig.app_read(1), Ok(0)));
    rig.app_set_bypass(true);
    for _ in 0..3 {
        rig.poll();
        assert_eq!(rig.app_read(1).unwrap(), 0, "it stays the end");
    }
}

/// The kernel has dropped the connection: only its counts distinguish a clean end from a reset.
#[test]
fn reports_clean_end_while_bypassed() {
    let mut rig = Rig::new(4096, None);
    rig.app_start_bypass();
    rig.peer_write(700).unwrap();
    assert_eq!(rig.app_read(1000).unwrap(), 700);
    rig.peer.shutdown(Shutdown::Write).unwrap();
    rig.app_shut();
    rig.until("the end of the connection", |rig| {
        let _ = rig.peer_read(1);
        isolane_tcp::counters(rig.socket.as_fd()).unwrap().state == TcpState::Closed
    });
    rig.until("the end", |rig| match rig.app_read(1) {
        Ok(count) => count == 0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    });
}

/// Even if a send of the engine has received the error, so that a receive returns an end of file.
#[test]
fn reports_reset_while_bypassed() {
    for sends in [false, true] {
        let mut rig = Rig::new(4096, None);
        rig.app_start_bypass();
        rig.peer_write(3000).unwrap();
        assert_eq!(rig.app_read(3000).unwrap(), 3000);
        sockopt::set_socket_linger(&rig.peer, Some(Duration::ZERO)).unwrap();
        rig.peer = gone().into();
        let start = Instant::now();
        while isolane_tcp::counters(rig.socket.as_fd()).unwrap().state != TcpState::Closed {
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
fn bypassed_close_resets_only_with_unread_bytes() {
    for unread in [0, 60] {
        let mut rig = Rig::new(4096, None);
        rig.app_start_bypass();
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
fn releases_socket_while_bypassed() {
    let mut rig = Rig::new(4096, None);
    rig.app_start_bypass();
    rig.peer_write(100).unwrap();
    rig.until("some bytes", |rig| rig.app_read(40).is_ok());
    rig.release();
    assert_eq!(isolane_tcp::peek_offset(rig.socket.as_fd()).unwrap(), -1);
    rig.native_read(60);
    assert_eq!(rig.down.read, 100);
    rig.adopt();
    rig.finish();
}

#[test]
fn invalid_bypass_words_affect_only_their_stream() {
    for number in [1, 2, u64::MAX, u64::MAX - 1] {
        for word in [at::RX_BYPASS, at::RX_BYPASS_ACK, at::RX_BYPASSED] {
            let mut rig = Rig::new(4096, None);
            rig.peer_write(100).unwrap();
            rig.poll();
            rig.scribble(word, number);
            for _ in 0..20 {
                rig.poll();
                rig.prepare_idle();
            }
            rig.kill();
            rig.peer.shutdown(Shutdown::Write).unwrap();
            for _ in 0..20 {
                let _ = rig.app_read(99);
                rig.poll();
                rig.prepare_idle();
            }
            rig.close(|_| {});
        }
    }
}

#[test]
fn survives_engine_death_at_every_point() {
    let deaths = |first: u32, second: Option<u32>| {
        let mut rig = Rig::new(4096, None);
        rig.engine.as_ref().expect("an engine").machine.common.failpoint.set(Some(first));
        rig.failpoint_after = second;
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
fn recovers_without_engine_and_supervisor() {
    for (things, bypasses, shuts) in (0..30).flat_map(|things| {
        [(things, false, false), (things, true, false), (things, false, true), (things, true, true)]
    }) {
        let mut rig = Rig::new(4096, None);
        rig.peer_write(3000).unwrap();
        rig.until("a step", |rig| rig.app_read(1500).is_ok());
        rig.app_write(3000, false).unwrap();
        rig.poll();
        if bypasses {
            rig.until("a step", |rig| rig.app_read(1500).is_ok());
            rig.app_start_bypass();
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
        rig.recover(things);
        if shuts {
            rig.socket.shutdown(Shutdown::Write).unwrap()
        } else {
            rig.native_write(10)
        }
        let start = Instant::now();
        while rig.up.read < rig.up.written || rig.down.read < rig.down.written {
            assert!(start.elapsed() < Duration::from_secs(30), "{things} {bypasses} {shuts}: bytes are lost");
            rig.native_read(1000);
            let _ = rig.peer_read(1000);
        }
        assert_eq!(rig.peer_read(1).ok(), shuts.then_some(0));
    }
}

#[test]
fn survives_engine_deaths_during_adoption() {
    for life in 0..5 {
        let mut rig = Rig::new(4096, None);
        rig.release();
        rig.failpoint_after = Some(life);
        rig.adopt();
        live(&mut rig);
    }
}

#[test]
fn close_sends_ring_despite_engine_deaths() {
    for life in [None, Some(0), Some(1), Some(2), Some(3), Some(5)] {
        let mut rig = Rig::new(1 << 16, Some(4096));
        while rig.app_write(1 << 16, false).is_ok() {
            rig.poll();
        }
        rig.engine.as_ref().expect("an engine").machine.common.failpoint.set(life);
        rig.close(|rig| drop(rig.peer_read(2000)));
        rig.peer.set_nonblocking(false).unwrap();
        while rig.peer_read(1 << 16).unwrap() > 0 {}
        assert_eq!(rig.up.read, rig.up.written);
    }
}

#[test]
fn close_sends_data_before_shutdown() {
    let mut rig = Rig::new(4096, None);
    rig.app_write(100, false).unwrap();
    rig.app_shut();
    rig.close(|_| {});
    rig.peer.set_nonblocking(false).unwrap();
    assert_eq!((rig.peer_read(200).unwrap(), rig.peer_read(200).unwrap()), (100, 0));
}

/// With bytes in the kernel alone, in the ring, or half read.
#[test]
fn close_with_unread_bytes_resets() {
    for (looks, reads) in [(false, 0), (true, 0), (true, 99)] {
        let mut rig = Rig::new(4096, None);
        rig.peer_write(100).unwrap();
        if looks {
            rig.poll();
        }
        if reads > 0 {
            rig.app_read(reads).unwrap();
        }
        rig.close(|_| {});
        assert_reset(&mut rig);
    }
}

#[test]
fn close_with_all_bytes_read_does_not_reset() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.until("the bytes", |rig| rig.app_read(100).is_ok());
    rig.close(|_| {});
    rig.peer.set_nonblocking(false).unwrap();
    assert_eq!(rig.peer_read(10).unwrap(), 0);
}

#[test]
fn bytes_received_during_close_reset() {
    let mut rig = Rig::new(1 << 16, Some(4096));
    while rig.app_write(1 << 16, false).is_ok() {
        rig.poll();
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
fn close_with_linger_0_resets_despite_unsent_data() {
    let mut rig = Rig::new(4096, None);
    rig.app_write(100, false).unwrap();
    sockopt::set_socket_linger(&rig.socket, Some(Duration::ZERO)).unwrap();
    rig.close(|_| {});
    assert_reset(&mut rig);
}

#[test]
fn reading_adopted_socket_fails_its_stream() {
    let mut rig = Rig::new(4096, None);
    rig.peer_write(100).unwrap();
    rig.poll();
    rig.app_read(100).unwrap();
    let mut socket = &rig.socket;
    std::io::Read::read_exact(&mut socket, &mut [0; 100]).unwrap();
    let error = rig.engine.as_mut().expect("an engine").machine.release().unwrap_err();
    assert!(error.to_string().contains("has read bytes"), "{error}");
}

/// Words that a client wrote before an engine resumes the stream end it, or are accepted.
#[test]
fn invalid_words_end_only_their_stream() {
    let resume = |words: &[u64], value: u64| {
        let mut rig = Rig::new(4096, None);
        rig.app_write(100, false).unwrap();
        rig.poll();
        rig.engine = None;
        for offset in words {
            rig.memory.copy_in(*offset, &value.to_le_bytes()).unwrap();
        }
        let socket = rig.socket.as_fd().try_clone_to_owned().unwrap();
        let Ok(mut machine) = StreamMachine::resume(socket, &rig.memory, rig.record) else { return };
        let _ = (machine.poll(), machine.prepare_idle(), machine.release());
    };
    let places: Vec<u64> = (0..4096 / 128).flat_map(|line| [128 * line, 128 * line + 8]).collect();
    for value in [1, 4096, 1 << 31, 1 << 40, u64::MAX - 1, u64::MAX] {
        places.iter().for_each(|place| resume(&[*place, place ^ 128], value));
        // All receive positions agree.
        resume(&[at::RX, at::RX + 128, at::RX_DISCARDED, at::RX_DISCARDING], value);
    }
}

pub(super) fn assert_reset(rig: &mut Rig) {
    let start = Instant::now();
    while isolane_tcp::counters(rig.peer.as_fd()).unwrap().state != TcpState::Closed {
        assert!(start.elapsed() < Duration::from_secs(30), "no reset comes");
    }
    let mut has_bytes = true;
    while has_bytes {
        match rig.peer_read(1000) {
            Ok(count) => assert!(count > 0, "a clean end"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                has_bytes = false;
            }
        }
    }
}

/// Each row of the documented table names an existing test.
#[test]
fn documented_states_have_tests() {
    let text = include_str!("../../../../../docs/ISOLATION.md");
    let start = text.find("the test (`isolane-engine/src/stream/tests/table.rs`)").expect("the table");
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
