//! Zero-copy sends: the kernel releases memory, and only after it has finished with it.

mod common;

use common::*;
use isolane_memory::{Buffer, Payload, ZeroCopySend};
use isolane_reactor::{Reactor, ReactorConfig, Sent, Token};
use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 10;

/// Returns a reactor, a socket with zero-copy sends enabled, and its peer.
fn conn(config: &ReactorConfig) -> (Reactor, Token, TcpStream) {
    let mut reactor = reactor(config);
    let (peer, socket) = pair();
    let token = reactor.add(socket).expect("added");
    reactor.enable_zerocopy(token).expect("enabled");
    (reactor, token, peer)
}

fn payload(byte: u8) -> Payload {
    Payload::from(vec![byte; BYTES])
}

/// Sends once and tracks the memory of a zero-copy send.
fn send(reactor: &mut Reactor, token: Token, payload: &Payload) -> Sent {
    let plan: Vec<_> = payload.slices(0, payload.len()).map(IoSlice::new).collect();
    let sent = reactor.send_zerocopy(token, &plan).expect("sent");
    if sent.zerocopy {
        let payloads = vec![payload.clone()];
        reactor
            .track_zerocopy(token, ZeroCopySend { payloads, bytes: sent.bytes, ..ZeroCopySend::default() });
    }
    sent
}

/// Sends until the socket is full. Returns the bytes sent in total and without a copy.
fn fill(reactor: &mut Reactor, token: Token) -> (usize, usize) {
    let (mut taken, mut lent) = (0, 0);
    loop {
        let sent = send(reactor, token, &payload(7));
        taken += sent.bytes;
        lent += if sent.zerocopy { sent.bytes } else { 0 };
        if sent.bytes < BYTES {
            return (taken, lent);
        }
    }
}

/// Turns until `bytes` bytes have been released.
fn await_release(reactor: &mut Reactor, bytes: usize) {
    let end = Instant::now() + TEST_TIMEOUT;
    let mut back = 0;
    while back < bytes {
        reactor.turn(Some(Instant::now() + Duration::from_millis(5)), &mut Vec::new()).expect("a turn");
        while let Some((_, lent)) = reactor.poll_released() {
            back += lent.bytes;
        }
        assert!(Instant::now() < end, "{back} of {bytes} bytes released");
    }
    assert_eq!(back, bytes);
}

fn read_exactly(peer: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    peer.read_exact(&mut all).expect("read");
    all
}

#[test]
fn releases_memory_after_the_peer_received_it() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = conn(&config);
        let sent = send(&mut reactor, token, &payload(9));
        assert!(sent.zerocopy && sent.bytes > 0);
        assert!(read_exactly(&mut peer, sent.bytes).iter().all(|byte| *byte == 9));
        await_release(&mut reactor, sent.bytes);
        assert!(!reactor.has_zerocopy_in_flight(token));
    });
}

/// Over loopback the kernel always copies and reports it.
#[test]
fn kernel_copies_disable_zerocopy() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = conn(&config);
        let first = send(&mut reactor, token, &payload(1));
        read_exactly(&mut peer, first.bytes);
        await_release(&mut reactor, first.bytes);
        let second = send(&mut reactor, token, &payload(2));
        assert!(!second.zerocopy && second.bytes > 0);
        assert!(read_exactly(&mut peer, second.bytes).iter().all(|byte| *byte == 2));
    });
}

#[test]
fn zerocopy_state_moves_with_the_socket() {
    with_each(|config| {
        let (mut first, token, mut peer) = conn(&config);
        let (mut second, mut third) = (reactor(&config), reactor(&config));
        let token = second.attach(first.detach(token).expect("no send in flight")).expect("added");
        let sent = send(&mut second, token, &payload(5));
        assert!(sent.zerocopy, "zero-copy stays enabled");
        assert!(second.detach(token).is_none(), "sends are in flight");
        read_exactly(&mut peer, sent.bytes);
        await_release(&mut second, sent.bytes);
        let token = third.attach(second.detach(token).expect("no send in flight")).expect("added");
        assert!(!send(&mut third, token, &payload(6)).zerocopy, "the kernel copies");
    });
}

#[test]
fn closed_socket_lingers_until_sent() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = conn(&config);
        let (taken, lent) = fill(&mut reactor, token);
        assert!(reactor.has_zerocopy_in_flight(token), "the peer reads nothing");
        assert!(reactor.remove(token).is_none(), "sends are in flight");
        reactor.close(token);
        assert!(reactor.socket(token).is_none());
        assert_eq!(reactor.lingering_count(), 1);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).expect("read");
            all
        });
        let back: usize = std::iter::from_fn(|| reactor.poll_released()).map(|(_, lent)| lent.bytes).sum();
        await_release(&mut reactor, lent - back);
        assert_eq!(reactor.lingering_count(), 0);
        let all = reader.join().expect("a reader");
        assert!(all.len() == taken && all.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn drop_releases_memory_of_unread_sends() {
    for io in backends() {
        let (mut reactor, token, mut peer) = conn(&ReactorConfig { io, ..ReactorConfig::default() });
        let mut buffer = Buffer::contiguous(BYTES);
        buffer.as_mut_slice().expect("in one piece").fill(3);
        while send(&mut reactor, token, &buffer.share(0, BYTES)).bytes == BYTES {}
        assert!(reactor.has_zerocopy_in_flight(token) && !buffer.is_exclusive());
        drop(reactor);
        assert!(buffer.is_exclusive(), "the memory is still referenced");
        // The kernel has finished with the buffer as well: the peer must not see these bytes.
        buffer.as_mut_slice().expect("exclusive").fill(4);
        let mut tail = Vec::new();
        let _ = peer.read_to_end(&mut tail);
        assert!(tail.iter().all(|byte| *byte == 3));
    }
}
