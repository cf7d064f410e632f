//! The calls, and the behavior of the kernel that streams through an engine depend on.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolane_shm::sockopt::setsockopt;
use isolane_shm::testing;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::*;

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn next_peek_continues_after_last_one() {
    let (near, mut far) = testing::connection().unwrap();
    let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    far.write_all(b"one").unwrap();
    wait_for("the bytes", || unread_bytes(near.as_fd()).unwrap() == 3);
    assert_eq!(peek_into(&mut writer, near.as_fd(), 99), Ok(Ok(PeekResult::Bytes(3))));
    assert_eq!(peek_into(&mut writer, near.as_fd(), 99), Ok(Ok(PeekResult::WouldBlock)));
    far.write_all(b"two").unwrap();
    wait_for("the bytes", || unread_bytes(near.as_fd()).unwrap() == 6);
    assert_eq!(peek_into(&mut writer, near.as_fd(), 99), Ok(Ok(PeekResult::Bytes(3))));
    writer.publish();
    let mut read = [0; 9];
    assert_eq!(reader.read(&mut read), Ok(6));
    assert_eq!(&read[..6], b"onetwo");
    assert_eq!(peek_offset(near.as_fd()).unwrap(), 6);
    assert_eq!(discard(near.as_fd(), 4).unwrap(), 4);
    assert_eq!((peek_offset(near.as_fd()).unwrap(), unread_bytes(near.as_fd()).unwrap()), (2, 2));
}

#[test]
fn full_ring_reads_nothing_and_fin_adds_nothing() {
    let (near, mut far) = testing::connection().unwrap();
    let (mut writer, _reader, _corruptor) = testing::bytes(4096).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    far.write_all(&[7; 4097]).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    wait_for("all bytes", || unread_bytes(near.as_fd()).unwrap() == 4097);
    assert_eq!(peek_into(&mut writer, near.as_fd(), 5000), Ok(Ok(PeekResult::Bytes(4096))));
    assert_eq!(peek_into(&mut writer, near.as_fd(), 5000), Ok(Ok(PeekResult::Full)));
    let (mut other, _other_reader, _other_corruptor) = testing::bytes(4096).unwrap();
    assert_eq!(peek_into(&mut other, near.as_fd(), 5000), Ok(Ok(PeekResult::Bytes(1))));
    assert_eq!(peek_into(&mut other, near.as_fd(), 5000), Ok(Ok(PeekResult::End)));
    assert_eq!(discard(near.as_fd(), 9999).unwrap(), 4097);
    assert_eq!(unread_bytes(near.as_fd()).unwrap(), 0);
}

#[test]
fn blocking_socket_never_blocks() {
    let (near, _far) = testing::connection().unwrap();
    assert!(!fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK));
    let (mut writer, mut reader, _corruptor) = testing::bytes(1 << 20).unwrap();
    assert_eq!(peek_into(&mut writer, near.as_fd(), 9), Ok(Ok(PeekResult::WouldBlock)));
    assert_eq!(discard(near.as_fd(), 9).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(send_from(&mut reader, near.as_fd(), 9), Ok(Ok(SendResult::Empty)));
    wait_for("a full buffer", || {
        while writer.write(&[1; 1 << 16]).unwrap() > 0 {}
        reader.publish();
        send_from(&mut reader, near.as_fd(), usize::MAX).unwrap().unwrap() == SendResult::WouldBlock
    });
    assert!(!fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK), "the file flags are shared");
}

#[test]
fn reset_is_an_error_without_a_signal() {
    let (near, far) = testing::connection().unwrap();
    let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
    sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
    drop(far);
    writer.write(b"too late").unwrap();
    wait_for("the reset", || counters(near.as_fd()).unwrap().state == TcpState::Closed);
    assert_eq!(peek_into(&mut writer, near.as_fd(), 9), Ok(Err(Errno::CONNRESET)));
    assert_eq!(send_from(&mut reader, near.as_fd(), 9), Ok(Err(Errno::PIPE)));
    assert_eq!(
        peek_into(&mut writer, near.as_fd(), 9),
        Ok(Ok(PeekResult::End)),
        "the kernel reports an error once"
    );
}

/// Both ends' counters after partial writes and reads, while bytes and acknowledgments are in flight.
#[test]
fn kernel_counts_written_and_received_bytes_exactly() {
    let (mut near, mut far) = testing::connection().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let bases = [counters(near.as_fd()).unwrap(), counters(far.as_fd()).unwrap()];
    let (mut written, mut read) = ([0u64; 2], [0u64; 2]);
    let bytes = vec![3; 300_000];
    let mut buffer = vec![0; 100_000];
    for round in 0..200usize {
        written[0] += near.write(&bytes[..1 + round * 1499]).unwrap_or(0) as u64;
        written[1] += far.write(&bytes[..1 + round * 31]).unwrap_or(0) as u64;
        read[0] += near.read(&mut buffer[..1 + round * 29]).unwrap_or(0) as u64;
        read[1] += far.read(&mut buffer[..1 + round * 499]).unwrap_or(0) as u64;
        for (end, socket) in [&near, &far].into_iter().enumerate() {
            let now = counters(socket.as_fd()).unwrap();
            assert_eq!(now.written - bases[end].written, written[end], "round {round}");
            // Bytes may arrive between the two calls, but none is read.
            let unread_before = unread_bytes(socket.as_fd()).unwrap();
            let received = counters(socket.as_fd()).unwrap().received - bases[end].received;
            assert!(received >= read[end] + unread_before, "round {round}");
        }
    }
    near.shutdown(Shutdown::Write).unwrap();
    wait_for("the far end", || {
        read[1] += far.read(&mut buffer).unwrap_or(0) as u64;
        read[1] == written[0] && counters(far.as_fd()).unwrap().state == TcpState::CloseWait
    });
    assert_eq!(counters(near.as_fd()).unwrap().state, TcpState::Closing);
    let received = counters(far.as_fd()).unwrap().received - bases[1].received;
    assert_eq!((received, unread_bytes(far.as_fd()).unwrap()), (written[0] + 1, 0), "the FIN counts");
}

/// Out-of-band data would leave a hole, so adopted sockets receive it inline.
#[test]
fn inline_urgent_byte_leaves_no_hole() {
    let (near, far) = testing::connection().unwrap();
    sockopt::set_socket_oobinline(&near, true).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    for (bytes, flags) in
        [("ab", rustix::net::SendFlags::empty()), ("!", rustix::net::SendFlags::OOB)].repeat(3)
    {
        rustix::net::send(&far, bytes.as_bytes(), flags).unwrap();
    }
    wait_for("all bytes", || unread_bytes(near.as_fd()).unwrap() == 9);
    let (mut writer, mut reader, _corruptor) = testing::bytes(4096).unwrap();
    wait_for("all bytes", || {
        let outcome = peek_into(&mut writer, near.as_fd(), 99).unwrap().unwrap();
        writer.publish();
        outcome == PeekResult::WouldBlock
    });
    let mut read = [0; 10];
    assert_eq!(reader.read(&mut read), Ok(9));
    assert_eq!(&read[..9], b"ab!ab!ab!");
    let discarded: Vec<usize> =
        [5, 9, 9].into_iter().map(|count| discard(near.as_fd(), count).unwrap()).collect();
    assert_eq!(discarded, [5, 3, 1], "each call stops before the mark");
}

#[test]
fn rejects_socket_that_is_not_tcp() {
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(counters(unix.as_fd()).is_err());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(!matches!(counters(listener.as_fd()), Ok(TcpCounters { state: TcpState::Established, .. })));
    assert_eq!(receive_low_water(listener.as_fd()).unwrap(), 1);
    assert!(!has_ulp(listener.as_fd()).unwrap());
}

#[test]
fn detects_use_of_error_queue() {
    let (near, _far) = testing::connection().unwrap();
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
    ] {
        assert!(!has_error_queue(near.as_fd()).unwrap());
        setsockopt(near.as_fd(), level, name, 1).unwrap();
        assert!(has_error_queue(near.as_fd()).unwrap());
        setsockopt(near.as_fd(), level, name, 0).unwrap();
    }
}
