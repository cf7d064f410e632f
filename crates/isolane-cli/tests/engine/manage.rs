//! `isolane engine status|stop|upgrade|logs`.

use super::*;

/// Runs a subcommand for the engine on `path`. Returns whether it succeeded, and its two outputs.
fn manage(action: &str, path: &Path) -> (bool, String, String) {
    let output = program().args(["engine", action, "--socket"]).arg(path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn manages_an_engine_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let (is_ok, _, error) = manage("status", &path);
    assert!(!is_ok && error.contains("no engine listens on"), "{error}");
    let mut start = program();
    start.args(["--log-level", "info", "engine", "--mode", "sleep", "--daemon", "--socket"]).arg(&path);
    assert!(start.stdout(Stdio::null()).status().unwrap().success());
    let options = SessionOptions {
        path: path.clone(),
        memory_bytes: 4 << 20,
        spawn_engine: false,
        ..SessionOptions::default()
    };
    let session = Session::open(&options).unwrap();

    let supervisor = fs::read_to_string(dir.path().join("sock.lock")).unwrap();
    let (is_ok, status, error) = manage("status", &path);
    assert!(is_ok && status.contains(&format!("supervisor: process {supervisor}")), "{status}{error}");
    assert!(status.contains("1 sessions, of ") && status.contains("4 MiB of memory"), "{status}");

    let events = watched(&session);
    let (is_ok, upgraded, error) = manage("upgrade", &path);
    assert!(is_ok && upgraded.starts_with("engine: process "), "{upgraded}{error}");
    until("the session continues", || (events.restarts.load(Ordering::Acquire) == 2).then_some(()));
    is_served(&session);

    let (is_ok, log, _) = manage("logs", &path);
    assert!(is_ok && log.contains("engine 2 serves") && log.contains("has attached"), "{log}");

    let (is_ok, stopped, error) = manage("stop", &path);
    assert!(is_ok && stopped.contains("has ended"), "{stopped}{error}");
    assert!(is_gone(supervisor.trim().parse().unwrap()).is_some());
    for action in ["status", "stop", "upgrade"] {
        let (is_ok, _, error) = manage(action, &path);
        assert!(!is_ok && error.contains("no engine listens on"), "{action}: {error}");
    }
}

/// As after a supervisor locks the file and before it writes its PID.
#[test]
fn reports_no_stale_pid_during_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("sock.lock");
    // A running process that is not a supervisor.
    fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
    let held = fs::File::open(&lock).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (is_ok, status, error) = manage("status", &dir.path().join("sock"));
    assert!(!is_ok && error.contains("no engine listens on"), "{status}{error}");
}

#[test]
fn manages_an_engine_without_a_log() {
    let mut engine = Engine::start(&[]);
    let (is_ok, status, error) = manage("status", &engine.path());
    assert!(is_ok && status.contains(&format!("engine: process {}\n", engine.pid())), "{status}{error}");
    let (is_ok, _, error) = manage("logs", &engine.path());
    assert!(!is_ok && error.contains("only an engine in the background has a log"), "{error}");
    assert!(manage("stop", &engine.path()).0);
    assert!(engine.supervisor.wait().unwrap().success());
}

#[test]
fn reports_the_cause_of_a_missing_engine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let (missing, foreign) = (dir.path().join("missing/sock"), dir.path().join("foreign"));
    for action in ["status", "stop"] {
        let (_, _, error) = manage(action, &file);
        assert!(error.contains("it is not a socket; name the socket of an engine"), "{error}");
        let (_, _, error) = manage(action, &missing);
        assert!(error.contains("/missing does not exist; start one with"), "{error}");
        let (_, _, error) = manage(action, Path::new("127.0.0.1:4420"));
        assert!(error.contains("looks like an address"), "{error}");
    }
    let lock = dir.path().join("foreign.lock");
    fs::write(&lock, "1\n").unwrap();
    if std::os::unix::fs::chown(&lock, Some(OTHER_UID), None).is_err() {
        return eprintln!("skipped: only root can change the owner");
    }
    let (is_ok, _, error) = manage("stop", &foreign);
    assert!(!is_ok && error.ends_with(&format!("; run as user {OTHER_UID}\n")), "{error}");
}
