//! Both ends of connections in one process, over loopback.

use std::cell::Cell;
use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ptr::null_mut;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
use super::connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_reject, rdma_set_option,
};
use super::event::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
use super::id::{
    rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_get_src_port, rdma_resolve_addr,
    rdma_resolve_route, read_address, write_address,
};
use super::listener::OTHER_PORT;
use super::message::{GREETING_LEN, INVALID_SERVICE, Kind, LEN, Message, greeting};
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::abi;
use crate::device::devices;

/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

thread_local! {
    /// Number of steps of this thread until one is delayed.
    static STEPS_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Delays one step of a thread, so that the agent and the peer are faster.
pub(super) fn delay() {
    STEPS_LEFT.with(|left| match left.get() {
        Some(0) => {
            std::thread::sleep(Duration::from_millis(50));
            left.set(None);
        }
        Some(steps) => left.set(Some(steps - 1)),
        None => {}
    });
}

/// Returns the error of a call that has failed.
fn result(returned: c_int) -> Result<(), c_int> {
    // SAFETY: the location of this thread's error is valid.
    if returned == 0 { Ok(()) } else { Err(unsafe { *libc::__errno_location() }) }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// An event channel.
struct Channel(*mut abi::CmEventChannel);

// SAFETY: a channel can be used by any thread.
unsafe impl Sync for Channel {}

/// An event that was acknowledged.
#[derive(Debug)]
struct Event {
    kind: c_int,
    status: c_int,
    id: Id,
}

/// An identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id(*mut abi::CmId);

// SAFETY: one thread at a time changes it.
unsafe impl Send for Id {}

impl Channel {
    fn new() -> Channel {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        Channel(channel)
    }

    fn next(&self) -> Event {
        // SAFETY: the channel lives.
        unsafe {
            let fd = std::os::fd::BorrowedFd::borrow_raw((*self.0).fd);
            let mut readable = [PollFd::new(&fd, PollFlags::IN)];
            assert_eq!(poll(&mut readable, Some(&TEST_TIMEOUT)), Ok(1), "no event arrives");
            let mut found = null_mut();
            assert_eq!(rdma_get_cm_event(self.0, &mut found), 0);
            let event = Event { kind: (*found).event, status: (*found).status, id: Id((*found).id) };
            assert_eq!(rdma_ack_cm_event(found), 0);
            event
        }
    }

    /// Takes the next event, which has this kind and no error.
    fn expect(&self, kind: c_int) -> Id {
        let event = self.next();
        assert_eq!((event.kind, event.status), (kind, 0));
        event.id
    }

    fn is_empty(&self) -> bool {
        // SAFETY: the channel lives.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw((*self.0).fd) };
        let mut readable = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    fn id(&self) -> Id {
        self.id_of(abi::PS_TCP)
    }

    fn id_of(&self, port_space: c_int) -> Id {
        let mut id = null_mut();
        // SAFETY: the channel lives.
        assert_eq!(unsafe { rdma_create_id(self.0, &mut id, null_mut(), port_space) }, 0);
        Id(id)
    }

    fn bound(&self, address: SocketAddr) -> Id {
        let id = self.id();
        assert_eq!(id.bind(address), Ok(()));
        id
    }

    /// Listens at a free port.
    fn listen(&self, backlog: c_int) -> (Id, SocketAddr) {
        let listener = self.bound(loopback(0));
        listener.listen(backlog);
        (listener, loopback(listener.port()))
    }

    /// Makes an identifier that can connect to a listener.
    fn resolve(&self, listener: SocketAddr) -> Id {
        let id = self.id();
        let mut address = write_address(listener);
        // SAFETY: the identifier lives.
        unsafe {
            assert_eq!(rdma_resolve_addr(id.0, null_mut(), (&raw mut address).cast(), 1000), 0);
            self.expect(abi::CM_ADDR_RESOLVED);
            assert_eq!(rdma_resolve_route(id.0, 1000), 0);
        }
        self.expect(abi::CM_ROUTE_RESOLVED);
        id
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: all identifiers are destroyed.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

impl Id {
    fn bind(self, address: SocketAddr) -> Result<(), c_int> {
        let mut address = write_address(address);
        // SAFETY: the identifier lives.
        result(unsafe { rdma_bind_addr(self.0, (&raw mut address).cast()) })
    }

    fn listen(self, backlog: c_int) {
        // SAFETY: the identifier lives.
        assert_eq!(unsafe { rdma_listen(self.0, backlog) }, 0);
    }

    fn port(self) -> u16 {
        // SAFETY: the identifier lives.
        u16::from_be(unsafe { rdma_get_src_port(self.0) })
    }

    fn set_option(self, name: c_int, value: &[u8]) -> Result<(), c_int> {
        let value_at = value.as_ptr().cast_mut().cast();
        // SAFETY: the identifier lives.
        result(unsafe { rdma_set_option(self.0, 0, name, value_at, value.len()) })
    }

    fn create_qp(self) {
        let cap = abi::QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attributes = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap,
            qp_type: abi::QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: the identifier lives.
        assert_eq!(unsafe { rdma_create_qp(self.0, null_mut(), &mut attributes) }, 0);
    }

    fn connect(self) {
        // SAFETY: the identifier lives.
        assert_eq!(unsafe { rdma_connect(self.0, null_mut()) }, 0);
    }

    fn accept(self) {
        // SAFETY: the identifier lives.
        assert_eq!(unsafe { rdma_accept(self.0, null_mut()) }, 0);
    }

    fn disconnect(self) {
        // SAFETY: the identifier lives.
        assert_eq!(unsafe { rdma_disconnect(self.0) }, 0);
    }

    fn destroy(self) {
        // SAFETY: nothing uses the identifier.
        unsafe {
            if !(*self.0).qp.is_null() {
                rdma_destroy_qp(self.0);
            }
            assert_eq!(rdma_destroy_id(self.0), 0);
        }
    }
}

/// Runs both ends, the client in this thread, and delays each step of each end in turn.
fn delay_each_step(server: fn(&Channel, Id), client: fn(&Channel, Id)) {
    for is_client in [true, false] {
        let mut step = 0;
        loop {
            let (own, peer) = (Channel::new(), Channel::new());
            let (listener, address) = peer.listen(1);
            let run = |is_delayed: bool, end: fn(&Channel, Id), channel: &Channel, id| {
                STEPS_LEFT.set(is_delayed.then_some(step));
                end(channel, id);
                // A delay that is left means that the end has no further step.
                STEPS_LEFT.take().is_some()
            };
            let is_over = std::thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let request = peer.expect(abi::CM_CONNECT_REQUEST);
                    let is_over = run(!is_client, server, &peer, request);
                    (is_over, request)
                });
                let id = own.resolve(address);
                let is_over = run(is_client, client, &own, id);
                id.destroy();
                let (server_is_over, request) = server.join().unwrap();
                assert!(own.is_empty() && peer.is_empty());
                request.destroy();
                is_over | server_is_over
            });
            listener.destroy();
            if is_over {
                break;
            }
            step += 1;
        }
        assert!(step > 0);
    }
}

#[test]
fn connects_with_any_step_delayed() {
    delay_each_step(
        |channel, id| {
            id.create_qp();
            id.accept();
            channel.expect(abi::CM_ESTABLISHED);
            channel.expect(abi::CM_DISCONNECTED);
        },
        |channel, id| {
            id.create_qp();
            id.connect();
            channel.expect(abi::CM_ESTABLISHED);
            id.disconnect();
            channel.expect(abi::CM_DISCONNECTED);
        },
    );
}

#[test]
fn rejects_with_any_step_delayed() {
    delay_each_step(
        |channel, id| {
            // SAFETY: the identifier lives.
            assert_eq!(unsafe { rdma_reject(id.0, null_mut(), 0) }, 0);
            assert!(channel.is_empty());
        },
        |channel, id| {
            id.connect();
            let event = channel.next();
            assert_eq!((event.kind, event.status), (abi::CM_REJECTED, 28));
        },
    );
}

#[test]
fn establishes_with_any_step_delayed() {
    delay_each_step(
        |channel, id| {
            id.create_qp();
            id.accept();
            channel.expect(abi::CM_ESTABLISHED);
            id.disconnect();
            channel.expect(abi::CM_DISCONNECTED);
        },
        |channel, id| {
            // A program without a queue pair of the identifier moves its own one.
            id.connect();
            channel.expect(abi::CM_CONNECT_RESPONSE);
            // SAFETY: the identifier lives.
            assert_eq!(unsafe { rdma_establish(id.0) }, 0);
            channel.expect(abi::CM_DISCONNECTED);
        },
    );
}

#[test]
fn keeps_listening_after_plain_connections() {
    let channel = Channel::new();
    let (listener, address) = channel.listen(1);
    // Closed at once, after a part of a request, and after data of another protocol.
    for sent in [&b""[..], &[1; 20], b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The agent closes it when it has processed the end.
        loop {
            match stream.read(&mut [0; 64]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let id = channel.resolve(address);
    id.connect();
    let request = channel.expect(abi::CM_CONNECT_REQUEST);
    assert!(channel.is_empty());
    for id in [request, id, listener] {
        id.destroy();
    }
}

/// Connects to a listener without a connection manager, and receives its greeting.
fn greeted(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut received = [0; GREETING_LEN];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, greeting(address.port(), false));
    stream
}

fn request(port: u16) -> Message {
    Message { port, ..Message::new(Kind::Request) }
}

fn receive(stream: &mut TcpStream) -> Message {
    let mut received = [0; LEN];
    stream.read_exact(&mut received).unwrap();
    Message::decode(&received).unwrap().unwrap().0
}

#[test]
fn keeps_peers_below_the_backlog() {
    const PEERS: usize = 400;
    let channel = Channel::new();
    let (listener, address) = channel.listen(PEERS as c_int);
    let mut peers: Vec<TcpStream> = (0..PEERS).map(|_| greeted(address)).collect();
    for peer in &mut peers {
        peer.write_all(&request(address.port()).encode()).unwrap();
    }
    for _ in 0..PEERS {
        channel.expect(abi::CM_CONNECT_REQUEST).destroy();
    }
    listener.destroy();
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

#[test]
fn copies_addresses_of_hints() {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::CmAddrInfo = unsafe { std::mem::zeroed() };
    let (mut source, mut destination) = (write_address(loopback(1)), write_address(loopback(2)));
    let len = size_of::<libc::sockaddr_in>() as u32;
    let hints = abi::CmAddrInfo {
        ai_port_space: abi::PS_TCP,
        ai_src_addr: (&raw mut source).cast(),
        ai_src_len: len,
        ai_dst_addr: (&raw mut destination).cast(),
        ai_dst_len: len,
        ..empty
    };
    let mut found = null_mut();
    // SAFETY: the arguments are valid.
    unsafe {
        assert_eq!(rdma_getaddrinfo(null_mut(), null_mut(), &hints, &mut found), 0);
        let copied = &*found;
        assert_eq!((copied.ai_src_len, copied.ai_dst_len), (len, len));
        assert_eq!(read_address(copied.ai_src_addr), Ok(loopback(1)));
        assert_eq!(read_address(copied.ai_dst_addr), Ok(loopback(2)));
        rdma_freeaddrinfo(found);
        let returned = rdma_getaddrinfo(null_mut(), null_mut(), null_mut(), &mut found);
        assert_eq!(result(returned), Err(libc::EINVAL));
    }
}
