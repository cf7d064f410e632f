//! `isolane copy`: its results, reports, and errors.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Server, fail, kill, pattern, program, run, succeed, text};

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn rejects_file_names_that_look_like_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, [1; 512]).unwrap();
    for to in ["127.0.0.1:4440", "nvme+tcp:HOST", "localhost:4420"] {
        let output = program().current_dir(dir.path()).args(["copy", "from", to]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("nvme+tcp://HOST:PORT/NQN"), "{to}: {error}");
    }
    for to in ["rbd:disk1", "rbd:rbd/disk1", "mem:1M", "mirror:(a);(b)"] {
        let output = program().current_dir(dir.path()).args(["copy", "from", to]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(&format!("isolane serve {to}")), "{to}: {error}");
    }
    assert_eq!(names(dir.path()), ["from"]);
    let output = program().current_dir(dir.path()).args(["copy", "from", "./a:1"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Copies from a pipe that stays open, and sends a signal once data has arrived.
#[test]
fn interrupted_copy_keeps_the_old_file() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::write(&to, b"old").unwrap();
        let mut command = program();
        command.args(["copy", "-", text(&to)]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&pattern(1 << 20)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while names(dir.path()).len() < 2 {
            assert!(Instant::now() < deadline, "no temporary file");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error, format!("isolane: interrupted: {} is unchanged\n", text(&to)));
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(names(dir.path()), ["to"], "{signal}");
        assert_eq!(fs::read(&to).unwrap(), b"old");
    }
}

#[test]
fn interrupted_copy_reports_written_data() {
    let server = Server::start(&["mem:8M"]);
    for signal in ["INT", "TERM", "HUP"] {
        let mut command = program();
        command.args(["copy", "-", &server.uri]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // More than a pipe and one chunk hold, so the program has started to write.
        stdin.write_all(&pattern(4 << 20)).unwrap();
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with("isolane: interrupted: ") && error.lines().count() == 1, "{error}");
        assert!(error.ends_with(", which holds only part of the source\n"), "{error}");
    }
}

/// As `nohup` starts it.
#[test]
fn ignored_sighup_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" copy - \"$1\"", env!("CARGO_BIN_EXE_isolane"), text(&to)]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&pattern(1 << 20)).unwrap();
    kill(&child, "HUP");
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(&to).unwrap(), pattern(1 << 20));
}

#[test]
fn creates_no_file_among_devices() {
    let server = Server::start(&["mem:1M"]);
    for to in ["/dev/isolane-none", "/dev/../dev/isolane-none"] {
        let error = fail(&["copy", &server.uri, to]);
        assert!(error.contains("no such device; check its name with lsblk"), "{error}");
        assert!(!Path::new(to).exists(), "{to}");
    }
}

#[test]
fn failed_copy_leaves_nothing() {
    let server = Server::start(&["mem:1M"]);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let mut child = program().args(["copy", &server.uri, "-"]).stdout(Stdio::null()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fail(&["copy", text(dir.path()), text(&to)]).contains("name a file"));
    assert!(fail(&["copy", &server.uri, "/no/such/dir/to"]).contains("check the path"));
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn copy_with_failing_source_leaves_nothing() {
    let mut server = Server::start(&["null:1T"]);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    let mut command = program();
    command.args(["copy", &server.uri, text(&to), "--reconnect", "0"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while names(dir.path()).is_empty() {
        assert!(Instant::now() < deadline, "no temporary file");
        std::thread::sleep(Duration::from_millis(2));
    }
    server.child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("cannot read the volume at offset "), "{error}");
    assert!(error.contains("commands in flight, giving up"), "{error}");
    assert_eq!(names(dir.path()), [""; 0]);
}

/// The addresses differ, the namespace is the same.
#[test]
fn rejects_copy_of_a_volume_to_itself() {
    let server = Server::start(&["mem:1M", "mem:1M"]);
    let same = server.volume(1).replace("127.0.0.1", "localhost");
    assert!(fail(&["copy", &server.volume(1), &same]).contains("to itself"));
    succeed(&["copy", &server.volume(1), &server.volume(2)]);
}

#[test]
fn replaced_file_keeps_mode_and_link_target() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, link) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("link"));
    fs::write(&from, pattern(5000)).unwrap();
    fs::write(&to, b"old").unwrap();
    fs::set_permissions(&to, PermissionsExt::from_mode(0o640)).unwrap();
    symlink("to", &link).unwrap();
    succeed(&["copy", text(&from), text(&link), "--verify"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::read(&to).unwrap() == pattern(5000));
    assert_eq!(names(dir.path()), ["from", "link", "to"]);
}

#[test]
fn reports_copied_data_without_terminal() {
    let server = Server::start(&["mem:1M"]);
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, pattern(8192)).unwrap();
    let output = succeed(&["copy", text(&from), &server.uri, "--verify"]);
    assert!(output.starts_with("copied 8192 bytes (8.0 KiB) to nvme+tcp://"), "{output}");
    assert!(output.ends_with("; verified all of them\n"), "{output}");
    assert_eq!(succeed(&["copy", text(&from), &server.uri, "-q"]), "");
    let piped = run(&["copy", &server.uri, "-"]);
    assert_eq!(piped.stdout.len(), 1 << 20);
    assert!(String::from_utf8(piped.stderr).unwrap().starts_with("copied 1048576 bytes"));
}

#[test]
fn pads_the_last_block_of_files_and_pipes() {
    let server = Server::start(&["mem:1M"]);
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let bytes = pattern(300_001);
    fs::write(&from, &bytes).unwrap();
    let mut expected = bytes.clone();
    expected.resize(bytes.len().next_multiple_of(512), 0);
    let is_padded = |what: &str| {
        let volume = run(&["copy", &server.uri, "-"]).stdout;
        assert!(volume[..expected.len()] == expected[..], "{what}");
    };
    succeed(&["bench", &server.uri, "--rw", "write", "--bs", "64k", "--time", "20ms"]);
    let output = succeed(&["copy", text(&from), &server.uri, "--pad", "--verify"]);
    assert!(output.starts_with(&format!("copied {} bytes", expected.len())), "{output}");
    is_padded("a file");
    succeed(&["bench", &server.uri, "--rw", "write", "--bs", "64k", "--time", "20ms"]);
    let mut child =
        program().args(["copy", "-", &server.uri, "--pad"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    is_padded("a pipe");
    let to = dir.path().join("to");
    assert!(fail(&["copy", text(&from), text(&to), "--pad"]).contains("remove --pad"));
}

/// Needs a separate mount namespace.
#[test]
fn rejects_mount_points_before_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, pattern(5000)).unwrap();
    fs::write(&to, b"old").unwrap();
    let script = "mount --bind to to || exit 77; exec \"$0\" copy from to";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_isolane")]).current_dir(dir.path());
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || error.contains("unshare") {
        eprintln!("skipped: {error}");
        return;
    }
    assert!(!output.status.success() && error.contains("is a mount point"), "{error}");
    assert_eq!(fs::read(&to).unwrap(), b"old");
}
