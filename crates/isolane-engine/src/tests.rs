//! Well-behaved and hostile clients of a running engine.

mod supervisor;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_attach::stream::open_rings;
use isolane_attach::{AttachError, Session, SessionOptions};
use isolane_engine_api::layout::{DoorbellLayout, stream as at};
use isolane_engine_api::stream::StreamLayout;
use isolane_engine_api::{
    CloseMode, Hello, MAX_MESSAGE_BYTES, MAX_REQUESTS_IN_FLIGHT, OpenDoorbells, OpenObject, PacketError,
    PacketSocket, Reply, Request, VERSION, decode, encode,
};
use isolane_reactor::Mode;
use isolane_shm::{Bell, PAGE_SIZE, SharedMemory, WakeFlag};
use rustix::fd::AsFd;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, socketpair,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::store::{Record, StoreClient, StoredRecord, ToSupervisor};
use crate::{Engine, EngineConfig, listen, stream};

fn resume(
    config: EngineConfig,
    listener: OwnedFd,
    epoch: u64,
    store: Arc<StoreClient>,
    records: Vec<StoredRecord>,
) -> Engine {
    let record = crate::watch::Record::new().unwrap();
    Engine::resume(config, listener, Vec::new(), epoch, store, records, record).unwrap()
}

struct Fixture {
    engine: Engine,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(change: impl FnOnce(&mut EngineConfig)) -> Fixture {
        Fixture::with(Arc::new(StoreClient::none()), change)
    }

    fn with(store: Arc<StoreClient>, change: impl FnOnce(&mut EngineConfig)) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let core = isolane_reactor::cpu::allowed().unwrap()[0];
        let mut config = EngineConfig::new(vec![core]);
        config.mode = Mode::Sleep;
        change(&mut config);
        let listener = listen(&dir.path().join("sock")).unwrap();
        let engine = resume(config, listener, 1, store, Vec::new());
        Fixture { engine, dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    fn attach(&self) -> Result<Session, AttachError> {
        Session::open(&self.options())
    }

    fn options(&self) -> SessionOptions {
        SessionOptions {
            path: self.path(),
            memory_bytes: 4 << 20,
            spawn_engine: false,
            ..SessionOptions::default()
        }
    }

    /// Connects without a message.
    fn dial(&self) -> PacketSocket {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        PacketSocket::new(socket)
    }

    /// Attaches a raw client.
    fn attached(&self) -> (PacketSocket, SharedMemory) {
        let (reply, wire, memory) = self.greet();
        assert!(matches!(reply, Some(Reply::Welcome(_))));
        (wire, memory)
    }

    /// Sends hello. Returns the reply.
    fn greet(&self) -> (Option<Reply>, PacketSocket, SharedMemory) {
        let (wire, memory) = (self.dial(), SharedMemory::create("client", 64 * PAGE_SIZE).unwrap());
        wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
        (recv_reply(&wire), wire, memory)
    }

    /// Checks that a well-behaved client is served.
    fn assert_serves_others(&self) {
        let session = self.attach().unwrap();
        let mut queue = session.open_queue(16).unwrap();
        assert!(!queue.wait(Some(Duration::ZERO)).unwrap());
        session.doorbells(0).ring(7).unwrap();
        assert!(self.engine.is_healthy());
    }
}

fn hello() -> Vec<u8> {
    Request::Hello(Hello { version: VERSION }).encode(1)
}

/// Request that changes nothing, but has a reply.
fn nothing() -> Request {
    Request::CloseObject { id: 1, how: CloseMode::Release }
}

/// Receives a reply, or `None` if the engine has disconnected.
fn recv_reply(wire: &PacketSocket) -> Option<Reply> {
    let timeout = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut watched = [rustix::event::PollFd::new(wire, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut watched, Some(&timeout)), Ok(1), "the engine does not reply");
    match wire.receive(true) {
        Ok(packet) => Some(Reply::decode(&packet.unwrap().bytes).unwrap().1),
        Err(PacketError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Checks that the engine disconnects with this reason.
fn assert_dropped(wire: &PacketSocket, reason: &str) {
    match recv_reply(wire) {
        Some(Reply::Refused(text)) => assert!(text.contains(reason), "{text}"),
        other => panic!("{reason}: {other:?}"),
    }
    assert_eq!(recv_reply(wire), None, "{reason}: still connected");
}

fn some_fd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

fn bell() -> OwnedFd {
    Bell::new(Arc::new(WakeFlag::new())).unwrap().1
}

#[test]
fn client_attaches_leaves_and_returns() {
    let fixture = Fixture::new(|config| config.max_clients = 1);
    for _ in 0..20 {
        let session = loop {
            match fixture.attach() {
                Ok(session) => break session,
                // The one before has not quite left yet.
                Err(AttachError::Refused { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((session.cores().len(), session.epoch()), (1, 1));
        assert_eq!(session.limits(), EngineConfig::new(vec![0]).limits);
        session.check().unwrap();
    }
    fixture.assert_serves_others();
}

#[test]
fn rejects_unknown_user_with_remedy() {
    const OTHER: u32 = 54_321;
    if !isolane_shm::testing::can_be_user(OTHER) {
        return eprintln!("skipped: this process cannot become user {OTHER}; run it as root");
    }
    let attach_as_other = |fixture: &Fixture| {
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(fixture.dir.path(), everybody.clone()).unwrap();
        std::fs::set_permissions(fixture.path(), everybody).unwrap();
        let other = || {
            set_thread_res_uid(None, Uid::from_raw(OTHER), None).unwrap();
            fixture.attach()
        };
        std::thread::scope(|scope| scope.spawn(other).join().unwrap())
    };
    let fixture = Fixture::new(|_| {});
    let error = attach_as_other(&fixture).unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("--allow-uid 54321"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
    fixture.assert_serves_others();
    let fixture = Fixture::new(|config| config.allowed_uids = vec![OTHER]);
    drop(attach_as_other(&fixture).unwrap());
}

/// An engine with its store, and the supervisor's end of the store's link.
fn run_engine() -> (Fixture, Arc<StoreClient>, PacketSocket) {
    let (ours, peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = Arc::new(StoreClient::new(PacketSocket::new(ours), 0));
    (Fixture::with(Arc::clone(&store), |_| {}), store, PacketSocket::new(peer_end))
}

/// The key of the record that the engine sends next.
fn receive_put(supervisor: &PacketSocket) -> u64 {
    match recv_message(supervisor) {
        ToSupervisor::Put { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

/// The next engine would grant requests that fail without a supervisor.
#[test]
fn ending_engine_sends_no_refusals() {
    let (fixture, store, supervisor) = run_engine();
    let next_put = || receive_put(&supervisor);
    let options = fixture.options();
    let session = std::thread::spawn(move || Session::open(&options).unwrap());
    // The session and its port.
    (0..2).for_each(|_| store.on_stored(next_put(), true));
    let session = session.join().unwrap();
    let asking = std::thread::spawn(move || session.open_queue(4).unwrap_err());
    next_put();
    store.close();
    let (told, _, _) = fixture.greet();
    assert_eq!(told, None, "one who has no session may knock again");
    assert!(!asking.is_finished(), "it has an answer, though the next engine may have another");
    drop(fixture);
    let error = asking.join().unwrap();
    assert!(matches!(error, AttachError::SessionClosed(_)), "{error}");
}

fn recv_message(wire: &PacketSocket) -> ToSupervisor {
    decode(&wire.receive(true).unwrap().unwrap().bytes).unwrap()
}

#[test]
fn malformed_message_disconnects_sender() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&[1, 2, 3], &[], true).unwrap();
    assert_dropped(&wire, "malformed");
    let wire = fixture.dial();
    send(&wire, &[0; MAX_MESSAGE_BYTES + 1], SendFlags::empty()).unwrap();
    assert_dropped(&wire, "longer than");
    let (wire, memory) = fixture.attached();
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    assert!(matches!(recv_reply(&wire), Some(Reply::Welcome(_))), "every request may be repeated");
    fixture.assert_serves_others();
}

/// At any rate: the engine checks its streams at most once a second.
#[test]
fn client_without_memory_may_request_relief() {
    let fixture = Fixture::new(|_| {});
    let (wire, _memory) = fixture.attached();
    for serial in 2..5 {
        wire.send(&Request::Relieve.encode(serial), &[], true).unwrap();
        assert_eq!(recv_reply(&wire), Some(Reply::Ack));
    }
    fixture.assert_serves_others();
}

#[test]
fn missing_hello_or_other_version_disconnects() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&nothing().encode(1), &[], true).unwrap();
    assert_dropped(&wire, "not sent hello");
    let (wire, memory) = (fixture.dial(), SharedMemory::create("client", PAGE_SIZE).unwrap());
    let request = Request::Hello(Hello { version: VERSION + 1 });
    wire.send(&request.encode(1), &[memory.memfd()], true).unwrap();
    assert_dropped(&wire, "version");
    fixture.assert_serves_others();
}

#[test]
fn wrong_descriptors_disconnect_sender() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&hello(), &[], true).unwrap();
    assert_dropped(&wire, "0 descriptors came with a message that has 2");
    let (wire, fd) = (fixture.dial(), some_fd());
    wire.send(&hello(), &[fd.as_fd(); 4], true).unwrap();
    assert_dropped(&wire, "4 descriptors");
    let wire = fixture.dial();
    wire.send(&hello(), &[fd.as_fd(); 2], true).unwrap();
    assert_dropped(&wire, "not sealed");
    let (wire, _memory) = fixture.attached();
    let port =
        Request::OpenDoorbells(OpenDoorbells { core: 0, layout: DoorbellLayout { offset: 0, entries: 4 } });
    wire.send(&port.encode(2), &[fd.as_fd()], true).unwrap();
    assert_dropped(&wire, "not a Unix stream socket");
    fixture.assert_serves_others();
}

/// Longer than any test timeout.
const LINGER: Duration = Duration::from_secs(3600);

/// Returns a socket whose last close blocks: it lingers, and its peer reads nothing.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut socket, &[0; 65_536]).is_ok() {}
    // Otherwise a close does not block.
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

#[test]
fn blocking_closes_do_not_delay_clients() {
    let fixture = Fixture::new(|_| {});
    let mut peers = Vec::new();
    // On another thread, because this close may be the last, which blocks.
    let mut send_lingering = |wire: &Arc<PacketSocket>, bytes: Vec<u8>, count: usize| {
        let (socket, peer) = lingering();
        peers.push(peer);
        let wire = Arc::clone(wire);
        std::thread::spawn(move || {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let many = vec![socket.as_fd(); count];
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&many)));
            let bytes = [std::io::IoSlice::new(&bytes)];
            // Fails if the engine has disconnected.
            let _ = rustix::net::sendmsg(&*wire, &bytes, &mut control, SendFlags::NOSIGNAL);
            drop(socket);
        });
    };
    for _ in 0..5 {
        let wire = Arc::new(fixture.dial());
        send_lingering(&wire, hello(), 2);
        assert_dropped(&wire, "not sealed");
        let wire = Arc::new(fixture.dial());
        send_lingering(&wire, hello(), 9);
        assert_dropped(&wire, "more than 8 descriptors");
        let wire = Arc::new(fixture.dial());
        send_lingering(&wire, Vec::new(), 1);
        assert_dropped(&wire, "descriptors but no data");
        // The engine may not receive the second packet.
        let wire = Arc::new(fixture.attached().0);
        wire.send(&[1, 2, 3], &[], true).unwrap();
        send_lingering(&wire, hello(), 1);
        assert_dropped(&wire, "malformed");
        let (wire, _memory) = fixture.attached();
        let wire = Arc::new(wire);
        let port = Request::OpenDoorbells(OpenDoorbells {
            core: 0,
            layout: DoorbellLayout { offset: 0, entries: 4 },
        });
        send_lingering(&wire, port.encode(2), 1);
        assert_dropped(&wire, "not a Unix stream socket");
    }
    fixture.assert_serves_others();
}

#[test]
fn invalid_layouts_and_cores_disconnect() {
    let fixture = Fixture::new(|_| {});
    let bytes = 64 * PAGE_SIZE as u64;
    for (core, offset, entries, reason) in [
        (1, 0, 4, "no core 1"),
        (0, bytes, 4, "out of bounds"),
        (0, bytes - 128, 4, "out of bounds"),
        (0, 8, 4, "out of bounds"),
        (0, u64::MAX, 4, "layout of doorbells"),
        (0, 0, 3, "layout of doorbells"),
        (0, 0, u32::MAX, "layout of doorbells"),
    ] {
        let (wire, _memory) = fixture.attached();
        let port = Request::OpenDoorbells(OpenDoorbells { core, layout: DoorbellLayout { offset, entries } });
        wire.send(&port.encode(2), &[bell().as_fd()], true).unwrap();
        assert_dropped(&wire, reason);
    }
    fixture.assert_serves_others();
}

#[test]
fn invalid_doorbell_ring_disconnects() {
    let fixture = Fixture::new(|_| {});
    let (wire, memory) = fixture.attached();
    let port =
        Request::OpenDoorbells(OpenDoorbells { core: 0, layout: DoorbellLayout { offset: 0, entries: 4 } });
    let (ours, peer_end) = Bell::new(memory.flag(0).unwrap()).unwrap();
    wire.send(&port.encode(2), &[peer_end.as_fd()], true).unwrap();
    assert_eq!(recv_reply(&wire), Some(Reply::Ack));
    memory.copy_in(128, &u64::MAX.to_le_bytes()).unwrap();
    ours.force_ring();
    assert_dropped(&wire, "ring index went");
    fixture.assert_serves_others();
}

#[test]
fn floods_do_not_delay_other_clients() {
    let fixture = Fixture::new(|_| {});
    let (wire, _memory) = fixture.attached();
    // Replies are not received: once they fill the connection, the flood blocks.
    let request = nothing().encode(2);
    let is_full =
        |wire: &PacketSocket| matches!(wire.send(&request, &[], false), Err(PacketError::WouldBlock));
    let mut tries = 0..10_000_000;
    // The engine may make space for one more message.
    assert!(tries.any(|_| is_full(&wire) && {
        std::thread::sleep(Duration::from_millis(20));
        is_full(&wire)
    }));
    for _ in 0..1000 {
        drop(fixture.dial());
    }
    fixture.assert_serves_others();
    // The client is served again once it receives the replies.
    while wire.receive(false).unwrap().is_some() || is_full(&wire) {}
    assert_eq!(recv_reply(&wire), Some(Reply::Ack));
}

#[test]
fn rejects_client_beyond_limit() {
    let fixture = Fixture::new(|config| config.max_clients = 2);
    let (_first, _second) = (fixture.attach().unwrap(), fixture.attached());
    let error = fixture.attach().unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. } if error.to_string().contains("limit")), "{error}");
}

/// Disconnects a client with unsent data whose peer reads nothing.
fn die_unsent(wire: PacketSocket, memory: &SharedMemory) -> std::net::TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    let page = PAGE_SIZE as u64;
    let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 16 * page, tx_capacity: 32 * page };
    let open = Request::OpenObject(OpenObject { id: 1, core: None, queue: None, object: place.object() });
    wire.send(&open.encode(2), &[socket.as_fd()], true).unwrap();
    assert!(matches!(recv_reply(&wire), Some(Reply::Opened { .. })));
    let (_, mut outgoing, _) = open_rings(memory, &place).unwrap();
    // Until ring and kernel are full.
    let mut progress = Instant::now();
    while progress.elapsed() < Duration::from_millis(100) {
        match outgoing.try_write(&[0; 4096]) {
            Ok(_) => progress = Instant::now(),
            Err(_) => std::thread::yield_now(),
        }
    }
    listener.accept().unwrap().0
}

#[test]
fn disconnected_clients_count_towards_twice_the_limit() {
    let fixture = Fixture::new(|config| config.max_clients = 1);
    // The previous client may not have disconnected yet.
    let say_hello = |wanted: &dyn Fn(&Option<Reply>) -> bool| {
        let start = Instant::now();
        loop {
            let (reply, wire, memory) = fixture.greet();
            if wanted(&reply) {
                return (wire, memory);
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{reply:?}");
            drop(wire);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let is_welcome = |reply: &Option<Reply>| matches!(reply, Some(Reply::Welcome(_)));
    let peers: Vec<_> = (0..2)
        .map(|_| {
            let (wire, memory) = say_hello(&is_welcome);
            die_unsent(wire, &memory)
        })
        .collect();
    say_hello(&|reply| matches!(reply, Some(Reply::Refused(reason)) if reason.contains("have left")));
    for mut peer in peers {
        assert!(std::io::copy(&mut peer, &mut std::io::sink()).unwrap() > 0);
    }
    say_hello(&is_welcome);
}

#[test]
fn silent_connections_do_not_block_clients() {
    let fixture = Fixture::new(|config| config.max_clients = 2);
    let silent: Vec<_> = (0..200).map(|_| fixture.dial()).collect();
    fixture.assert_serves_others();
    assert_dropped(&silent[0], "others wait");
}

#[test]
fn missing_hello_times_out() {
    let fixture = Fixture::new(|config| config.hello_timeout = Duration::from_millis(50));
    let (silent, (attached, _memory)) = (fixture.dial(), fixture.attached());
    assert_dropped(&silent, "hello");
    attached.send(&nothing().encode(2), &[], true).unwrap();
    assert_eq!(recv_reply(&attached), Some(Reply::Ack));
}

#[test]
fn refusals_name_the_limit() {
    let fixture = Fixture::new(|config| {
        config.limits.memory_bytes = 4 << 20;
        config.limits.queues = 2;
        config.limits.streams = 0;
    });
    let error = Session::open(&SessionOptions {
        path: fixture.path(),
        memory_bytes: 8 << 20,
        spawn_engine: false,
        ..SessionOptions::default()
    })
    .unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("at most 4194304 bytes") && error.to_string().contains("--max-memory"),
        "{error}"
    );
    let session = fixture.attach().unwrap();
    let queues = [session.open_queue(4).unwrap(), session.open_queue(4).unwrap()];
    let error = session.open_queue(4).unwrap_err();
    assert!(error.to_string().contains("2 notification queues"), "{error}");
    drop(queues);
    drop(session.open_queue(4).unwrap());
    let place = StreamLayout { block: 0, rx: 0, rx_capacity: 4096, tx: 0, tx_capacity: 4096 };
    let open = Request::OpenObject(OpenObject { id: 1, core: None, queue: None, object: place.object() });
    let error = session.request("a stream", &open, &[some_fd().as_fd()]).unwrap_err();
    assert!(error.to_string().contains("0 streams, which is the limit"), "{error}");
}

#[test]
fn clients_notice_end_of_engine() {
    let fixture = Fixture::new(|_| {});
    let session = fixture.attach().unwrap();
    let mut queue = session.open_queue(4).unwrap();
    let waiter = std::thread::spawn(move || queue.wait(None).unwrap_err());
    assert!(fixture.engine.stop(Duration::from_secs(60)));
    assert!(matches!(waiter.join().unwrap(), AttachError::SessionClosed(_)));
    assert!(matches!(session.request("x", &nothing(), &[]), Err(AttachError::SessionClosed(_))));
}

#[test]
fn replaces_socket_of_dead_engine_only() {
    let fixture = Fixture::new(|_| {});
    let path = fixture.path();
    let error = listen(&path).unwrap_err();
    assert!(error.to_string().contains("an engine listens there"), "{error}");
    let Fixture { engine, dir: _folder } = fixture;
    drop(engine);
    listen(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file of another program").unwrap();
    listen(&path).unwrap_err();
    assert!(path.is_file(), "a file of another program was removed");
}

/// Of three streams, the first has invalid positions, and the socket of the second is missing.
#[test]
fn unresumable_stream_ends_alone() {
    let page = PAGE_SIZE as u64;
    let memory = SharedMemory::create("client", 16 * PAGE_SIZE).unwrap();
    let (wire, peer_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let wire = PacketSocket::new(wire);
    let record = Record::Session { session: 1, pid: 1, uid: 0 };
    let descriptors = vec![peer_end, memory.memfd().try_clone_to_owned().unwrap(), some_fd()];
    let mut records = vec![StoredRecord { key: 1, record, descriptors }];
    let mut connections = Vec::new();
    for id in 1..=3 {
        let block = 4 * page * (u64::from(id) - 1);
        let (rx, tx) = (block + page, block + 2 * page);
        let place = StreamLayout { block, rx, rx_capacity: page, tx, tx_capacity: page };
        let (socket, peer) = isolane_shm::testing::connection().unwrap();
        let note = encode(&stream::StreamRecord::capture(socket.as_fd(), place).unwrap());
        let request = Request::OpenObject(OpenObject { id, core: None, queue: None, object: place.object() });
        let record = Record::Granted { session: 1, core: 0, request, note };
        let duplicate: OwnedFd = socket.try_clone().unwrap().into();
        let descriptors = if id == 2 { Vec::new() } else { vec![duplicate] };
        records.push(StoredRecord { key: 1 + u64::from(id), record, descriptors });
        connections.push((socket, peer));
    }
    memory.copy_in(at::RX_DISCARDED, &5u64.to_ne_bytes()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    let listener = listen(&dir.path().join("sock")).unwrap();
    let _engine = resume(config, listener, 2, Arc::new(StoreClient::none()), records);
    assert_eq!(recv_reply(&wire), Some(Reply::EngineRestarted { epoch: 2 }));
    for (id, reason) in [(1, "positions"), (2, "no descriptor"), (3, "")] {
        wire.send(&Request::CloseObject { id, how: CloseMode::Release }.encode(id), &[], true).unwrap();
        match recv_reply(&wire) {
            Some(Reply::Refused(text)) => assert!(id < 3 && text.contains(reason), "{id}: {text}"),
            Some(Reply::Ack) => assert_eq!(id, 3, "its position is unknown"),
            other => panic!("{id}: {other:?}"),
        }
    }
}
