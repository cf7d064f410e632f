//! Clients of all manners against a running engine.

mod supervisor;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_attach::control::{
    ASKED_MAX, BYTES_MAX, End, Hello, Object, Open, OpenPort, Reply, Request, StreamPlace, VERSION, Wire,
    WireError,
};
use isolane_attach::layout::{PortPlace, stream as at};
use isolane_attach::stream::ends;
use isolane_attach::{AttachError, Options, Session};
use isolane_reactor::Mode;
use isolane_ring::{Bell, Flag, Memory, PAGE_SIZE};
use rustix::fd::AsFd;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, socketpair,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::store::{Deposit, Record, Store, ToSupervisor};
use crate::{Config, Engine, listen, stream};

struct Fixture {
    engine: Engine,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new(change: impl FnOnce(&mut Config)) -> Fixture {
        Fixture::with(Store::none(), change)
    }

    fn with(store: impl Into<Arc<Store>>, change: impl FnOnce(&mut Config)) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let core = isolane_reactor::core::usable().unwrap()[0];
        let mut config = Config::new(vec![core]);
        config.mode = Mode::Sleep;
        change(&mut config);
        let listener = listen(&folder.path().join("sock")).unwrap();
        let engine =
            Engine::resume(config, listener, 1, store, Vec::new(), crate::watch::Record::new().unwrap())
                .unwrap();
        Fixture { engine, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    fn attach(&self) -> Result<Session, AttachError> {
        Session::open(&self.options())
    }

    fn options(&self) -> Options {
        Options { path: self.path(), memory_bytes: 4 << 20, starts: false, ..Options::default() }
    }

    /// A connection on which nothing was said.
    fn dial(&self) -> Wire {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        Wire::new(socket)
    }

    /// A connection on which hello was said and answered.
    fn greeted(&self) -> (Wire, Memory) {
        let (reply, wire, memory) = self.greet();
        assert!(matches!(reply, Some(Reply::Welcome(_))));
        (wire, memory)
    }

    /// One on which hello was said, and the answer.
    fn greet(&self) -> (Option<Reply>, Wire, Memory) {
        let (wire, memory) = (self.dial(), Memory::create("client", 64 * PAGE_SIZE).unwrap());
        wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
        (told(&wire), wire, memory)
    }

    /// A well-behaved client is served as if nothing had happened.
    fn serves_others(&self) {
        let session = self.attach().unwrap();
        let mut queue = session.open_queue(16).unwrap();
        assert!(!queue.wait(Some(Duration::ZERO)).unwrap());
        session.port(0).tell(7).unwrap();
        assert!(self.engine.is_whole());
    }
}

fn hello() -> Vec<u8> {
    Request::Hello(Hello { version: VERSION }).encode(1)
}

/// What changes nothing and is answered.
fn nothing() -> Request {
    Request::End { id: 1, how: End::Release }
}

/// What the engine says, or `None` if it hangs up.
fn told(wire: &Wire) -> Option<Reply> {
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut watched = [rustix::event::PollFd::new(wire, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut watched, Some(&patience)), Ok(1), "the engine says nothing");
    match wire.receive(true) {
        Ok(packet) => Some(Reply::decode(&packet.unwrap().bytes).unwrap().1),
        Err(WireError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The engine says why, and hangs up.
fn is_dropped(wire: &Wire, why: &str) {
    match told(wire) {
        Some(Reply::Refused(told)) => assert!(told.contains(why), "{told}"),
        other => panic!("{why}: {other:?}"),
    }
    assert_eq!(told(wire), None, "{why}: the engine did not hang up");
}

fn some_fd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

fn bell() -> OwnedFd {
    Bell::new(Arc::new(Flag::new())).unwrap().1
}

#[test]
fn a_client_attaches_and_leaves_and_comes_again() {
    let fixture = Fixture::new(|config| config.clients_max = 1);
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
        assert_eq!(session.limits(), Config::new(vec![0]).limits);
        session.check().unwrap();
    }
    fixture.serves_others();
}

#[test]
fn a_user_who_is_not_allowed_is_told_so_at_once_and_how_to_be() {
    const OTHER: u32 = 54_321;
    if !isolane_ring::mock::can_be_user(OTHER) {
        return eprintln!("skipped: this process cannot become user {OTHER}; run it as root");
    }
    let attach_as_other = |fixture: &Fixture| {
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(fixture.folder.path(), everybody.clone()).unwrap();
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
    fixture.serves_others();
    let fixture = Fixture::new(|config| config.allowed_uids = vec![OTHER]);
    drop(attach_as_other(&fixture).unwrap());
}

/// An engine with its store, and the supervisor's end of the store's link.
fn supervised() -> (Fixture, Arc<Store>, Wire) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let store = Arc::new(Store::of(Wire::new(ours), 0));
    (Fixture::with(Arc::clone(&store), |_| {}), store, Wire::new(theirs))
}

/// The key of the record that the engine sends next.
fn deposit(supervisor: &Wire) -> u64 {
    match heard(supervisor) {
        ToSupervisor::Deposit { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

/// What is refused for want of a supervisor would be granted by the next engine.
#[test]
fn an_engine_that_ends_refuses_nothing() {
    let (fixture, store, supervisor) = supervised();
    let deposited = || deposit(&supervisor);
    let options = fixture.options();
    let session = std::thread::spawn(move || Session::open(&options).unwrap());
    // The session and its port.
    (0..2).for_each(|_| store.on_deposited(deposited(), true));
    let session = session.join().unwrap();
    let asking = std::thread::spawn(move || session.open_queue(4).unwrap_err());
    deposited();
    store.on_over();
    let (told, _, _) = fixture.greet();
    assert_eq!(told, None, "one who has no session may knock again");
    assert!(!asking.is_finished(), "it has an answer, though the next engine may have another");
    drop(fixture);
    let error = asking.join().unwrap();
    assert!(matches!(error, AttachError::Over(_)), "{error}");
}

fn heard(wire: &Wire) -> ToSupervisor {
    ToSupervisor::decode(&wire.receive(true).unwrap().unwrap().bytes).unwrap()
}

#[test]
fn what_is_no_message_drops_its_sender() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&[1, 2, 3], &[], true).unwrap();
    is_dropped(&wire, "malformed");
    let wire = fixture.dial();
    send(&wire, &[0; BYTES_MAX + 1], SendFlags::empty()).unwrap();
    is_dropped(&wire, "longer than");
    let (wire, memory) = fixture.greeted();
    wire.send(&hello(), &[memory.memfd(), some_fd().as_fd()], true).unwrap();
    assert!(matches!(told(&wire), Some(Reply::Welcome(_))), "every request may be repeated");
    fixture.serves_others();
}

/// As often as it likes: the engine looks at its streams no more than once a second.
#[test]
fn client_without_memory_may_ask_for_relief() {
    let fixture = Fixture::new(|_| {});
    let (wire, _memory) = fixture.greeted();
    for serial in 2..5 {
        wire.send(&Request::Relieve.encode(serial), &[], true).unwrap();
        assert_eq!(told(&wire), Some(Reply::Done));
    }
    fixture.serves_others();
}

#[test]
fn who_asks_before_hello_or_speaks_otherwise_is_dropped() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&nothing().encode(1), &[], true).unwrap();
    is_dropped(&wire, "not said hello");
    let (wire, memory) = (fixture.dial(), Memory::create("client", PAGE_SIZE).unwrap());
    let request = Request::Hello(Hello { version: VERSION + 1 });
    wire.send(&request.encode(1), &[memory.memfd()], true).unwrap();
    is_dropped(&wire, "version");
    fixture.serves_others();
}

#[test]
fn wrong_descriptors_drop_their_sender() {
    let fixture = Fixture::new(|_| {});
    let wire = fixture.dial();
    wire.send(&hello(), &[], true).unwrap();
    is_dropped(&wire, "0 descriptors came with a message that has 2");
    let (wire, fd) = (fixture.dial(), some_fd());
    wire.send(&hello(), &[fd.as_fd(); 4], true).unwrap();
    is_dropped(&wire, "4 descriptors");
    let wire = fixture.dial();
    wire.send(&hello(), &[fd.as_fd(); 2], true).unwrap();
    is_dropped(&wire, "not sealed");
    let (wire, _memory) = fixture.greeted();
    let port = Request::OpenPort(OpenPort { core: 0, place: PortPlace { offset: 0, entries: 4 } });
    wire.send(&port.encode(2), &[fd.as_fd()], true).unwrap();
    is_dropped(&wire, "no Unix stream socket");
    fixture.serves_others();
}

/// Longer than any test waits.
const LINGER: Duration = Duration::from_secs(3600);

/// A socket whose last close waits: it lingers, and its peer takes nothing of what was written.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut socket, &[0; 65_536]).is_ok() {}
    // Else a close does not wait.
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

#[test]
fn descriptors_whose_close_waits_keep_nobody_waiting() {
    let fixture = Fixture::new(|_| {});
    let mut peers = Vec::new();
    // On a thread of its own: mostly ours is not the last, but if it is, that waits there.
    let mut give = |wire: &Arc<Wire>, bytes: Vec<u8>, count: usize| {
        let (socket, peer) = lingering();
        peers.push(peer);
        let wire = Arc::clone(wire);
        std::thread::spawn(move || {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let many = vec![socket.as_fd(); count];
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&many)));
            let bytes = [std::io::IoSlice::new(&bytes)];
            // It may have been dropped meanwhile.
            let _ = rustix::net::sendmsg(&*wire, &bytes, &mut control, SendFlags::NOSIGNAL);
            drop(socket);
        });
    };
    for _ in 0..5 {
        let wire = Arc::new(fixture.dial());
        give(&wire, hello(), 2);
        is_dropped(&wire, "not sealed");
        let wire = Arc::new(fixture.dial());
        give(&wire, hello(), 9);
        is_dropped(&wire, "more than 4 descriptors");
        let wire = Arc::new(fixture.dial());
        give(&wire, Vec::new(), 1);
        is_dropped(&wire, "nothing but descriptors");
        // Perhaps nobody reads it any more.
        let wire = Arc::new(fixture.greeted().0);
        wire.send(&[1, 2, 3], &[], true).unwrap();
        give(&wire, hello(), 1);
        is_dropped(&wire, "malformed");
        let (wire, _memory) = fixture.greeted();
        let wire = Arc::new(wire);
        let port = Request::OpenPort(OpenPort { core: 0, place: PortPlace { offset: 0, entries: 4 } });
        give(&wire, port.encode(2), 1);
        is_dropped(&wire, "no Unix stream socket");
    }
    fixture.serves_others();
}

#[test]
fn places_and_cores_that_are_not_there_drop_who_names_them() {
    let fixture = Fixture::new(|_| {});
    let bytes = 64 * PAGE_SIZE as u64;
    for (core, offset, entries, why) in [
        (1, 0, 4, "no core 1"),
        (0, bytes, 4, "not a place"),
        (0, bytes - 128, 4, "not a place"),
        (0, 8, 4, "not a place"),
        (0, u64::MAX, 4, "can be nowhere"),
        (0, 0, 3, "can be nowhere"),
        (0, 0, u32::MAX, "can be nowhere"),
    ] {
        let (wire, _memory) = fixture.greeted();
        let port = Request::OpenPort(OpenPort { core, place: PortPlace { offset, entries } });
        wire.send(&port.encode(2), &[bell().as_fd()], true).unwrap();
        is_dropped(&wire, why);
    }
    fixture.serves_others();
}

#[test]
fn a_doorbell_ring_that_cannot_be_drops_the_session() {
    let fixture = Fixture::new(|_| {});
    let (wire, memory) = fixture.greeted();
    let port = Request::OpenPort(OpenPort { core: 0, place: PortPlace { offset: 0, entries: 4 } });
    let (ours, theirs) = Bell::new(memory.flag(0).unwrap()).unwrap();
    wire.send(&port.encode(2), &[theirs.as_fd()], true).unwrap();
    assert_eq!(told(&wire), Some(Reply::Done));
    memory.copy_in(128, &u64::MAX.to_le_bytes()).unwrap();
    ours.ring_anyway();
    is_dropped(&wire, "index of a ring");
    fixture.serves_others();
}

#[test]
fn a_flood_of_requests_and_of_connections_keeps_nobody_from_being_served() {
    let fixture = Fixture::new(|_| {});
    let (wire, _memory) = fixture.greeted();
    // Nobody takes the answers: when they fill the connection, the flood waits for itself.
    let request = nothing().encode(2);
    let is_full = |wire: &Wire| matches!(wire.send(&request, &[], false), Err(WireError::Full));
    let mut tries = 0..10_000_000;
    // Full now may be a moment later room for one more.
    assert!(tries.any(|_| is_full(&wire) && {
        std::thread::sleep(Duration::from_millis(20));
        is_full(&wire)
    }));
    for _ in 0..1000 {
        drop(fixture.dial());
    }
    fixture.serves_others();
    // And once it takes them, it goes on.
    while wire.receive(false).unwrap().is_some() || is_full(&wire) {}
    assert_eq!(told(&wire), Some(Reply::Done));
}

#[test]
fn one_too_many_is_turned_away() {
    let fixture = Fixture::new(|config| config.clients_max = 2);
    let (_first, _second) = (fixture.attach().unwrap(), fixture.greeted());
    let error = fixture.attach().unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. } if error.to_string().contains("limit")), "{error}");
}

/// A client that dies with something written to a peer that takes nothing.
fn die_unsent(wire: Wire, memory: &Memory) -> std::net::TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    let page = PAGE_SIZE as u64;
    let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 16 * page, tx_capacity: 32 * page };
    let open = Request::Open(Open { id: 1, core: None, queue: None, object: Object::Stream(place) });
    wire.send(&open.encode(2), &[socket.as_fd()], true).unwrap();
    assert!(matches!(told(&wire), Some(Reply::Opened { .. })));
    let (_, mut outgoing, _) = ends(memory, &place).unwrap();
    // Until nothing fits any more, in the ring or in the kernel.
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
fn clients_that_have_left_keep_nobody_out_until_they_are_as_many_again() {
    let fixture = Fixture::new(|config| config.clients_max = 1);
    // The one before may not quite have left.
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
    say_hello(&|reply| matches!(reply, Some(Reply::Refused(why)) if why.contains("have left")));
    for mut peer in peers {
        assert!(std::io::copy(&mut peer, &mut std::io::sink()).unwrap() > 0);
    }
    say_hello(&is_welcome);
}

#[test]
fn connections_on_which_nothing_is_said_keep_nobody_out() {
    let fixture = Fixture::new(|config| config.clients_max = 2);
    let silent: Vec<_> = (0..200).map(|_| fixture.dial()).collect();
    fixture.serves_others();
    is_dropped(&silent[0], "others wait");
}

#[test]
fn who_never_says_hello_is_dropped_in_the_end() {
    let fixture = Fixture::new(|config| config.greeting = Duration::from_millis(50));
    let (silent, (greeted, _memory)) = (fixture.dial(), fixture.greeted());
    is_dropped(&silent, "hello");
    greeted.send(&nothing().encode(2), &[], true).unwrap();
    assert_eq!(told(&greeted), Some(Reply::Done));
}

#[test]
fn more_than_the_limits_is_refused_and_says_how_much_may_be_had() {
    let fixture = Fixture::new(|config| {
        config.limits.memory_bytes = 4 << 20;
        config.limits.queues = 2;
        config.limits.streams = 0;
    });
    let error = Session::open(&Options {
        path: fixture.path(),
        memory_bytes: 8 << 20,
        starts: false,
        ..Options::default()
    })
    .unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("at most 4194304 bytes") && error.to_string().contains("--memory-max"),
        "{error}"
    );
    let session = fixture.attach().unwrap();
    let queues = [session.open_queue(4).unwrap(), session.open_queue(4).unwrap()];
    let error = session.open_queue(4).unwrap_err();
    assert!(error.to_string().contains("2 notification queues"), "{error}");
    drop(queues);
    drop(session.open_queue(4).unwrap());
    let place = StreamPlace { block: 0, rx: 0, rx_capacity: 4096, tx: 0, tx_capacity: 4096 };
    let open = Request::Open(Open { id: 1, core: None, queue: None, object: Object::Stream(place) });
    let error = session.ask("a stream", &open, &[some_fd().as_fd()]).unwrap_err();
    assert!(error.to_string().contains("0 streams, which is the limit"), "{error}");
}

#[test]
fn the_end_of_the_engine_is_heard_by_who_is_attached() {
    let fixture = Fixture::new(|_| {});
    let session = fixture.attach().unwrap();
    let mut queue = session.open_queue(4).unwrap();
    let waiter = std::thread::spawn(move || queue.wait(None).unwrap_err());
    assert!(fixture.engine.stop(Duration::from_secs(60)));
    assert!(matches!(waiter.join().unwrap(), AttachError::Over(_)));
    assert!(matches!(session.ask("x", &nothing(), &[]), Err(AttachError::Over(_))));
}

#[test]
fn a_socket_that_a_dead_engine_left_is_replaced_and_a_living_ones_is_not() {
    let fixture = Fixture::new(|_| {});
    let path = fixture.path();
    let error = listen(&path).unwrap_err();
    assert!(error.to_string().contains("an engine listens there"), "{error}");
    let Fixture { engine, folder: _folder } = fixture;
    drop(engine);
    listen(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file of somebody's").unwrap();
    listen(&path).unwrap_err();
    assert!(path.is_file(), "it is not ours to remove");
}

/// A session of three streams, of which the first was written to by its client and the socket of the second is
/// missing.
#[test]
fn a_stream_that_the_next_engine_cannot_take_up_ends_alone() {
    let page = PAGE_SIZE as u64;
    let memory = Memory::create("client", 16 * PAGE_SIZE).unwrap();
    let (wire, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let wire = Wire::new(wire);
    let record = Record::Session { session: 1, pid: 1, uid: 0 };
    let descriptors = vec![theirs, memory.memfd().try_clone_to_owned().unwrap(), some_fd()];
    let mut left = vec![Deposit { key: 1, record, descriptors }];
    let mut connections = Vec::new();
    for id in 1..=3 {
        let block = 4 * page * (u64::from(id) - 1);
        let (rx, tx) = (block + page, block + 2 * page);
        let place = StreamPlace { block, rx, rx_capacity: page, tx, tx_capacity: page };
        let (socket, peer) = isolane_ring::mock::connection().unwrap();
        let note = stream::Kept::of(socket.as_fd(), place).unwrap().encode().to_vec();
        let request = Request::Open(Open { id, core: None, queue: None, object: Object::Stream(place) });
        let record = Record::Granted { session: 1, core: 0, request, note };
        let duplicate: OwnedFd = socket.try_clone().unwrap().into();
        let descriptors = if id == 2 { Vec::new() } else { vec![duplicate] };
        left.push(Deposit { key: 1 + u64::from(id), record, descriptors });
        connections.push((socket, peer));
    }
    memory.copy_in(at::RX_DISCARDED, &5u64.to_ne_bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(vec![isolane_reactor::core::usable().unwrap()[0]]);
    let listener = listen(&folder.path().join("sock")).unwrap();
    let _engine =
        Engine::resume(config, listener, 2, Store::none(), left, crate::watch::Record::new().unwrap())
            .unwrap();
    assert_eq!(told(&wire), Some(Reply::Restarted { epoch: 2 }));
    for (id, why) in [(1, "positions"), (2, "no descriptor"), (3, "")] {
        wire.send(&Request::End { id, how: End::Release }.encode(id), &[], true).unwrap();
        match told(&wire) {
            Some(Reply::Refused(told)) => assert!(id < 3 && told.contains(why), "{id}: {told}"),
            Some(Reply::Done) => assert_eq!(id, 3, "nobody knows where it stands"),
            other => panic!("{id}: {other:?}"),
        }
    }
}
