//! The engine program: kills, upgrades, stops, and starts on demand.
//!
//! Invariant: sessions survive the loss of an engine process, and end with their supervisor.

mod fork;
mod manage;
mod observe;
#[path = "../program/mod.rs"]
mod program;
mod upgrade;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use isolane_attach::stream::Stream;
use isolane_attach::{AttachError, Session, SessionOptions, Watcher};
use isolane_shm::testing;

use program::{Engine, until};

impl Engine {
    fn start(arguments: &[&str]) -> Engine {
        Engine::start_asleep(program(), arguments)
    }

    fn start_asleep(program: Command, arguments: &[&str]) -> Engine {
        Engine::start_by(program, &[&["--mode", "sleep"], arguments].concat())
    }

    fn attach(&self) -> Result<Session, AttachError> {
        Session::open(&SessionOptions {
            path: self.path(),
            memory_bytes: 4 << 20,
            spawn_engine: false,
            ..SessionOptions::default()
        })
    }

    fn signal(&self, signal: &str) {
        kill(self.supervisor.id(), signal);
    }
}

/// Events of a session.
#[derive(Default)]
struct Events {
    restarts: AtomicU64,
    ends: AtomicU64,
}

impl Watcher for Events {
    fn on_restart(&self, epoch: u64) {
        self.restarts.store(epoch, Ordering::Release);
    }
    fn on_close(&self) {
        self.ends.fetch_add(1, Ordering::Release);
    }
}

fn watched(session: &Session) -> Arc<Events> {
    let events = Arc::new(Events::default());
    let watcher: Weak<Events> = Arc::downgrade(&events);
    session.watch(watcher);
    events
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isolane"))
}

/// Copies a program in another process. A child of another test would briefly inherit a descriptor that is open for
/// writing, and the copy could not run in the meantime.
fn copy_to_run(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn is_gone(pid: u32) -> Option<()> {
    // A zombie has no executable.
    let is_alive = fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    (!is_alive).then_some(())
}

/// Checks that the engine opens queues and handles doorbells of a session.
fn is_served(session: &Session) {
    let queue = session.open_queue(16).unwrap();
    session.doorbells(0).ring(queue.id()).unwrap();
    drop(queue);
    session.check().unwrap();
}

#[test]
fn sessions_survive_repeated_engine_kills() {
    let engine = Engine::start(&[]);
    let sessions = [engine.attach().unwrap(), engine.attach().unwrap()];
    let events = sessions.each_ref().map(watched);
    let mut queue = sessions[0].open_queue(16).unwrap();
    for epoch in 2..6 {
        kill(engine.pid(), "KILL");
        // The requests can meet no engine or a dying one; the next engine completes them.
        sessions.iter().for_each(is_served);
        until("a restart is reported", || {
            (events[1].restarts.load(Ordering::Acquire) == epoch).then_some(())
        });
        assert_eq!(sessions[1].epoch(), epoch);
    }
    assert!(!queue.wait(Some(Duration::ZERO)).unwrap(), "the queue lost the other end of its bell");
    assert_eq!(events.map(|events| events.ends.load(Ordering::Acquire)), [0, 0]);
    let newcomer = engine.attach().unwrap();
    assert!(sessions.iter().all(|session| session.id() != newcomer.id()), "two sessions have one ID");
    assert!(engine.log().contains("engine died (signal: 9 (SIGKILL)), restarting"));
}

#[test]
fn restarted_engine_completes_pending_requests() {
    let engine = Engine::start(&[]);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let session = engine.attach().unwrap();
                // Ends once the fifth engine has completed a request.
                while session.epoch() < 5 {
                    is_served(&session);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..4 {
            let before = served.load(Ordering::Relaxed);
            until("the sessions are served", || (served.load(Ordering::Relaxed) > before + 20).then_some(()));
            let pid = engine.pid();
            kill(pid, "KILL");
            until("another engine", || (engine.pid() != pid).then_some(()));
        }
    });
}

#[test]
fn clients_attach_during_an_engine_kill() {
    let engine = Engine::start(&[]);
    for _ in 0..5 {
        let killer = std::thread::spawn({
            let pid = engine.pid();
            move || kill(pid, "KILL")
        });
        let session = engine.attach().unwrap_or_else(|error| panic!("{error}\n{}", engine.log()));
        killer.join().unwrap();
        is_served(&session);
    }
}

#[test]
fn releases_client_objects_after_an_engine_kill() {
    let engine = Engine::start(&["--max-clients", "2", "--max-notification-queues", "1"]);
    let (staying, leaving) = (engine.attach().unwrap(), engine.attach().unwrap());
    let _queue = staying.open_queue(16).unwrap();
    kill(engine.pid(), "KILL");
    drop(leaving);
    let _second = until("space for another client", || engine.attach().ok());
    let error = staying.open_queue(16).unwrap_err();
    assert!(
        error.to_string().contains("1 notification queues"),
        "the first queue is no longer counted: {error}"
    );
    assert!(matches!(engine.attach(), Err(AttachError::Refused { .. })));
}

#[test]
fn upgrade_starts_the_current_program() {
    let engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let events = watched(&session);
    let pid = engine.pid();
    engine.signal("HUP");
    until("the next engine has the session", || (events.restarts.load(Ordering::Acquire) == 2).then_some(()));
    assert_ne!(engine.pid(), pid);
    is_served(&session);
    assert!(!engine.log().contains("died"), "{}", engine.log());
}

#[test]
fn sigterm_stops_both_processes_and_sessions() {
    let mut engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let (events, pid) = (watched(&session), engine.pid());
    let mut queue = session.open_queue(16).unwrap();
    let sleeper = std::thread::spawn(move || queue.wait(None).unwrap_err());
    engine.signal("TERM");
    assert!(engine.supervisor.wait().unwrap().success(), "{}", engine.log());
    until("the engine exits", || is_gone(pid));
    until("the end is reported", || (events.ends.load(Ordering::Acquire) == 1).then_some(()));
    assert!(matches!(sleeper.join().unwrap(), AttachError::SessionClosed(_)));
    assert!(matches!(session.open_queue(4), Err(AttachError::SessionClosed(_))));
    assert!(!engine.path().exists(), "the socket remains");
    assert!(matches!(engine.attach(), Err(AttachError::NoEngine { .. })));
}

#[test]
fn supervisor_death_ends_engine_with_an_error() {
    let mut engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let (events, pid) = (watched(&session), engine.pid());
    engine.signal("KILL");
    engine.supervisor.wait().unwrap();
    until("the engine exits", || is_gone(pid));
    until("the end is reported", || (events.ends.load(Ordering::Acquire) == 1).then_some(()));
    assert!(matches!(session.check(), Err(AttachError::SessionClosed(_))));
    // Its files do not prevent another start.
    let mut again =
        program().args(["engine", "--socket"]).arg(engine.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(again.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on"));
    kill(again.id(), "TERM");
    assert!(again.wait().unwrap().success());
}

#[test]
fn sigusr1_prints_clients_and_objects() {
    let engine = Engine::start(&[]);
    let (session, pid) = (engine.attach().unwrap(), engine.pid());
    let _queue = session.open_queue(16).unwrap();
    let (socket, _peer) = testing::connection().unwrap();
    let _stream = Stream::adopt(&session, socket).unwrap();
    engine.signal("USR1");
    until("an overview", || engine.log().contains("MiB of memory").then_some(()));
    let (log, client) = (engine.log(), std::process::id());
    assert!(log.contains(&format!("engine 1, process {pid}: 1 sessions, of 256 at most\n")), "{log}");
    assert!(log.contains(&format!("session {}, client with pid {client} of user", session.id())), "{log}");
    assert!(log.contains(": 1 streams, 0 volumes, ") && log.contains(" queues, 4 MiB of memory"), "{log}");
    is_served(&session);
    assert_eq!(engine.pid(), pid);
}

#[test]
fn engine_ignores_signals_and_names_supervisor() {
    let engine = Engine::start(&[]);
    let (session, pid) = (engine.attach().unwrap(), engine.pid());
    for signal in ["HUP", "INT", "TERM", "USR1"] {
        let before = engine.log().len();
        kill(pid, signal);
        let text = format!("the supervisor (pid {})", engine.supervisor.id());
        until("a log line", || engine.log()[before..].contains(&text).then_some(()));
    }
    is_served(&session);
    assert_eq!((engine.pid(), session.epoch()), (pid, 1), "{}", engine.log());
}

#[test]
fn logs_start_clients_and_end() {
    let mut engine = Engine::start(&[]);
    let lock = fs::read_to_string(engine.dir.path().join("sock.lock")).unwrap();
    assert_eq!(lock, format!("{}\n", engine.supervisor.id()));
    let serves =
        format!("process {}, supervised by process {}; cores ", engine.pid(), engine.supervisor.id());
    until("a log line of the start", || engine.log().contains(&serves).then_some(()));
    assert!(engine.log().contains(", mode sleep"), "{}", engine.log());
    drop(engine.attach().unwrap());
    until("a log line of the client's end", || engine.log().contains("has left").then_some(()));
    assert!(engine.log().contains("has attached"), "{}", engine.log());
    engine.signal("TERM");
    assert!(engine.supervisor.wait().unwrap().success());
    let log = engine.log();
    assert!(log.contains("stop request, shutting the engine down"), "{log}");
    assert!(log.contains("engine has ended (exit status: 0)"), "{log}");
}

/// As in containers that share a directory: the kernel has no PID for the process of the other.
#[test]
fn serves_clients_of_other_pid_namespaces() {
    let mut program = Command::new("unshare");
    program.args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child"]);
    let can_unshare = Command::new("unshare").args(program.get_args()).arg("true").status();
    if !can_unshare.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: this user cannot create namespaces");
    }
    program.arg(env!("CARGO_BIN_EXE_isolane"));
    let engine = Engine::start_asleep(program, &[]);
    is_served(&engine.attach().unwrap());
}

/// A user that runs no other process of this machine.
const OTHER_UID: u32 = 54_321;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn allowed_users_can_write_to_the_socket() {
    let engine = Engine::start(&["--allow-uid", &OTHER_UID.to_string()]);
    assert_eq!(fs::metadata(engine.path()).unwrap().permissions().mode() & 0o777, 0o666);
    let warning =
        format!("user {OTHER_UID} is allowed to attach, but may not enter {}", engine.dir.path().display());
    assert!(engine.log().contains(&warning), "{}", engine.log());
    let closed = Engine::start(&[]);
    assert_eq!(fs::metadata(closed.path()).unwrap().permissions().mode() & 0o022, 0);
    assert!(!closed.log().contains("may not enter"), "{}", closed.log());
}

/// Runs again as processes of another user, with the socket in the variable.
#[test]
fn reports_inaccessible_socket_to_users() {
    if let Some(path) = std::env::var_os("ISOLANE_TEST_SOCKET") {
        let trusted_uids = vec![0];
        let options = SessionOptions {
            path: path.into(),
            memory_bytes: 4 << 20,
            trusted_uids,
            ..SessionOptions::default()
        };
        return Session::open(&options)
            .map_or_else(|error| println!("{error}"), |session| is_served(&session));
    }
    if !testing::can_be_user(OTHER_UID) {
        return eprintln!("skipped: this process cannot become user {OTHER_UID}; run it as root");
    }
    let (closed, open) = (Engine::start(&[]), Engine::start(&["--allow-uid", &OTHER_UID.to_string()]));
    let again = open.dir.path().join("again");
    copy_to_run(&std::env::current_exe().unwrap(), &again);
    set_mode(open.dir.path(), 0o755);
    let attach = |engine: &Engine| {
        let name = "reports_inaccessible_socket_to_users";
        let mut again = Command::new(&again);
        again.args(["--exact", name, "--nocapture"]).env("ISOLANE_TEST_SOCKET", engine.path()).uid(OTHER_UID);
        let output = again.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for mode in [0o700, 0o755] {
        set_mode(closed.dir.path(), mode);
        let text = attach(&closed);
        assert!(
            text.contains("Permission denied") && text.contains(&format!("--allow-uid {OTHER_UID}")),
            "{text}"
        );
        assert!(!text.contains("no engine listens"), "{text}");
    }
    let text = attach(&open);
    assert!(!text.contains("cannot"), "{text}\n{}", open.log());
}

#[test]
fn rejects_second_engine_on_the_same_socket() {
    let engine = Engine::start(&[]);
    let output = program().args(["engine", "--socket"]).arg(engine.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("an engine listens there"), "{text}");
    is_served(&engine.attach().unwrap());
}

#[test]
fn rejects_symbolic_links_as_lock_and_log() {
    for (name, background) in [("sock.lock", false), ("sock.log", true)] {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join(name)).unwrap();
        let mut engine = program();
        engine.args(["engine", "--idle-timeout", "1s", "--socket"]).arg(dir.path().join("sock"));
        let output = engine.args(background.then_some("--daemon")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name} is used");
        assert!(text.contains(name) && text.contains("is a symbolic link; remove it"), "{text}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
}

#[test]
fn rejects_invalid_values_with_a_hint() {
    for (option, value, remedy) in [
        ("--max-clients", "0", "write 1 or more"),
        ("--max-memory", "1", "write 4k or more"),
        ("--idle-timeout", "0s", "write 1s or more"),
        ("--spin", "3", "write for example 3us"),
        ("--allow-uid", "root", "write the output of `id -u root`"),
    ] {
        let output =
            program().args(["engine", "--socket", "/nowhere/at/all", option, value]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(option) && text.contains(remedy), "{text}");
    }
}

#[test]
fn accepts_a_range_of_cores() {
    let first = isolane_reactor::cpu::allowed().unwrap()[0];
    let engine = Engine::start(&["--cores", &format!("{first}-{first}")]);
    is_served(&engine.attach().unwrap());
}

#[test]
fn failed_start_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no").join("such").join("sock");
    let output = program().args(["engine", "--socket"]).arg(missing).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("create its directory"), "{text}");
    let output = program().args(["engine", "--cores", "100000"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("core 100000"), "{text}");
}

/// Several threads attach to a socket without an engine: only one starts an engine. Runs again as a process with the
/// program in the variable.
#[test]
fn starts_one_engine_for_concurrent_clients() {
    if std::env::var_os("ISOLANE_BIN") != Some(env!("CARGO_BIN_EXE_isolane").into()) {
        let name = "starts_one_engine_for_concurrent_clients";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name]).env("ISOLANE_BIN", env!("CARGO_BIN_EXE_isolane"));
        assert!(again.status().unwrap().success());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let options = SessionOptions {
        path: path.clone(),
        memory_bytes: 4 << 20,
        spawn_engine: true,
        ..SessionOptions::default()
    };
    let sessions: Vec<Session> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Session::open(&options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    sessions.iter().for_each(is_served);
    let mut ids: Vec<u32> = sessions.iter().map(Session::id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "more than one engine");
    let supervisor = supervisor_of(&path);
    kill(supervisor, "TERM");
    until("the engine exits", || is_gone(supervisor));
    assert!(!path.exists());
    assert!(sessions[0].open_queue(4).is_err());
}

/// Runs again as a process that blocks all signals and ignores some, as threads of the C library do.
#[test]
fn started_engine_unblocks_signals() {
    const NAME: &str = "started_engine_unblocks_signals";
    if std::env::var_os("ISOLANE_BIN") != Some(env!("CARGO_BIN_EXE_isolane").into()) {
        let blocks = ["--block-signal", "--ignore-signal=HUP,INT,TERM,USR1"];
        if !Command::new("env").args(blocks).arg("true").status().is_ok_and(|status| status.success()) {
            return eprintln!("skipped: `env` of this machine cannot block signals");
        }
        let mut again = Command::new("env");
        again.args(blocks).arg(std::env::current_exe().unwrap()).args(["--exact", NAME]);
        assert!(again.env("ISOLANE_BIN", env!("CARGO_BIN_EXE_isolane")).status().unwrap().success());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let options = SessionOptions {
        path: path.clone(),
        memory_bytes: 4 << 20,
        spawn_engine: true,
        ..SessionOptions::default()
    };
    let session = Session::open(&options).unwrap();
    let (supervisor, events) = (supervisor_of(&path), watched(&session));
    kill(supervisor, "HUP");
    until("SIGHUP replaces the engine", || (events.restarts.load(Ordering::Acquire) == 2).then_some(()));
    kill(supervisor, "USR1");
    let log = || fs::read_to_string(dir.path().join("sock.log")).unwrap();
    until("SIGUSR1 prints an overview", || log().contains("1 sessions, of 256 at most").then_some(()));
    kill(supervisor, "TERM");
    until("SIGTERM stops the supervisor", || is_gone(supervisor));
}

/// The process that listens on this socket, by its arguments.
fn supervisor_of(path: &Path) -> u32 {
    let listens = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        arguments.contains(&path.as_os_str().as_encoded_bytes())
            && arguments.contains(&b"--detached".as_slice())
            && !arguments.contains(&b"--supervised".as_slice())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(listens).expect("a supervisor")
}

#[test]
fn idle_engine_exits_and_removes_its_socket() {
    let mut engine = Engine::start(&["--idle-timeout", "300ms"]);
    let session = engine.attach().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    is_served(&session);
    drop(session);
    assert!(engine.supervisor.wait().unwrap().success());
    assert!(!engine.path().exists());
}
