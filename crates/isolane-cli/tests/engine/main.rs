//! The isolated engine as a program: it is killed, replaced, stopped and started on demand, and its clients
//! notice only what they should.

mod fork;
mod manage;
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
use isolane_attach::{AttachError, Options, Session, Watcher};
use isolane_ring::mock;

use program::{Engine, until};

impl Engine {
    fn start(arguments: &[&str]) -> Engine {
        Engine::start_asleep(program(), arguments)
    }

    fn start_asleep(program: Command, arguments: &[&str]) -> Engine {
        Engine::start_by(program, &[&["--mode", "sleep"], arguments].concat())
    }

    fn attach(&self) -> Result<Session, AttachError> {
        Session::open(&Options {
            path: self.path(),
            memory_bytes: 4 << 20,
            starts: false,
            ..Options::default()
        })
    }

    fn signal(&self, signal: &str) {
        kill(self.supervisor.id(), signal);
    }
}

/// What a session's watcher has heard.
#[derive(Default)]
struct Heard {
    restarts: AtomicU64,
    ends: AtomicU64,
}

impl Watcher for Heard {
    fn on_restarted(&self, epoch: u64) {
        self.restarts.store(epoch, Ordering::Release);
    }
    fn on_over(&self) {
        self.ends.fetch_add(1, Ordering::Release);
    }
}

fn watched(session: &Session) -> Arc<Heard> {
    let heard = Arc::new(Heard::default());
    let watcher: Weak<Heard> = Arc::downgrade(&heard);
    session.watch(watcher);
    heard
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isolane"))
}

/// By another process: what this one has open to write, each program that another test starts has for a moment,
/// too, and meanwhile nobody can run it.
fn copy_to_run(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn is_gone(pid: u32) -> Option<()> {
    // One that is dead but not waited for by its new parent has no files any more.
    let is_alive = fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    (!is_alive).then_some(())
}

/// A session is of use: queues can be opened and closed, and doorbells rung.
fn is_served(session: &Session) {
    let queue = session.open_queue(16).unwrap();
    session.port(0).tell(queue.id()).unwrap();
    drop(queue);
    session.check().unwrap();
}

#[test]
fn sessions_outlive_kill_9_of_the_engine_again_and_again() {
    let engine = Engine::start(&[]);
    let sessions = [engine.attach().unwrap(), engine.attach().unwrap()];
    let heard = sessions.each_ref().map(watched);
    let mut queue = sessions[0].open_queue(16).unwrap();
    for epoch in 2..6 {
        kill(engine.pid(), "KILL");
        // Asked of nobody, or of an engine that dies meanwhile; the next one answers.
        sessions.iter().for_each(is_served);
        until("a restart is told", || (heard[1].restarts.load(Ordering::Acquire) == epoch).then_some(()));
        assert_eq!(sessions[1].epoch(), epoch);
    }
    assert!(!queue.wait(Some(Duration::ZERO)).unwrap(), "the bell of a queue still has its other end");
    assert_eq!(heard.map(|heard| heard.ends.load(Ordering::Acquire)), [0, 0]);
    let newcomer = engine.attach().unwrap();
    assert!(sessions.iter().all(|session| session.id() != newcomer.id()), "an id was given twice");
    assert!(engine.log().contains("the engine has died (signal: 9 (SIGKILL)) and is started again"));
}

#[test]
fn requests_under_way_when_the_engine_is_killed_are_answered_by_the_next() {
    let engine = Engine::start(&[]);
    let asking = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let session = engine.attach().unwrap();
                // Until the fifth engine has answered as well.
                while session.epoch() < 5 {
                    is_served(&session);
                    asking.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..4 {
            let before = asking.load(Ordering::Relaxed);
            until("the sessions are served", || (asking.load(Ordering::Relaxed) > before + 20).then_some(()));
            let pid = engine.pid();
            kill(pid, "KILL");
            until("another engine", || (engine.pid() != pid).then_some(()));
        }
    });
}

#[test]
fn who_attaches_while_the_engine_is_killed_is_attached() {
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
fn what_a_client_had_is_gone_with_it_also_if_the_engine_was_killed_before() {
    let engine = Engine::start(&["--clients-max", "2", "--queues-max", "1"]);
    let (staying, leaving) = (engine.attach().unwrap(), engine.attach().unwrap());
    let _queue = staying.open_queue(16).unwrap();
    kill(engine.pid(), "KILL");
    drop(leaving);
    let _second = until("there is room for another", || engine.attach().ok());
    let error = staying.open_queue(16).unwrap_err();
    assert!(error.to_string().contains("1 notification queues"), "what it has is still counted: {error}");
    assert!(matches!(engine.attach(), Err(AttachError::Refused { .. })));
}

#[test]
fn an_upgrade_starts_the_program_that_is_there_then() {
    let engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let heard = watched(&session);
    let pid = engine.pid();
    engine.signal("HUP");
    until("the next engine has the session", || (heard.restarts.load(Ordering::Acquire) == 2).then_some(()));
    assert_ne!(engine.pid(), pid);
    is_served(&session);
    assert!(!engine.log().contains("has died"), "{}", engine.log());
}

#[test]
fn sigterm_ends_both_processes_and_tells_the_clients() {
    let mut engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let (heard, pid) = (watched(&session), engine.pid());
    let mut queue = session.open_queue(16).unwrap();
    let sleeper = std::thread::spawn(move || queue.wait(None).unwrap_err());
    engine.signal("TERM");
    assert!(engine.supervisor.wait().unwrap().success(), "{}", engine.log());
    until("the engine has ended, too", || is_gone(pid));
    until("the end is told", || (heard.ends.load(Ordering::Acquire) == 1).then_some(()));
    assert!(matches!(sleeper.join().unwrap(), AttachError::Over(_)));
    assert!(matches!(session.open_queue(4), Err(AttachError::Over(_))));
    assert!(!engine.path().exists(), "the socket is left");
    assert!(matches!(engine.attach(), Err(AttachError::NoEngine { .. })));
}

#[test]
fn the_engine_dies_with_its_supervisor_and_clients_get_an_error_instead_of_silence() {
    let mut engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let (heard, pid) = (watched(&session), engine.pid());
    engine.signal("KILL");
    engine.supervisor.wait().unwrap();
    until("the engine has ended, too", || is_gone(pid));
    until("the end is told", || (heard.ends.load(Ordering::Acquire) == 1).then_some(()));
    assert!(matches!(session.check(), Err(AttachError::Over(_))));
    // What it has left keeps nobody from starting another there.
    let mut again =
        program().args(["engine", "--socket"]).arg(engine.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(again.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on"));
    kill(again.id(), "TERM");
    assert!(again.wait().unwrap().success());
}

#[test]
fn sigusr1_prints_who_is_attached_and_what_they_have_and_nothing_ends() {
    let engine = Engine::start(&[]);
    let (session, pid) = (engine.attach().unwrap(), engine.pid());
    let _queue = session.open_queue(16).unwrap();
    let (socket, _peer) = mock::connection().unwrap();
    let _stream = Stream::adopt(&session, socket).unwrap();
    engine.signal("USR1");
    until("there is an overview", || engine.log().contains("MiB of memory").then_some(()));
    let (log, who) = (engine.log(), std::process::id());
    assert!(log.contains(&format!("engine 1, process {pid}: 1 sessions, of 256 at most\n")), "{log}");
    assert!(log.contains(&format!("session {}, the client of process {who} of user", session.id())), "{log}");
    assert!(log.contains(": 1 streams, 0 volumes, ") && log.contains(" queues, 4 MiB of memory"), "{log}");
    is_served(&session);
    assert_eq!(engine.pid(), pid);
}

#[test]
fn signals_that_come_to_the_engine_itself_end_nothing_and_the_log_says_whom_to_send_them_to() {
    let engine = Engine::start(&[]);
    let (session, pid) = (engine.attach().unwrap(), engine.pid());
    for signal in ["HUP", "INT", "TERM", "USR1"] {
        let before = engine.log().len();
        kill(pid, signal);
        let told = format!("its supervisor is process {}", engine.supervisor.id());
        until("the log says so", || engine.log()[before..].contains(&told).then_some(()));
    }
    is_served(&session);
    assert_eq!((engine.pid(), session.epoch()), (pid, 1), "{}", engine.log());
}

#[test]
fn the_log_says_what_serves_who_comes_and_goes_and_that_it_ends() {
    let mut engine = Engine::start(&[]);
    let lock = fs::read_to_string(engine.folder.path().join("sock.lock")).unwrap();
    assert_eq!(lock, format!("{}\n", engine.supervisor.id()));
    let serves =
        format!("process {}, supervised by process {}; cores ", engine.pid(), engine.supervisor.id());
    assert!(engine.log().contains(&serves) && engine.log().contains(", mode sleep"), "{}", engine.log());
    drop(engine.attach().unwrap());
    until("the client has left", || engine.log().contains("has left").then_some(()));
    assert!(engine.log().contains("has attached"), "{}", engine.log());
    engine.signal("TERM");
    assert!(engine.supervisor.wait().unwrap().success());
    let log = engine.log();
    assert!(log.contains("asked to end: the engine ends in order"), "{log}");
    assert!(log.contains("the engine has ended (exit status: 0)"), "{log}");
}

/// As in containers that share a folder: the kernel has no number for the other's process.
#[test]
fn a_client_in_another_namespace_of_processes_is_served() {
    let mut program = Command::new("unshare");
    program.args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child"]);
    let may_unshare = Command::new("unshare").args(program.get_args()).arg("true").status();
    if !may_unshare.is_ok_and(|status| status.success()) {
        return eprintln!("not tried: this machine lets nobody make namespaces");
    }
    program.arg(env!("CARGO_BIN_EXE_isolane"));
    let engine = Engine::start_asleep(program, &[]);
    is_served(&engine.attach().unwrap());
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn users_who_are_allowed_may_write_to_the_socket_and_the_log_says_if_they_cannot_come_to_it() {
    let engine = Engine::start(&["--allow-uid", "65534"]);
    assert_eq!(fs::metadata(engine.path()).unwrap().permissions().mode() & 0o777, 0o666);
    let warning =
        format!("user 65534 is allowed to attach, but may not enter {}", engine.folder.path().display());
    assert!(engine.log().contains(&warning), "{}", engine.log());
    let closed = Engine::start(&[]);
    assert_eq!(fs::metadata(closed.path()).unwrap().permissions().mode() & 0o022, 0, "for nobody else");
    assert!(!closed.log().contains("may not enter"), "{}", closed.log());
}

/// Runs once more as processes of another user, which find the socket by the variable.
#[test]
fn a_user_who_may_not_come_to_the_socket_is_not_told_that_nobody_listens() {
    if let Some(path) = std::env::var_os("ISOLANE_TEST_SOCKET") {
        let trusted_uids = vec![0];
        let options =
            Options { path: path.into(), memory_bytes: 4 << 20, trusted_uids, ..Options::default() };
        return Session::open(&options)
            .map_or_else(|error| println!("{error}"), |session| is_served(&session));
    }
    if !mock::can_be_user(65534) {
        return eprintln!("skipped: this process cannot become user 65534; run it as root");
    }
    let (closed, open) = (Engine::start(&[]), Engine::start(&["--allow-uid", "65534"]));
    let again = open.folder.path().join("again");
    copy_to_run(&std::env::current_exe().unwrap(), &again);
    set_mode(open.folder.path(), 0o755);
    let attach = |engine: &Engine| {
        let name = "a_user_who_may_not_come_to_the_socket_is_not_told_that_nobody_listens";
        let mut again = Command::new(&again);
        again.args(["--exact", name, "--nocapture"]).env("ISOLANE_TEST_SOCKET", engine.path()).uid(65534);
        let output = again.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for mode in [0o700, 0o755] {
        set_mode(closed.folder.path(), mode);
        let text = attach(&closed);
        assert!(text.contains("Permission denied") && text.contains("--allow-uid 65534"), "{text}");
        assert!(!text.contains("no engine listens"), "{text}");
    }
    let text = attach(&open);
    assert!(!text.contains("cannot"), "{text}\n{}", open.log());
}

#[test]
fn a_second_engine_on_the_same_socket_is_refused_and_the_first_goes_on() {
    let engine = Engine::start(&[]);
    let output = program().args(["engine", "--socket"]).arg(engine.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("an engine listens there"), "{text}");
    is_served(&engine.attach().unwrap());
}

#[test]
fn refuses_lock_and_log_behind_symbolic_links_and_keeps_their_targets() {
    for (name, background) in [("sock.lock", false), ("sock.log", true)] {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(name)).unwrap();
        let mut engine = program();
        engine.args(["engine", "--idle-max", "1s", "--socket"]).arg(folder.path().join("sock"));
        let output = engine.args(background.then_some("--background")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name} is used");
        assert!(text.contains(name) && text.contains("is a symbolic link; remove it"), "{text}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused_with_what_to_write_instead() {
    for (option, value, remedy) in [
        ("--clients-max", "0", "write 1 or more"),
        ("--memory-max", "1", "write 4k or more"),
        ("--idle-max", "0s", "write 1s or more"),
        ("--spin", "3", "write for example 3us"),
        ("--allow-uid", "root", "write what `id -u root` prints"),
    ] {
        let output =
            program().args(["engine", "--socket", "/nowhere/at/all", option, value]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(option) && text.contains(remedy), "{text}");
    }
}

#[test]
fn cores_may_be_given_as_a_range() {
    let first = isolane_reactor::core::usable().unwrap()[0];
    let engine = Engine::start(&["--cores", &format!("{first}-{first}")]);
    is_served(&engine.attach().unwrap());
}

#[test]
fn an_engine_that_cannot_start_says_why_once_and_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no").join("such").join("sock");
    let output = program().args(["engine", "--socket"]).arg(missing).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("make its folder"), "{text}");
    let output = program().args(["engine", "--cores", "100000"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("core 100000"), "{text}");
}

/// Attaches where nothing listens, from several threads at once: only one may start an engine. Runs once more as
/// a process that finds the program by the variable.
#[test]
fn an_engine_is_started_on_demand_once_for_all_who_ask_at_the_same_time() {
    if std::env::var_os("ISOLANE") != Some(env!("CARGO_BIN_EXE_isolane").into()) {
        let name = "an_engine_is_started_on_demand_once_for_all_who_ask_at_the_same_time";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name]).env("ISOLANE", env!("CARGO_BIN_EXE_isolane"));
        assert!(again.status().unwrap().success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let options = Options { path: path.clone(), memory_bytes: 4 << 20, starts: true, ..Options::default() };
    let sessions: Vec<Session> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Session::open(&options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    sessions.iter().for_each(is_served);
    let mut ids: Vec<u32> = sessions.iter().map(Session::id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "they are attached to the same engine");
    let supervisor = supervisor_of(&path);
    kill(supervisor, "TERM");
    until("the engine ends", || is_gone(supervisor));
    assert!(!path.exists());
    assert!(sessions[0].open_queue(4).is_err());
}

/// Runs once more as a process that blocks all signals and ignores some, as the C library's threads do.
#[test]
fn engine_started_by_program_that_blocks_all_signals_obeys_them() {
    const NAME: &str = "engine_started_by_program_that_blocks_all_signals_obeys_them";
    if std::env::var_os("ISOLANE") != Some(env!("CARGO_BIN_EXE_isolane").into()) {
        let blocks = ["--block-signal", "--ignore-signal=HUP,INT,TERM,USR1"];
        if !Command::new("env").args(blocks).arg("true").status().is_ok_and(|status| status.success()) {
            return eprintln!("not tried: `env` of this machine cannot block signals");
        }
        let mut again = Command::new("env");
        again.args(blocks).arg(std::env::current_exe().unwrap()).args(["--exact", NAME]);
        assert!(again.env("ISOLANE", env!("CARGO_BIN_EXE_isolane")).status().unwrap().success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let options = Options { path: path.clone(), memory_bytes: 4 << 20, starts: true, ..Options::default() };
    let session = Session::open(&options).unwrap();
    let (supervisor, heard) = (supervisor_of(&path), watched(&session));
    kill(supervisor, "HUP");
    until("SIGHUP replaces the engine", || (heard.restarts.load(Ordering::Acquire) == 2).then_some(()));
    kill(supervisor, "USR1");
    let log = || fs::read_to_string(folder.path().join("sock.log")).unwrap();
    until("SIGUSR1 prints an overview", || log().contains("1 sessions, of 256 at most").then_some(()));
    kill(supervisor, "TERM");
    until("SIGTERM ends the supervisor", || is_gone(supervisor));
}

/// The process that listens on this socket, by its arguments.
fn supervisor_of(path: &Path) -> u32 {
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        arguments.contains(&path.as_os_str().as_encoded_bytes())
            && arguments.contains(&b"--detached".as_slice())
            && !arguments.contains(&b"--supervised".as_slice())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_it).expect("it runs")
}

#[test]
fn an_engine_that_nobody_wants_for_a_while_ends_and_leaves_no_socket() {
    let mut engine = Engine::start(&["--idle-max", "300ms"]);
    let session = engine.attach().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    is_served(&session);
    drop(session);
    assert!(engine.supervisor.wait().unwrap().success());
    assert!(!engine.path().exists());
}
