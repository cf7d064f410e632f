//! An engine at the limits of the system.
//!
//! Invariant: it refuses new objects with a reason, and keeps the existing ones.

mod program;
mod stop;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use isolane_attach::stream::{Interest, Poller, Stream, StreamOptions};
use isolane_attach::{AttachError, Session, SessionOptions};
use isolane_shm::testing;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use program::{Engine, until};
use stop::stop;

impl Engine {
    /// Starts an engine with a limit of descriptors.
    fn start(descriptors: u32) -> Engine {
        let mut program = Command::new("sh");
        program.args(["-c", "ulimit -n \"$0\"; exec \"$@\"", &descriptors.to_string()]);
        program.arg(env!("CARGO_BIN_EXE_isolane"));
        Engine::start_by(program, &["--mode", "sleep"])
    }

    fn try_attach(&self) -> Result<Session, AttachError> {
        Session::open(&SessionOptions {
            path: self.path(),
            memory_bytes: 64 << 20,
            spawn_engine: false,
            ..SessionOptions::default()
        })
    }

    fn attach(&self) -> Session {
        self.try_attach().unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Limits the supervisor to its current descriptors and `more` others.
    fn limit_supervisor(&self, more: usize) {
        let pid = self.supervisor.id();
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let used: Vec<usize> =
            entries.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
        // Inherited descriptors can have high numbers.
        let limit = (0..).filter(|number| !used.contains(number)).nth(more).unwrap();
        let status =
            Command::new("prlimit").args([format!("--nofile={limit}"), format!("--pid={pid}")]).status();
        assert!(status.unwrap().success());
    }
}

/// Checks that a stream transfers data in both directions.
fn is_alive((stream, peer): &mut (Stream, TcpStream)) {
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    for byte in [1, 2] {
        let mut received = [0];
        stream.write_all(&[byte]).unwrap();
        peer.read_exact(&mut received).unwrap();
        peer.write_all(&received).unwrap();
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, [byte]);
    }
}

/// Opens streams up to the limit; returns them and the error of the next one.
fn fill(session: &Session) -> (Vec<(Stream, TcpStream)>, AttachError) {
    let mut streams = Vec::new();
    loop {
        let (socket, peer) = testing::connection().unwrap();
        match Stream::adopt(session, socket) {
            Ok(stream) => streams.push((stream, peer)),
            Err(error) => return (streams, error.into()),
        }
        assert!(streams.len() < 1000, "there is no limit");
    }
}

fn names_the_remedy(error: &AttachError) {
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

/// Checks that streams work, also after a restart, and that closed streams make space for others.
fn keeps_serving(engine: &Engine, session: &Session, mut streams: Vec<(Stream, TcpStream)>) {
    streams.iter_mut().for_each(is_alive);
    let (_, error) = fill(session);
    names_the_remedy(&error);
    let epoch = session.epoch();
    let status = Command::new("kill").args(["-9", &engine.pid().to_string()]).status();
    assert!(status.unwrap().success());
    until("the next engine", || (session.epoch() > epoch).then_some(()));
    session.check().unwrap_or_else(|error| panic!("{error}\n{}", engine.log()));
    streams.iter_mut().for_each(is_alive);
    drop(streams.split_off(1));
    let (mut more, _) =
        until("space for another", || Some(fill(session)).filter(|(more, _)| !more.is_empty()));
    more.iter_mut().for_each(is_alive);
    streams.iter_mut().for_each(is_alive);
    assert_eq!(session.epoch(), epoch + 1, "{}", engine.log());
}

#[test]
fn engine_out_of_fds_keeps_its_objects() {
    let engine = Engine::start(64);
    let (session, pid) = (engine.attach(), engine.pid());
    let (streams, error) = fill(&session);
    names_the_remedy(&error);
    assert!(!streams.is_empty());
    assert_eq!(engine.pid(), pid, "{}", engine.log());
    until("a line about the limit", || engine.log().contains("ulimit -n").then_some(()));
    keeps_serving(&engine, &session, streams);
}

#[test]
fn engine_out_of_fds_rejects_clients() {
    let engine = Engine::start(64);
    let pid = engine.pid();
    let mut sessions = Vec::new();
    // The engine closes unused descriptors with a delay: it is at its limit after two refusals in a row.
    let mut refused = 0;
    while refused < 2 {
        match engine.try_attach() {
            Ok(session) => {
                sessions.push(session);
                refused = 0;
            }
            Err(error) => {
                names_the_remedy(&error);
                refused += 1;
            }
        }
    }
    assert_eq!(engine.pid(), pid);
    sessions.iter().for_each(|session| session.check().unwrap());
    sessions.pop();
    until("space for another", || engine.try_attach().ok());
}

#[test]
fn supervisor_out_of_fds_keeps_engine() {
    let engine = Engine::start(256);
    let (session, pid) = (engine.attach(), engine.pid());
    engine.limit_supervisor(5);
    let (streams, error) = fill(&session);
    names_the_remedy(&error);
    assert!(!streams.is_empty());
    names_the_remedy(&engine.try_attach().unwrap_err());
    assert_eq!(engine.pid(), pid, "{}", engine.log());
    keeps_serving(&engine, &session, streams);
}

#[test]
fn dropped_clients_do_not_fill_the_log() {
    const CLIENTS: usize = 500;
    let engine = Engine::start(1000);
    for _ in 0..CLIENTS {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(engine.path()).unwrap()).unwrap();
        send(&socket, b"no message", SendFlags::empty()).unwrap();
        // The engine sends the reason and closes the connection.
        let mut bytes = [0; 2048];
        while recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap().0 > 0 {}
    }
    let lines = || engine.log().lines().filter(|line| line.contains("is dropped")).count();
    assert!((1..50).contains(&lines()), "{}", engine.log());
    let count = format!("{} more lines about clients of user", CLIENTS - lines());
    until("the others are counted", || engine.log().contains(&count).then_some(()));
    engine.attach();
}

/// Not a test: the application of the next test, in a separate process. Its rings are full in both directions, and its
/// notification queue is full.
#[test]
fn stopped_application() {
    let Ok(path) = std::env::var("ISOLANE_TEST_ENGINE") else { return };
    let options = SessionOptions {
        path: path.into(),
        memory_bytes: 64 << 20,
        spawn_engine: false,
        ..SessionOptions::default()
    };
    let session = Session::open(&options).unwrap();
    let poller = Poller::new(&session, 1).unwrap();
    let mut streams = Vec::new();
    for _ in 0..16 {
        let (socket, mut peer) = testing::connection().unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut stream = poller.adopt(socket, StreamOptions::default()).unwrap();
        stream.arm(Interest::Both).unwrap();
        while peer.write(&[1; 65_536]).is_ok() {}
        while stream.try_write(&[1; 65_536]).is_ok() {}
        streams.push((stream, peer));
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn stopped_application_does_not_block_others() {
    let mut engine = Engine::start(1000);
    let session = engine.attach();
    let (socket, peer) = testing::connection().unwrap();
    let mut before = (Stream::adopt(&session, socket).unwrap(), peer);
    let mut application = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stopped_application", "--nocapture"])
        .env("ISOLANE_TEST_ENGINE", engine.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(application.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("ready")));
    let signal = |signal: &str, pid: u32| {
        let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
        assert!(status.unwrap().success());
    };
    stop(application.id());
    for _ in 0..100 {
        is_alive(&mut before);
    }
    // Also after a restart, which the engine announces to all clients.
    signal("KILL", engine.pid());
    until("the next engine", || (session.epoch() > 1).then_some(()));
    is_alive(&mut before);
    let (socket, peer) = testing::connection().unwrap();
    is_alive(&mut (Stream::adopt(&engine.attach(), socket).unwrap(), peer));
    // The application does not block the stop of the engine.
    signal("TERM", engine.supervisor.id());
    assert!(engine.supervisor.wait().unwrap().success(), "{}", engine.log());
    application.kill().unwrap();
    application.wait().unwrap();
}

#[test]
fn rejects_unsuitable_socket_paths() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let long = dir.path().join("x".repeat(200)).join("sock");
    for (path, reason) in [(&file, "not a socket; choose another path"), (&long, "choose a shorter path")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isolane"));
        let output = command.args(["engine", "--socket"]).arg(path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(reason), "{text}");
    }
    let remaining: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(remaining, [file]);
}
