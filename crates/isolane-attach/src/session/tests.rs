//! Whom a session is opened with, and engines that are slow, or die.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{accept, bind, listen, socketpair};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::*;
use crate::control::{ASKED_MAX, End, Object, Open};

/// An engine of another user, who has been first to make the folder.
const STRANGER: u32 = 54_321;

#[test]
fn the_engine_of_another_user_is_told_nothing_unless_it_is_trusted() {
    if !isolane_ring::mock::can_be_user(STRANGER) {
        return eprintln!("skipped: this process cannot become user {STRANGER}; run it as root");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options { path: folder.path().join("sock"), starts: false, ..Options::default() };
    let listener = listener_of(STRANGER, &options.path);
    let error = Session::open(&options).unwrap_err();
    assert!(matches!(error, AttachError::Untrusted { uid: STRANGER, .. }), "{error}");
    assert!(error.to_string().contains("add the number 54321 to ISOLANE_TRUST_UIDS"), "{error}");
    let wire = Wire::new(accept(&listener).unwrap());
    assert!(matches!(wire.receive(true), Err(WireError::Closed)), "it was told something");

    options.trusted_uids = uids("nobody, 54321");
    std::thread::scope(|scope| {
        let session = scope.spawn(|| Session::open(&options));
        let wire = Wire::new(accept(&listener).unwrap());
        assert_eq!(wire.receive(true).unwrap().unwrap().descriptors.len(), 2, "its memory, and a pipe");
        wire.send(&Reply::Refused("it is enough".into()).encode(1), &[], true).unwrap();
        let error = session.join().unwrap().unwrap_err();
        assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    });
}

/// As one that is stopped: the kernel lets its clients in.
#[test]
fn an_engine_that_does_not_answer_is_told_from_one_that_speaks_otherwise() {
    let (ours, _engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let memory = Memory::create("session", 1 << 20).unwrap();
    let life = pipe_with(PipeFlags::CLOEXEC).unwrap().0;
    let patience = Duration::from_millis(5);
    let error =
        line::greet(&Wire::new(ours), &memory, life.as_fd(), Path::new("/e.sock"), patience).unwrap_err();
    assert!(matches!(error, AttachError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("/e.sock has not answered within 5ms"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn who_finds_no_engine_is_told_what_starts_one_there() {
    let starts = |path: PathBuf| {
        AttachError::NoEngine { path, source: std::io::ErrorKind::NotFound.into() }.to_string()
    };
    assert!(starts(default_path()).ends_with("`isolane engine`"));
    assert!(starts(PathBuf::new()).ends_with("`isolane engine`"));
    assert!(starts("/x/e.sock".into()).ends_with("`isolane engine --socket /x/e.sock`"));
}

#[test]
fn an_engine_that_ends_while_a_session_is_opened_is_not_the_last_that_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { path: folder.path().join("sock"), starts: false, ..Options::default() };
    let listener = listener_of(geteuid().as_raw(), &options.path);
    let session = std::thread::spawn(move || Session::open(&options));
    let wire = Wire::new(accept(&listener).unwrap());
    wire.receive(true).unwrap().unwrap();
    let (cores, limits) = (vec![0], Limits::default());
    let welcome = Welcome { version: VERSION, session: 1, epoch: 1, cores, limits };
    wire.send(&Reply::Welcome(welcome).encode(1), &[], true).unwrap();
    assert!(matches!(heard(&wire).1, Request::OpenPort(_)));
    drop(wire);
    let next = Wire::new(in_time("nobody tries again", move || accept(&listener).unwrap()));
    next.receive(true).unwrap().unwrap();
    next.send(&Reply::Refused("it is enough".into()).encode(1), &[], true).unwrap();
    let error = session.join().unwrap().unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
}

/// The kernel keeps who has called `listen`.
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

/// A session, and its engine, which the test plays.
pub(crate) fn session() -> (Session, Wire) {
    let (ours, engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let line = Line::start(Wire::new(ours), 1).unwrap();
    (Session::of(&line, 32 << 20), Wire::new(engine))
}

/// What it does elsewhere, or a panic if that takes too long.
pub(crate) fn in_time<T: Send + 'static>(what: &str, does: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(does()));
    is_done.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what}"))
}

/// The next request.
fn heard(engine: &Wire) -> (u32, Request) {
    let asked = Request::decode(&engine.receive(true).unwrap().unwrap().bytes).unwrap();
    (asked.serial, asked.request)
}

/// Hears closes and answers each, as an engine that hears no more of who does not take its answers.
fn serve_closes(engine: &Wire) {
    let mut due: BTreeSet<u32> = (0..CLOSES).collect();
    while !due.is_empty() {
        let (serial, request) = heard(engine);
        let Request::End { id, how: End::Close } = request else { panic!("{request:?}") };
        due.remove(&id);
        engine.send(&Reply::Ended { id }.encode(0), &[], true).unwrap();
        engine.send(&Reply::Done.encode(serial), &[], true).unwrap();
    }
}

/// More than the kernel keeps under way either way.
const CLOSES: u32 = 5000;

fn close_all(session: &Session) {
    (0..CLOSES).for_each(|id| session.close(id, session.take(1).unwrap()).unwrap());
}

/// Whether all of the memory is free, soon.
fn has_all_rooms(session: &Session) -> bool {
    let bytes = session.memory().bytes();
    (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        session.take(bytes).is_ok()
    })
}

#[test]
fn to_close_waits_for_no_engine_and_each_close_is_heard_in_the_end() {
    let (session, engine) = session();
    let closing = session.clone();
    in_time("it waits for the engine", move || close_all(&closing));
    assert!(session.take(session.memory().bytes()).is_err(), "what has not ended has its room");
    in_time("both wait for each other", move || serve_closes(&engine));
    assert!(has_all_rooms(&session), "rooms of what has ended did not go back");
}

#[test]
fn an_engine_that_is_new_hears_of_thousands_of_closes_though_it_answers_before_it_hears_more() {
    let (session, engine) = session();
    let closing = session.clone();
    in_time("it waits for the engine", move || close_all(&closing));
    in_time("both wait for each other", move || {
        (0..10).for_each(|_| drop(heard(&engine)));
        engine.send(&Reply::Restarted { epoch: 2 }.encode(0), &[], true).unwrap();
        serve_closes(&engine);
    });
    assert!(has_all_rooms(&session), "rooms of what has ended did not go back");
}

/// A closed stream whose peer takes nothing has the memory: without the engine's help there is none, for as long as the
/// peer lives.
#[test]
fn session_without_memory_asks_the_engine_to_abandon_closed_streams() {
    let (session, engine) = session();
    let bytes = session.memory().bytes();
    let room = session.take(bytes).unwrap();
    assert!(matches!(session.take(1), Err(AttachError::NoRoom { .. })));
    session.close(7, room).unwrap();
    assert_eq!(heard(&engine).1, Request::End { id: 7, how: End::Close }, "nothing was closed before");
    for _ in 0..3 {
        assert!(matches!(session.take(1), Err(AttachError::NoRoom { .. })));
    }
    assert_eq!(heard(&engine), (0, Request::Relieve));
    engine.send(&Reply::Ended { id: 7 }.encode(0), &[], true).unwrap();
    assert!(has_all_rooms(&session), "the memory is used up forever");
}

#[test]
fn a_close_after_the_end_holds_nothing() {
    let (session, engine) = session();
    drop(engine);
    let memory = session.memory().clone();
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(session.close(1, session.take(1).unwrap()), Err(AttachError::Over(_))));
    assert!(session.take(memory.bytes()).is_ok(), "its room did not go back");
}

/// As one does that has objects of the session left which still have bytes to send.
/// The engine still sends from the room of a stream that was closed before the session's end.
#[test]
fn room_keeps_its_bytes_after_session_end_until_engine_has_left() {
    let (mut session, engine) = session();
    let (life, engine_life) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    Arc::get_mut(&mut session.0).expect("nobody else has it").life = life;
    let room = Room::take(&session, 20 << 20).unwrap();
    let (offset, mut byte) = (room.offset(), [0]);
    session.memory().copy_in(offset, &[7]).unwrap();
    drop(engine);
    while session.check().is_ok() {
        std::thread::yield_now();
    }
    drop(room);
    session.memory().copy_out(offset, &mut byte).unwrap();
    assert_eq!(byte, [7], "the engine sends zeroes");
    assert!(Room::take(&session, 20 << 20).is_err(), "the engine sends what the next owner writes");
    drop(engine_life);
    assert!(session.is_left(Duration::ZERO));
    let room = Room::take(&session, 1 << 20).unwrap();
    let free = session.0.arena.lock().free_bytes();
    drop(room);
    assert_eq!(
        session.0.arena.lock().free_bytes(),
        free + (1 << 20),
        "room is lost though the engine has left"
    );
}

#[test]
fn an_engine_that_keeps_the_other_end_of_a_bell_keeps_nobody_asleep() {
    let (session, engine) = session();
    let opening = std::thread::spawn(move || session.open_queue(4).unwrap());
    let packet = engine.receive(true).unwrap().unwrap();
    let asked = Request::decode(&packet.bytes).unwrap();
    assert!(matches!(asked.request, Request::OpenQueue(_)), "{asked:?}");
    engine.send(&Reply::Done.encode(asked.serial), &[], true).unwrap();
    let mut queue = opening.join().unwrap();
    let waiting = std::thread::spawn(move || {
        let error = std::iter::repeat_with(|| queue.wait(None)).find_map(Result::err).unwrap();
        (queue, error)
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(engine);
    let (queue, error) = in_time("it sleeps through the end", move || waiting.join().unwrap());
    assert!(matches!(error, AttachError::Over(_)), "{error}");
    let mut watched = [PollFd::from_borrowed_fd(queue.end(), PollFlags::IN)];
    assert_eq!(poll(&mut watched, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1), "nobody is told");
    drop(packet.descriptors);
}

fn nothing() -> Request {
    Request::End { id: 1, how: End::Release }
}

#[test]
fn engine_that_does_not_answer_keeps_no_caller_waiting_forever() {
    let (ours, _engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let line = Line::with_patience(Wire::new(ours), 1, Duration::from_millis(20)).unwrap();
    let session = Session::of(&line, 1 << 20);
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let session = session.clone();
            std::thread::spawn(move || session.ask("a release", &nothing(), &[]).unwrap_err())
        })
        .collect();
    for caller in callers {
        let error = in_time("a caller waits forever", move || caller.join().unwrap());
        assert!(matches!(error, AttachError::Over(_)), "{error}");
        assert!(error.to_string().contains("the engine has not answered within"), "{error}");
    }
}

/// A target may be slow: whoever waits for its turn behind opens of volumes waits as long as those may take.
#[test]
fn slow_opens_do_not_end_the_session_of_who_waits_for_a_turn() {
    let (ours, engine) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let line = Line::with_patience(Wire::new(ours), 1, Duration::from_millis(20)).unwrap();
    let session = Session::of(&line, 1 << 20);
    let volume = Object::Volume { uri: "nvme://127.0.0.1/slow".into(), details: Vec::new() };
    for id in 0..ASKED_MAX as u32 {
        let open = Open { id, core: None, queue: None, object: volume.clone() };
        line.begin(&Request::Open(open), &[]).unwrap();
    }
    let asking = session.clone();
    let asker = std::thread::spawn(move || asking.ask("a release", &nothing(), &[]).unwrap_err());
    std::thread::sleep(Duration::from_millis(200));
    session.check().expect("the opens may still be answered");
    drop(engine);
    let error = in_time("the end of the engine is not heard", move || asker.join().unwrap());
    assert!(!error.to_string().contains("has not answered"), "{error}");
}
