//! Ports and backlogs of listeners.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::super::message::{GREETING_LEN, INVALID_SERVICE, Kind, LEN, Message, greeting};
use super::{ANSWER_TIMEOUT, Channel, Id, loopback};
use crate::abi;
use crate::device::devices;
use isolane_verbs::connection_manager::OTHER_PORT;

/// Connects to a listener without a connection manager, and receives its greeting.
pub(super) fn greeted(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut received = [0; GREETING_LEN];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, greeting(address.port(), false));
    stream
}

pub(super) fn request(port: u16) -> Message {
    Message { port, ..Message::new(Kind::Request) }
}

pub(super) fn receive(stream: &mut TcpStream) -> Message {
    let mut received = [0; LEN];
    stream.read_exact(&mut received).unwrap();
    Message::decode(&received).unwrap().unwrap().0
}

#[test]
fn keeps_peers_below_the_backlog() {
    const PEERS: usize = 400;
    let channel = Channel::new();
    // Without a backlog, the largest one.
    for backlog in [PEERS as c_int, 0] {
        let (listener, address) = channel.listen(backlog);
        let mut peers: Vec<TcpStream> = (0..PEERS).map(|_| greeted(address)).collect();
        for peer in &mut peers {
            peer.write_all(&request(address.port()).encode()).unwrap();
        }
        for _ in 0..PEERS {
            channel.expect(abi::CM_CONNECT_REQUEST).destroy();
        }
        listener.destroy();
    }
}

#[test]
fn connects_after_silent_peers_beyond_the_backlog() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    let silent: Vec<TcpStream> = (0..128).map(|_| greeted(address)).collect();
    let id = channel.resolve(address);
    id.connect();
    let request = channel.expect(abi::CM_CONNECT_REQUEST);
    assert_eq!(silent.len(), 128);
    for id in [request, id, listener] {
        id.destroy();
    }
}

#[test]
fn keeps_requests_up_to_the_backlog() {
    const BACKLOG: usize = 128;
    let (own, peer) = (Channel::new(), Channel::new());
    let (listener, address) = peer.listen(BACKLOG as c_int);
    let sent = || {
        let mut stream = greeted(address);
        stream.write_all(&request(address.port()).encode()).unwrap();
        stream
    };
    let kept: Vec<TcpStream> = (0..BACKLOG)
        .map(|count| {
            let stream = sent();
            while peer.len() <= count {
                std::thread::yield_now();
            }
            stream
        })
        .collect();
    // The next one is closed, without an answer and without an event.
    let mut next = sent();
    next.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(next.read(&mut [0; LEN]).unwrap(), 0);
    assert_eq!(peer.len(), kept.len());
    let id = own.resolve(address);
    id.connect();
    for _ in 0..=BACKLOG {
        peer.expect(abi::CM_CONNECT_REQUEST).destroy();
    }
    let event = own.next();
    assert_eq!((event.kind, event.status), (abi::CM_REJECTED, 28));
    for id in [id, listener] {
        id.destroy();
    }
}

#[test]
fn fails_without_an_answer() {
    let channel = Channel::new();
    let silent = TcpListener::bind(loopback(0)).unwrap();
    let address = silent.local_addr().unwrap();
    let id = channel.resolve(address);
    ANSWER_TIMEOUT.set(Some(Duration::from_millis(10)));
    id.connect();
    let (mut peer, _) = silent.accept().unwrap();
    peer.write_all(&greeting(address.port(), false)).unwrap();
    assert_eq!(receive(&mut peer).kind, Kind::Request);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (abi::CM_UNREACHABLE, -libc::ETIMEDOUT));
    assert_eq!(peer.read(&mut [0; LEN]).unwrap(), 0);
    id.destroy();
}

#[test]
fn waits_for_a_greeting_next_to_another_listener() {
    let channel = Channel::new();
    let (late, other) = (0..100)
        .find_map(|_| {
            let late = TcpListener::bind(loopback(0)).unwrap();
            let port = late.local_addr().unwrap().port();
            // A further program can use it.
            Some((late, TcpListener::bind(loopback(port ^ OTHER_PORT)).ok()?))
        })
        .expect("a free pair of ports");
    let address = late.local_addr().unwrap();
    let id = channel.resolve(address);
    id.connect();
    let (mut stray, _) = other.accept().unwrap();
    stray.write_all(&greeting(other.local_addr().unwrap().port(), false)).unwrap();
    let _silent = late.accept().unwrap();
    // The client connects again when the first greeting is late.
    late.set_nonblocking(true).unwrap();
    let mut peer = loop {
        if let Ok((peer, _)) = late.accept() {
            break peer;
        }
        assert!(channel.is_empty(), "{:?}", channel.next());
        std::thread::yield_now();
    };
    peer.set_nonblocking(false).unwrap();
    peer.write_all(&greeting(address.port(), false)).unwrap();
    assert_eq!(receive(&mut peer).kind, Kind::Request);
    id.destroy();
}

#[test]
fn requests_again_after_a_busy_listener_closes() {
    let channel = Channel::new();
    let busy = TcpListener::bind(loopback(0)).unwrap();
    let address = busy.local_addr().unwrap();
    let id = channel.resolve(address);
    id.connect();
    for is_busy in [true, true, false] {
        let (mut peer, _) = busy.accept().unwrap();
        peer.write_all(&greeting(address.port(), false)).unwrap();
        assert_eq!(receive(&mut peer).kind, Kind::Request);
        if !is_busy {
            let rejection = Message { reason: 7, ..Message::new(Kind::Reject) };
            peer.write_all(&rejection.encode()).unwrap();
        }
    }
    let event = channel.next();
    assert_eq!((event.kind, event.status), (abi::CM_REJECTED, 7));
    id.destroy();
}

#[test]
fn connects_again_without_a_greeting() {
    let channel = Channel::new();
    let busy = TcpListener::bind(loopback(0)).unwrap();
    let address = busy.local_addr().unwrap();
    let id = channel.resolve(address);
    id.connect();
    let _silent = busy.accept().unwrap();
    let (mut peer, _) = busy.accept().unwrap();
    peer.write_all(&greeting(address.port(), false)).unwrap();
    assert_eq!(receive(&mut peer).kind, Kind::Request);
    id.destroy();
}

#[test]
fn rejects_requests_that_the_program_drops() {
    for is_taken in [true, false] {
        let (own, peer) = (Channel::new(), Channel::new());
        let (listener, address) = peer.listen(1);
        let id = own.resolve(address);
        id.connect();
        if is_taken {
            peer.expect(abi::CM_CONNECT_REQUEST).destroy();
        } else {
            while peer.is_empty() {
                std::thread::yield_now();
            }
        }
        listener.destroy();
        let event = own.next();
        assert_eq!((event.kind, event.status), (abi::CM_REJECTED, 28));
        id.destroy();
    }
}

#[test]
fn refuses_a_second_listener_of_a_port() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    let port = address.port();
    for taken in [address, SocketAddr::from(([0, 0, 0, 0], port))] {
        let second = channel.id();
        assert_eq!(second.bind(taken), Err(libc::EADDRINUSE));
        second.destroy();
    }
    // Another address, and the other port space.
    let other = channel.bound(SocketAddr::from(([127, 0, 0, 2], port)));
    let datagrams = channel.id_of(abi::PS_UDP);
    assert_eq!(datagrams.bind(address), Ok(()));
    for id in [listener, other, datagrams] {
        id.destroy();
    }
    // A listener that has ended leaves the port.
    channel.bound(address).destroy();
}

#[test]
fn binds_both_families_with_the_option() {
    const AFONLY: c_int = 2;
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    let wildcard = SocketAddr::from(([0_u16; 8], address.port()));
    if TcpListener::bind("[::1]:0").is_err() {
        return listener.destroy();
    }
    let id = channel.id();
    assert_eq!(id.set_option(AFONLY, &0_i32.to_ne_bytes()), Ok(()));
    assert_eq!(id.bind(wildcard), Err(libc::EADDRINUSE));
    assert_eq!(id.set_option(AFONLY, &[1]), Err(libc::EINVAL));
    assert_eq!(id.set_option(AFONLY, &1_i32.to_ne_bytes()), Ok(()));
    assert_eq!(id.bind(wildcard), Ok(()));
    assert_eq!(id.set_option(AFONLY, &1_i32.to_ne_bytes()), Err(libc::EINVAL));
    for id in [id, listener] {
        id.destroy();
    }
}

/// Listens at a port that another program uses for TCP.
fn listen_next_to_tcp(channel: &Channel) -> (Id, SocketAddr, TcpListener) {
    for _ in 0..100 {
        let other = TcpListener::bind(loopback(0)).unwrap();
        let address = other.local_addr().unwrap();
        let listener = channel.id();
        match listener.bind(address) {
            Ok(()) => {
                listener.listen(1);
                return (listener, address, other);
            }
            // The other TCP port can be in use by a further program.
            Err(error) => assert_eq!(error, libc::EADDRINUSE),
        }
        listener.destroy();
    }
    panic!("no port is free");
}

#[test]
fn finds_only_the_listener_of_the_port() {
    let channel = Channel::new();
    let (listener, address, tcp) = listen_next_to_tcp(&channel);
    let second = channel.id();
    assert_eq!(second.bind(address), Err(libc::EADDRINUSE));
    let id = channel.resolve(address);
    id.connect();
    let request = channel.expect(abi::CM_CONNECT_REQUEST);
    // Its TCP port is the number of another listener.
    let stray = channel.resolve(loopback(address.port() ^ OTHER_PORT));
    stray.connect();
    let event = channel.next();
    assert_eq!((event.kind, event.status), (abi::CM_REJECTED, 8));
    drop(tcp);
    for id in [stray, request, id, second, listener] {
        id.destroy();
    }
}

#[test]
fn rejects_a_request_for_another_port() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    let mut peer = greeted(address);
    peer.write_all(&request(address.port() ^ 1).encode()).unwrap();
    let rejection = receive(&mut peer);
    assert_eq!((rejection.kind, rejection.reason), (Kind::Reject, INVALID_SERVICE));
    assert!(channel.is_empty());
    listener.destroy();
}

#[test]
fn binds_loopback_to_the_first_device() {
    let (own, peer) = (Channel::new(), Channel::new());
    let (listener, address) = peer.listen(1);
    let id = own.resolve(address);
    id.connect();
    let request = peer.expect(abi::CM_CONNECT_REQUEST);
    let gid = devices()[0].gid();
    for (id, has_peer) in [(listener, false), (id, true), (request, true)] {
        // SAFETY: the identifier lives.
        let found = unsafe { &*id.0 };
        // SAFETY: the identifier has a device.
        assert_eq!(unsafe { (*found.verbs).device }, devices()[0].as_abi());
        assert_eq!(found.route.addr.sgid.0, gid);
        assert!(!has_peer || found.route.addr.dgid.0 == gid);
    }
    for id in [id, request, listener] {
        id.destroy();
    }
}
