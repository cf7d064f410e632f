//! Both ends of connections in one process, over loopback.

mod arguments;
mod ports;
mod stages;

use std::cell::Cell;
use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ptr::null_mut;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_reject, rdma_set_option,
};
use super::event::{
    EventChannel, rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
use super::id::{
    rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_get_src_port, rdma_resolve_addr,
    rdma_resolve_route, write_address,
};
use super::qp::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::abi;
use crate::ffi::{object, values};

/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

thread_local! {
    /// Number of steps of this thread until one is delayed.
    static STEPS_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Time that programs have to answer requests of this thread.
    pub(super) static ANSWER_TIMEOUT: Cell<Option<Duration>> = const { Cell::new(None) };
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

/// Returns the attributes of a queue pair with some requests.
fn queue_pair(requests: u32) -> abi::QpInitAttr {
    let cap = abi::QpCap {
        max_send_wr: requests,
        max_recv_wr: requests,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    abi::QpInitAttr {
        qp_context: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap,
        qp_type: abi::QPT_RC,
        sq_sig_all: 1,
    }
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
    private_data: Vec<u8>,
}

/// An identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id(*mut abi::CmId);

// SAFETY: one thread at a time changes it.
unsafe impl Send for Id {}

impl Channel {
    fn new() -> Channel {
        // Tests with many peers run in parallel.
        isolane_reactor::cpu::raise_fd_limit().unwrap();
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
            let param = (*found).param.conn;
            let data = values(param.private_data.cast::<u8>(), param.private_data_len.into()).unwrap();
            let event = Event {
                kind: (*found).event,
                status: (*found).status,
                id: Id((*found).id),
                private_data: data.to_vec(),
            };
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

    /// Returns the number of events that are not taken.
    fn len(&self) -> usize {
        // SAFETY: the channel lives.
        unsafe { object::<_, EventChannel>(self.0) }.unwrap().events.count(|_| true)
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
        let mut attributes = queue_pair(1);
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
            rdma_destroy_srq(self.0);
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
