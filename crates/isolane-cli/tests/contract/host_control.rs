//! `ISOLANE_CONTROL`: the control socket of a command that uses volumes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage::Side;

use super::{Server, kill, program, run, succeed, text};

/// A command with a control socket.
pub(super) struct Observed {
    child: Child,
    pub(super) socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Observed {
    pub(super) fn start(arguments: &[&str]) -> Observed {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x.sock");
        let mut command = program();
        command.args(arguments).env("ISOLANE_CONTROL", &socket).stdin(Stdio::piped()).stdout(Stdio::null());
        Observed { child: command.spawn().unwrap(), socket, _dir: dir }
    }

    /// Reads the socket until the snapshot meets a condition.
    pub(super) fn until(&mut self, is_met: impl Fn(&Snapshot) -> bool) -> Snapshot {
        loop {
            assert!(self.child.try_wait().unwrap().is_none(), "the command has ended");
            let output = run(&["snapshot", text(&self.socket)]);
            let snapshot: Option<Snapshot> = serde_json::from_slice(&output.stdout).ok();
            if let Some(snapshot) = snapshot.filter(&is_met) {
                return snapshot;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn end(mut self, signal: &str) -> Option<i32> {
        kill(&self.child, signal);
        // `wait` closes it, and a copy can end with its input before it handles the signal.
        let _input = self.child.stdin.take();
        let status = self.child.wait().unwrap();
        assert!(!self.socket.exists(), "{signal}");
        status.code()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn operations(snapshot: &Snapshot) -> u64 {
    snapshot.numbers.series.iter().map(|series| series.total.count()).sum()
}

#[test]
fn bench_shows_its_stages_while_it_runs() {
    let server = Server::start(&["delay:1ms:mem:4M", "--control-socket", "off"]);
    for more in [&["--depth", "8"][..], &["--threads", "2", "--depth", "8", "--core", "0"]] {
        let load = ["bench", &server.uri, "--rw", "randread", "--mode", "sleep", "--time", "10m"];
        let mut bench = Observed::start(&[&load[..], more].concat());
        let snapshot = bench.until(|snapshot| operations(snapshot) >= 200 && !snapshot.steps.is_empty());
        assert_eq!((&*snapshot.program.name, snapshot.program.pid), ("bench", bench.child.id()));
        assert!(snapshot.numbers.series.iter().all(|series| series.side == Side::Host));
        let socket = text(&bench.socket).to_owned();
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let top = succeed(&["top", &socket, "--once"]);
        assert!(top.contains(" wait"), "{top}");
        let verdict = loop {
            let verdict = succeed(&["explain", &socket, "--window", "60s"]);
            if verdict.contains(" operations on 1 volume") {
                break verdict;
            }
        };
        assert!(verdict.contains("the program has run for only "), "{verdict}");
        loop {
            let slow = succeed(&["slow", &socket]);
            if slow.contains(" read 4.0 KiB ") {
                assert!(slow.contains(" wait "), "{slow}");
                break;
            }
        }
        assert_eq!(bench.end("INT"), Some(0), "{more:?}");
    }
}

#[test]
fn copy_shows_both_volumes() {
    let server = Server::start(&["delay:20ms:mem:64M", "delay:20ms:mem:64M"]);
    let (from, to) = (server.volume(1), server.volume(2));
    let mut copy = Observed::start(&["copy", "--quiet", &from, &to]);
    let snapshot = copy.until(|snapshot| operations(snapshot) > 0 && snapshot.volumes.len() == 2);
    let nsids: Vec<_> = snapshot.volumes.iter().map(|volume| volume.nsid).collect();
    assert_eq!((&*snapshot.program.name, nsids), ("copy", vec![Some(1), Some(2)]));
}

#[test]
fn interrupted_copy_removes_its_socket() {
    let server = Server::start(&["mem:1M"]);
    let mut copy = Observed::start(&["copy", "-", &server.uri]);
    copy.until(|snapshot| snapshot.volumes.len() == 1);
    assert_eq!(copy.end("TERM"), Some(143));
}

/// Runs a command that fails with a variable, and returns its error.
fn fail_at(socket: &Path, uri: &str) -> String {
    let output =
        program().args(["bench", uri, "--time", "10ms"]).env("ISOLANE_CONTROL", socket).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{socket:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn unusable_paths_fail_with_a_remedy() {
    let server = Server::start(&["mem:1M"]);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "data").unwrap();
    let _live = UnixListener::bind(path("live")).unwrap();
    for (name, reason) in [
        ("missing/x.sock", "missing does not exist; create it"),
        ("file/x.sock", "file is not a directory; remove it"),
        ("file", "the file is not a socket; remove it"),
        ("live", "another program listens there; stop it"),
        (&"x".repeat(108), "the path is longer than 107 bytes; shorten it"),
    ] {
        let error = fail_at(&path(name), &server.uri);
        let end = format!("{reason}, or choose another path with `ISOLANE_CONTROL`\n");
        assert!(error.starts_with("isolane: ISOLANE_CONTROL: cannot listen on /"), "{error}");
        assert!(error.ends_with(&end), "{error}");
    }
    assert_eq!(fs::read(path("file")).unwrap(), b"data");
    drop(UnixListener::bind(path("dead")).unwrap());
    let mut command = program();
    let replaced =
        command.args(["bench", &server.uri, "--time", "10ms"]).env("ISOLANE_CONTROL", path("dead"));
    assert!(replaced.output().unwrap().status.success() && !path("dead").exists());
}

/// Copies a program to a directory that all users can enter, with its set-user-ID bit.
fn set_user_id_copy(program: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join(program.file_name().unwrap());
    fs::copy(program, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    copy
}

#[test]
fn set_user_id_program_ignores_the_variable() {
    const NOBODY: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run_as_nobody = |program: &Path| {
        let mut command = Command::new(set_user_id_copy(program, dir.path()));
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let id = run_as_nobody(Path::new("/usr/bin/id")).arg("-u").output();
    if !id.is_ok_and(|id| id.stdout == b"0\n") {
        return eprintln!("skipped: needs root and a file system with set-user-ID programs");
    }
    let server = Server::start(&["mem:1M"]);
    let socket = dir.path().join("x.sock");
    let output = run_as_nobody(Path::new(env!("CARGO_BIN_EXE_isolane")))
        .args(["bench", &server.uri, "--time", "10ms"])
        .env("ISOLANE_CONTROL", &socket)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !socket.exists(), "{error}");
    assert!(error.contains("ISOLANE_CONTROL ignored: ") && error.lines().count() == 1, "{error}");
}
