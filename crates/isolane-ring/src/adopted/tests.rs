//! What the calls promise, and the facts about the kernel that streams through an engine stand on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt;

use super::*;
use crate::mock;

fn until(what: &str, mut has_come: impl FnMut() -> bool) {
    let start = Instant::now();
    while !has_come() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn what_is_peeked_stays_and_the_next_peek_goes_on_behind_it() {
    let (near, mut far) = mock::connection().unwrap();
    let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    far.write_all(b"one").unwrap();
    until("it", || unread(near.as_fd()).unwrap() == 3);
    assert_eq!(writer.peek_from(near.as_fd(), 99), Ok(Ok(Peeked::Bytes(3))));
    assert_eq!(writer.peek_from(near.as_fd(), 99), Ok(Ok(Peeked::Nothing)));
    far.write_all(b"two").unwrap();
    until("it", || unread(near.as_fd()).unwrap() == 6);
    assert_eq!(writer.peek_from(near.as_fd(), 99), Ok(Ok(Peeked::Bytes(3))));
    writer.publish();
    let mut read = [0; 9];
    assert_eq!(reader.read(&mut read), Ok(6));
    assert_eq!(&read[..6], b"onetwo");
    assert_eq!(peek_offset(near.as_fd()).unwrap(), 6);
    assert_eq!(discard(near.as_fd(), 4).unwrap(), 4);
    assert_eq!((peek_offset(near.as_fd()).unwrap(), unread(near.as_fd()).unwrap()), (2, 2));
}

#[test]
fn a_full_ring_does_not_ask_and_the_end_is_no_byte() {
    let (near, mut far) = mock::connection().unwrap();
    let (mut writer, _reader, _vandal) = mock::bytes(4096).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    far.write_all(&[7; 4097]).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    until("all", || unread(near.as_fd()).unwrap() == 4097);
    assert_eq!(writer.peek_from(near.as_fd(), 5000), Ok(Ok(Peeked::Bytes(4096))));
    assert_eq!(writer.peek_from(near.as_fd(), 5000), Ok(Ok(Peeked::Full)));
    let (mut other, _other_reader, _other_vandal) = mock::bytes(4096).unwrap();
    assert_eq!(other.peek_from(near.as_fd(), 5000), Ok(Ok(Peeked::Bytes(1))));
    assert_eq!(other.peek_from(near.as_fd(), 5000), Ok(Ok(Peeked::End)));
    assert_eq!(discard(near.as_fd(), 9999).unwrap(), 4097);
    assert_eq!(unread(near.as_fd()).unwrap(), 0);
}

#[test]
fn neither_direction_waits_on_a_socket_that_blocks() {
    let (near, _far) = mock::connection().unwrap();
    assert!(!fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK));
    let (mut writer, mut reader, _vandal) = mock::bytes(1 << 20).unwrap();
    assert_eq!(writer.peek_from(near.as_fd(), 9), Ok(Ok(Peeked::Nothing)));
    assert_eq!(discard(near.as_fd(), 9).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(reader.send_to(near.as_fd(), 9), Ok(Ok(Sent::Empty)));
    until("a full buffer", || {
        while writer.write(&[1; 1 << 16]).unwrap() > 0 {}
        reader.publish();
        reader.send_to(near.as_fd(), usize::MAX).unwrap().unwrap() == Sent::Blocked
    });
    assert!(!fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK), "the flag is everybody's");
}

#[test]
fn a_peer_that_has_gone_is_an_error_and_no_signal() {
    let (near, far) = mock::connection().unwrap();
    let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
    sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
    drop(far);
    writer.write(b"too late").unwrap();
    until("the reset", || counters(near.as_fd()).unwrap().state == State::Closed);
    assert_eq!(writer.peek_from(near.as_fd(), 9), Ok(Err(Errno::CONNRESET)));
    assert_eq!(reader.send_to(near.as_fd(), 9), Ok(Err(Errno::PIPE)));
    assert_eq!(writer.peek_from(near.as_fd(), 9), Ok(Ok(Peeked::End)), "the kernel tells an error once");
}

/// Both ends' counters after partial writes and reads, while bytes and acknowledgements are under way.
#[test]
fn the_kernel_counts_what_was_written_and_received_exactly() {
    let (mut near, mut far) = mock::connection().unwrap();
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
            // Bytes may come between the two looks, but none goes.
            let unread_before = unread(socket.as_fd()).unwrap();
            let received = counters(socket.as_fd()).unwrap().received - bases[end].received;
            assert!(received >= read[end] + unread_before, "round {round}");
        }
    }
    near.shutdown(Shutdown::Write).unwrap();
    until("the far end", || {
        read[1] += far.read(&mut buffer).unwrap_or(0) as u64;
        read[1] == written[0] && counters(far.as_fd()).unwrap().state == State::CloseWait
    });
    assert_eq!(counters(near.as_fd()).unwrap().state, State::Shut);
    let received = counters(far.as_fd()).unwrap().received - bases[1].received;
    assert_eq!((received, unread(far.as_fd()).unwrap()), (written[0] + 1, 0), "the FIN counts");
}

/// Not so with what is received inline, which is why an adopted socket receives it so.
#[test]
fn an_urgent_byte_that_is_received_inline_leaves_no_hole() {
    let (near, far) = mock::connection().unwrap();
    sockopt::set_socket_oobinline(&near, true).unwrap();
    set_peek_offset(near.as_fd(), 0).unwrap();
    for (bytes, flags) in
        [("ab", rustix::net::SendFlags::empty()), ("!", rustix::net::SendFlags::OOB)].repeat(3)
    {
        rustix::net::send(&far, bytes.as_bytes(), flags).unwrap();
    }
    until("all", || unread(near.as_fd()).unwrap() == 9);
    let (mut writer, mut reader, _vandal) = mock::bytes(4096).unwrap();
    until("all", || {
        let outcome = writer.peek_from(near.as_fd(), 99).unwrap().unwrap();
        writer.publish();
        outcome == Peeked::Nothing
    });
    let mut read = [0; 10];
    assert_eq!(reader.read(&mut read), Ok(9));
    assert_eq!(&read[..9], b"ab!ab!ab!");
    let discarded: Vec<usize> =
        [5, 9, 9].into_iter().map(|count| discard(near.as_fd(), count).unwrap()).collect();
    assert_eq!(discarded, [5, 3, 1], "each call stops before the mark");
}

#[test]
fn what_is_no_tcp_socket_is_an_error() {
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(counters(unix.as_fd()).is_err());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(!matches!(counters(listener.as_fd()), Ok(Counters { state: State::Established, .. })));
    assert_eq!(receive_low_water(listener.as_fd()).unwrap(), 1);
    assert!(!has_upper_protocol(listener.as_fd()).unwrap());
}

#[test]
fn a_socket_that_uses_its_error_queue_says_so() {
    let (near, _far) = mock::connection().unwrap();
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
    ] {
        assert!(!has_error_queue(near.as_fd()).unwrap());
        set_option(near.as_fd(), level, name, 1).unwrap();
        assert!(has_error_queue(near.as_fd()).unwrap());
        set_option(near.as_fd(), level, name, 0).unwrap();
    }
}
