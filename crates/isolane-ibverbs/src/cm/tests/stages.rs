//! Messages that a peer sends at a stage at which it must not.

use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::super::message::{Kind, Message, greeting};
use super::ports::{greeted, receive, request};
use super::{Channel, Id, loopback, result};
use crate::abi;
use crate::cm::connect::{rdma_accept, rdma_establish};
use crate::cm::migrate::rdma_migrate_id;

/// Returns the state of an identifier's queue pair.
fn queue_pair_state(id: Id) -> c_int {
    // SAFETY: the identifier and its queue pair live.
    unsafe { (*(*id.0).qp).state }
}

/// Waits until the agent has closed a connection, whatever it sends before.
fn assert_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        }
    }
}

fn send(stream: &mut TcpStream, kind: Kind) {
    stream.write_all(&Message::new(kind).encode()).unwrap();
}

/// Makes a request to a listener. Returns both ends.
fn requested(channel: &Channel, address: SocketAddr) -> (TcpStream, Id) {
    let mut peer = greeted(address);
    peer.write_all(&request(address.port()).encode()).unwrap();
    (peer, channel.expect(abi::CM_CONNECT_REQUEST))
}

fn expect_break(channel: &Channel) {
    let event = channel.next();
    assert_eq!((event.kind, event.status), (abi::CM_CONNECT_ERROR, -libc::ECONNRESET));
}

#[test]
fn closes_a_peer_that_answers_its_own_request() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    for kind in [Kind::Reply, Kind::Ready, Kind::Request] {
        let (mut peer, id) = requested(&channel, address);
        id.create_qp();
        let state = queue_pair_state(id);
        send(&mut peer, kind);
        assert_closed(&mut peer);
        expect_break(&channel);
        assert_eq!(queue_pair_state(id), state);
        // SAFETY: the identifier lives.
        assert_eq!(result(unsafe { rdma_accept(id.0, std::ptr::null_mut()) }), Err(libc::EINVAL));
        id.destroy();
    }
    assert!(channel.is_empty());
    listener.destroy();
}

#[test]
fn reports_repeated_messages_once() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    for kind in [Kind::Ready, Kind::Reject] {
        let (mut peer, id) = requested(&channel, address);
        id.accept();
        assert_eq!(receive(&mut peer).kind, Kind::Reply);
        let twice = [Message::new(kind).encode(), Message::new(kind).encode()].concat();
        peer.write_all(&twice).unwrap();
        assert_closed(&mut peer);
        if kind == Kind::Ready {
            channel.expect(abi::CM_ESTABLISHED);
            channel.expect(abi::CM_DISCONNECTED);
        } else {
            assert_eq!(channel.next().kind, abi::CM_REJECTED);
        }
        id.destroy();
    }
    assert!(channel.is_empty());
    listener.destroy();
}

#[test]
fn closes_a_listener_that_answers_twice() {
    let channel = Channel::new();
    let fake = TcpListener::bind(loopback(0)).unwrap();
    let address = fake.local_addr().unwrap();
    for sent in [[Kind::Reply, Kind::Reply], [Kind::Reply, Kind::Ready]] {
        let id = channel.resolve(address);
        id.connect();
        let (mut peer, _) = fake.accept().unwrap();
        peer.write_all(&greeting(address.port(), false)).unwrap();
        assert_eq!(receive(&mut peer).kind, Kind::Request);
        sent.into_iter().for_each(|kind| send(&mut peer, kind));
        assert_closed(&mut peer);
        channel.expect(abi::CM_CONNECT_RESPONSE);
        expect_break(&channel);
        id.destroy();
    }
    assert!(channel.is_empty());
}

#[test]
fn creates_a_queue_pair_while_the_reply_arrives() {
    let (own, peer) = (Channel::new(), Channel::new());
    let (listener, address) = peer.listen(1);
    for _ in 0..50 {
        let id = own.resolve(address);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let request = peer.expect(abi::CM_CONNECT_REQUEST);
                request.create_qp();
                request.accept();
                let kind = peer.next().kind;
                request.destroy();
                kind
            });
            id.connect();
            id.create_qp();
            // The agent finds no queue pair, or one that can connect.
            let event = own.next();
            assert!(
                event.status == 0 && [abi::CM_CONNECT_RESPONSE, abi::CM_ESTABLISHED].contains(&event.kind)
            );
            id.destroy();
            assert_eq!(server.join().unwrap() == abi::CM_ESTABLISHED, event.kind == abi::CM_ESTABLISHED);
        });
        assert!(own.is_empty() && peer.is_empty());
    }
    listener.destroy();
}

#[test]
fn moves_requests_with_their_listener() {
    let (old, new, own) = (Channel::new(), Channel::new(), Channel::new());
    let (listener, address) = old.listen(1);
    let id = own.resolve(address);
    id.connect();
    while old.is_empty() {
        std::thread::yield_now();
    }
    // SAFETY: the listener lives.
    assert_eq!(unsafe { rdma_migrate_id(listener.0, new.0) }, 0);
    drop(old);
    let request = new.expect(abi::CM_CONNECT_REQUEST);
    // SAFETY: the identifier lives.
    assert_eq!(unsafe { (*request.0).channel }, new.0);
    request.create_qp();
    request.accept();
    own.expect(abi::CM_CONNECT_RESPONSE);
    // SAFETY: the identifier lives.
    assert_eq!(unsafe { rdma_establish(id.0) }, 0);
    assert_eq!(new.expect(abi::CM_ESTABLISHED), request);
    for id in [request, id, listener] {
        id.destroy();
    }
}

#[test]
fn moves_requests_before_their_end() {
    let (old, new, own) = (Channel::new(), Channel::new(), Channel::new());
    let (listener, address) = old.listen(1);
    let id = own.resolve(address);
    id.connect();
    while old.is_empty() {
        std::thread::yield_now();
    }
    id.destroy();
    while old.len() < 2 {
        std::thread::yield_now();
    }
    // SAFETY: the listener lives.
    assert_eq!(unsafe { rdma_migrate_id(listener.0, new.0) }, 0);
    let request = new.expect(abi::CM_CONNECT_REQUEST);
    assert_eq!(new.next().id, request);
    assert!(old.is_empty() && new.is_empty());
    request.destroy();
    listener.destroy();
}
