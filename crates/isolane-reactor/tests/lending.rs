//! Stories of sends that copy nothing: what was lent comes back, and only when the kernel is done with it.

mod common;

use common::*;
use isolane_memory::{Buffer, Lent, Payload};
use isolane_reactor::{Config, Reactor, Sent, Token};
use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 10;

/// A lane that may send without a copy, and its peer.
fn lane(config: &Config) -> (Reactor, Token, TcpStream) {
    let mut reactor = reactor(config);
    let (peer, socket) = pair();
    let token = reactor.add(socket).expect("added");
    reactor.enable_zero_copy(token).expect("enabled");
    (reactor, token, peer)
}

fn payload(byte: u8) -> Payload {
    Payload::from(vec![byte; BYTES])
}

/// Sends once, and lends what was sent.
fn send(reactor: &mut Reactor, token: Token, payload: &Payload) -> Sent {
    let plan: Vec<_> = payload.slices(0, payload.len()).map(IoSlice::new).collect();
    let sent = reactor.send_lent(token, &plan).expect("sent");
    if sent.is_lent {
        let payloads = vec![payload.clone()];
        reactor.lend(token, Lent { payloads, bytes: sent.bytes, ..Lent::default() });
    }
    sent
}

/// Sends until the socket takes no more, and says how many bytes were taken and lent.
fn fill(reactor: &mut Reactor, token: Token) -> (usize, usize) {
    let (mut taken, mut lent) = (0, 0);
    loop {
        let sent = send(reactor, token, &payload(7));
        taken += sent.bytes;
        lent += if sent.is_lent { sent.bytes } else { 0 };
        if sent.bytes < BYTES {
            return (taken, lent);
        }
    }
}

/// Turns until so many bytes that were lent have come back.
fn await_return(reactor: &mut Reactor, bytes: usize) {
    let end = Instant::now() + PATIENCE;
    let mut back = 0;
    while back < bytes {
        reactor.turn(Some(Instant::now() + Duration::from_millis(5)), &mut Vec::new()).expect("a turn");
        while let Some((_, lent)) = reactor.poll_returned() {
            back += lent.bytes;
        }
        assert!(Instant::now() < end, "{back} of {bytes} bytes came back");
    }
    assert_eq!(back, bytes);
}

fn read_exactly(peer: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    peer.read_exact(&mut all).expect("read");
    all
}

#[test]
fn what_was_lent_comes_back_when_the_peer_has_it() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = lane(&config);
        let sent = send(&mut reactor, token, &payload(9));
        assert!(sent.is_lent && sent.bytes > 0);
        assert!(read_exactly(&mut peer, sent.bytes).iter().all(|byte| *byte == 9));
        await_return(&mut reactor, sent.bytes);
        assert!(!reactor.has_lent(token));
    });
}

/// Over loopback the kernel copies in any case: it says so, and is asked no more.
#[test]
fn a_connection_whose_route_copies_is_sent_to_in_the_usual_way() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = lane(&config);
        let first = send(&mut reactor, token, &payload(1));
        read_exactly(&mut peer, first.bytes);
        await_return(&mut reactor, first.bytes);
        let second = send(&mut reactor, token, &payload(2));
        assert!(!second.is_lent && second.bytes > 0);
        assert!(read_exactly(&mut peer, second.bytes).iter().all(|byte| *byte == 2));
    });
}

#[test]
fn a_socket_that_goes_to_another_reactor_takes_along_what_is_known_of_its_sends() {
    with_each(|config| {
        let (mut first, token, mut peer) = lane(&config);
        let (mut second, mut third) = (reactor(&config), reactor(&config));
        let token = second.attach(first.detach(token).expect("nothing is out")).expect("added");
        let sent = send(&mut second, token, &payload(5));
        assert!(sent.is_lent, "it is sent to without a copy there, too");
        assert!(second.detach(token).is_none(), "something is out");
        read_exactly(&mut peer, sent.bytes);
        await_return(&mut second, sent.bytes);
        let token = third.attach(second.detach(token).expect("nothing is out")).expect("added");
        assert!(!send(&mut third, token, &payload(6)).is_lent, "it is known that the kernel copies");
    });
}

#[test]
fn a_closed_socket_lingers_until_its_last_byte_is_there() {
    with_each(|config| {
        let (mut reactor, token, mut peer) = lane(&config);
        let (taken, lent) = fill(&mut reactor, token);
        assert!(reactor.has_lent(token), "the peer reads nothing");
        assert!(reactor.remove(token).is_none(), "it can only be closed");
        reactor.close(token);
        assert!(reactor.socket(token).is_none());
        assert_eq!(reactor.lingering_count(), 1);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).expect("read");
            all
        });
        let back: usize = std::iter::from_fn(|| reactor.poll_returned()).map(|(_, lent)| lent.bytes).sum();
        await_return(&mut reactor, lent - back);
        assert_eq!(reactor.lingering_count(), 0);
        let all = reader.join().expect("a reader");
        assert!(all.len() == taken && all.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_dropped_reactor_gets_back_what_its_peers_never_take() {
    for io in back_ends() {
        let (mut reactor, token, mut peer) = lane(&Config { io, ..Config::default() });
        let mut buffer = Buffer::contiguous(BYTES);
        buffer.as_mut_slice().expect("in one piece").fill(3);
        while send(&mut reactor, token, &buffer.share(0, BYTES)).bytes == BYTES {}
        assert!(reactor.has_lent(token) && !buffer.is_exclusive());
        drop(reactor);
        assert!(buffer.is_exclusive(), "somebody still refers to what was lent");
        // The kernel is done with it as well: what is written now is not what the peer gets.
        buffer.as_mut_slice().expect("nobody else has it").fill(4);
        let mut rest = Vec::new();
        let _ = peer.read_to_end(&mut rest);
        assert!(rest.iter().all(|byte| *byte == 3));
    }
}
