//! Opening sessions, and engines that are slow, hang, or die.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{accept, bind, listen, socketpair};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::*;
use isolane_engine_api::{CloseMode, MAX_REQUESTS_IN_FLIGHT, Object, OpenObject, VERSION, kind};

/// User of another engine, who created the directory first.
const OTHER_USER: u32 = 54_321;

#[test]
fn engine_of_other_user_receives_nothing_unless_trusted() {
    if !isolane_shm::testing::can_be_user(OTHER_USER) {
        return eprintln!("skipped: this process cannot become user {OTHER_USER}; run it as root");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options =
        SessionOptions { path: dir.path().join("sock"), spawn_engine: false, ..SessionOptions::default() };
    let listener = listener_of(OTHER_USER, &options.path);
    let error = Session::open(&options).unwrap_err();
    assert!(matches!(error, AttachError::Untrusted { uid: OTHER_USER, .. }), "{error}");
    assert!(error.to_string().contains("add 54321 to ISOLANE_TRUSTED_UIDS"), "{error}");
    let socket = PacketSocket::new(accept(&listener).unwrap());
    assert!(matches!(socket.receive(true), Err(PacketError::Closed)), "the engine received something");

    options.trusted_uids = parse_uids("root, 54321");
    std::thread::scope(|scope| {
        let session = scope.spawn(|| Session::open(&options));
        let socket = PacketSocket::new(accept(&listener).unwrap());
        assert_eq!(socket.receive(true).unwrap().unwrap().descriptors.len(), 2, "its memory, and a pipe");
        socket.send(&Reply::Refused("refused".into()).encode(1), &[], true).unwrap();
        let error = session.join().unwrap().unwrap_err();
        assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    });
}

/// As a stopped engine does: the kernel accepts its clients.
#[test]
fn handshake_times_out_if_engine_does_not_reply() {
    let (ours, _engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let memory = SharedMemory::create("session", 1 << 20).unwrap();
    let life = pipe_with(PipeFlags::CLOEXEC).unwrap().0;
    let timeout = Duration::from_millis(5);
    let error = control_channel::handshake(
        &PacketSocket::new(ours),
        &memory,
        life.as_fd(),
        Path::new("/e.sock"),
        timeout,
    )
    .unwrap_err();
    assert!(matches!(error, AttachError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("/e.sock has not replied within 5ms"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn error_without_engine_names_start_command() {
    let message = |path: PathBuf| {
        AttachError::NoEngine { path, source: std::io::ErrorKind::NotFound.into() }.to_string()
    };
    assert!(message(default_path()).ends_with("`isolane engine`"));
    assert!(message(PathBuf::new()).ends_with("`isolane engine`"));
    assert!(message("/x/e.sock".into()).ends_with("`isolane engine --socket /x/e.sock`"));
}

#[test]
fn open_retries_if_engine_exits_during_setup() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        SessionOptions { path: dir.path().join("sock"), spawn_engine: false, ..SessionOptions::default() };
    let listener = listener_of(geteuid().as_raw(), &options.path);
    let session = std::thread::spawn(move || Session::open(&options));
    let socket = PacketSocket::new(accept(&listener).unwrap());
    socket.receive(true).unwrap().unwrap();
    let (cores, limits) = (vec![0], SessionLimits::default());
    let welcome = Welcome { version: VERSION, session: 1, epoch: 1, cores, limits };
    socket.send(&Reply::Welcome(welcome).encode(1), &[], true).unwrap();
    assert!(matches!(recv_request(&socket).1, Request::OpenDoorbells(_)));
    drop(socket);
    let next = PacketSocket::new(with_timeout("no second attempt", move || accept(&listener).unwrap()));
    next.receive(true).unwrap().unwrap();
    next.send(&Reply::Refused("refused".into()).encode(1), &[], true).unwrap();
    let error = session.join().unwrap().unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
}

/// The kernel records the user that calls `listen`.
fn listener_of(uid: u32, path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_thread_res_uid(None, Uid::from_raw(uid), None).unwrap();
            listen(&socket, 4).unwrap();
        });
        other.join().unwrap();
    });
    socket
}

/// Returns a session and the engine's end of its channel.
pub(crate) fn session() -> (Session, PacketSocket) {
    let (ours, engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let channel = ControlChannel::start(PacketSocket::new(ours), 1, REPLY_TIMEOUT).unwrap();
    (Session::on_channel(&channel, 32 << 20), PacketSocket::new(engine))
}

/// Runs `f` in another thread. Panics with `what` if it takes too long.
pub(crate) fn with_timeout<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what}"))
}

/// Receives the next request.
fn recv_request(engine: &PacketSocket) -> (u32, Request) {
    Request::decode(&engine.receive(true).unwrap().unwrap().bytes).unwrap()
}

/// Replies to each close before it receives the next, as an engine does that stops reading from a client that does not
/// receive its replies.
fn serve_closes(engine: &PacketSocket) {
    let mut due: BTreeSet<u32> = (0..CLOSES).collect();
    while !due.is_empty() {
        let (serial, request) = recv_request(engine);
        let Request::CloseObject { id, how: CloseMode::Close } = request else { panic!("{request:?}") };
        due.remove(&id);
        engine.send(&Reply::ObjectClosed { id }.encode(0), &[], true).unwrap();
        engine.send(&Reply::Ack.encode(serial), &[], true).unwrap();
    }
}

/// More than the kernel buffers in either direction.
const CLOSES: u32 = 5000;

fn close_all(session: &Session) {
    (0..CLOSES).for_each(|id| session.close(id, session.alloc(1).unwrap()).unwrap());
}

/// Returns `true` once all memory is free.
fn is_all_free(session: &Session) -> bool {
    let bytes = session.memory().bytes();
    (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        session.alloc(bytes).is_ok()
    })
}

#[test]
fn close_does_not_wait_and_every_close_arrives() {
    let (session, engine) = session();
    let closing = session.clone();
    with_timeout("a close waits for the engine", move || close_all(&closing));
    assert!(session.alloc(session.memory().bytes()).is_err(), "memory was freed before the object closed");
    with_timeout("deadlock", move || serve_closes(&engine));
    assert!(is_all_free(&session), "memory of closed objects is not free");
}

#[test]
fn restarted_engine_receives_thousands_of_closes() {
    let (session, engine) = session();
    let closing = session.clone();
    with_timeout("a close waits for the engine", move || close_all(&closing));
    with_timeout("deadlock", move || {
        (0..10).for_each(|_| drop(recv_request(&engine)));
        engine.send(&Reply::EngineRestarted { epoch: 2 }.encode(0), &[], true).unwrap();
        serve_closes(&engine);
    });
    assert!(is_all_free(&session), "memory of closed objects is not free");
}

/// A closed stream whose peer acknowledges nothing occupies the memory for as long as the peer lives, unless the engine
/// abandons it.
#[test]
fn full_memory_abandons_closed_streams() {
    let (session, engine) = session();
    let bytes = session.memory().bytes();
    let allocation = session.alloc(bytes).unwrap();
    assert!(matches!(session.alloc(1), Err(AttachError::OutOfMemory { .. })));
    session.close(7, allocation).unwrap();
    assert_eq!(
        recv_request(&engine).1,
        Request::CloseObject { id: 7, how: CloseMode::Close },
        "an earlier request"
    );
    for _ in 0..3 {
        assert!(matches!(session.alloc(1), Err(AttachError::OutOfMemory { .. })));
    }
    assert_eq!(recv_request(&engine), (0, Request::Relieve));
    engine.send(&Reply::ObjectClosed { id: 7 }.encode(0), &[], true).unwrap();
    assert!(is_all_free(&session), "the memory is not free");
}

#[test]
fn close_after_session_end_frees_memory() {
    let (session, engine) = session();
    drop(engine);
    let memory = session.memory().clone();
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(session.close(1, session.alloc(1).unwrap()), Err(AttachError::SessionClosed(_))));
    assert!(session.alloc(memory.bytes()).is_ok(), "its memory is not free");
}

/// The engine still sends from the memory of streams that were closed before the session closed.
#[test]
fn keeps_memory_until_engine_exits() {
    let (mut session, engine) = session();
    let (life, engine_life) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    Arc::get_mut(&mut session.0).expect("the only reference").life = life;
    let allocation = Allocation::new(&session, 20 << 20).unwrap();
    let (offset, mut byte) = (allocation.offset(), [0]);
    session.memory().copy_in(offset, &[7]).unwrap();
    drop(engine);
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    drop(allocation);
    session.memory().copy_out(offset, &mut byte).unwrap();
    assert_eq!(byte, [7], "the engine sends zeroes");
    assert!(Allocation::new(&session, 20 << 20).is_err(), "the engine sends the next owner's data");
    drop(engine_life);
    assert!(session.is_abandoned(Duration::ZERO));
    let allocation = Allocation::new(&session, 1 << 20).unwrap();
    let free = session.0.arena.lock().free_bytes();
    drop(allocation);
    assert_eq!(
        session.0.arena.lock().free_bytes(),
        free + (1 << 20),
        "memory is lost although the engine has exited"
    );
}

#[test]
fn session_end_wakes_sleeper_although_engine_keeps_bell() {
    let (session, engine) = session();
    let opening = std::thread::spawn(move || session.open_queue(4).unwrap());
    let packet = engine.receive(true).unwrap().unwrap();
    let (serial, request) = Request::decode(&packet.bytes).unwrap();
    assert!(matches!(request, Request::OpenNotificationQueue(_)), "{request:?}");
    engine.send(&Reply::Ack.encode(serial), &[], true).unwrap();
    let mut queue = opening.join().unwrap();
    let waiting = std::thread::spawn(move || {
        let error = std::iter::repeat_with(|| queue.wait(None)).find_map(Result::err).unwrap();
        (queue, error)
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(engine);
    let (queue, error) = with_timeout("the end does not wake the sleeper", move || waiting.join().unwrap());
    assert!(matches!(error, AttachError::SessionClosed(_)), "{error}");
    let mut watched = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    assert_eq!(
        poll(&mut watched, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })),
        Ok(1),
        "the descriptor is not readable"
    );
    drop(packet.descriptors);
}

fn release() -> Request {
    Request::CloseObject { id: 1, how: CloseMode::Release }
}

#[test]
fn request_fails_if_engine_does_not_reply() {
    let (ours, _engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let channel = ControlChannel::start(PacketSocket::new(ours), 1, Duration::from_millis(20)).unwrap();
    let session = Session::on_channel(&channel, 1 << 20);
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || session.request("a release", &release(), &[]).unwrap_err())
        })
        .collect();
    for caller in callers {
        let error = with_timeout("a caller waits indefinitely", move || caller.join().unwrap());
        assert!(matches!(error, AttachError::SessionClosed(_)), "{error}");
        assert!(error.to_string().contains("no reply within"), "{error}");
    }
}

/// A target may be slow: a request queued after opens of volumes waits as long as those may take.
#[test]
fn slow_volume_opens_extend_request_timeout() {
    let (ours, engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let channel = ControlChannel::start(PacketSocket::new(ours), 1, Duration::from_millis(20)).unwrap();
    let session = Session::on_channel(&channel, 1 << 20);
    let volume = Object { kind: kind::VOLUME, params: Vec::new() };
    for id in 0..MAX_REQUESTS_IN_FLIGHT as u32 {
        let open = OpenObject { id, core: None, queue: None, object: volume.clone() };
        channel.start_request(&Request::OpenObject(open), &[]).unwrap();
    }
    let clone = session.clone();
    let caller = std::thread::spawn(move || clone.request("a release", &release(), &[]).unwrap_err());
    std::thread::sleep(Duration::from_millis(200));
    session.check().expect("the opens are still in flight");
    drop(engine);
    let error = with_timeout("the end of the engine is not detected", move || caller.join().unwrap());
    assert!(!error.to_string().contains("no reply"), "{error}");
}
