//! Signals, and a stderr that nothing reads: neither stops nor ends a running server.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};

use isolane_attach::{Session, SessionOptions};

use super::{fail, kill, pattern, program, succeed, text};

/// Starts `isolane serve` with this stderr, and returns it with its URI.
fn serve(arguments: &[&str], stderr: impl Into<Stdio>) -> (Killed, String) {
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--mode", "sleep"]).args(arguments);
    let mut child = Killed(command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let uri = format!("nvme+tcp://{}", line.trim().strip_prefix("listening on ").unwrap());
    (child, uri)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a pipe that is full, so that each write to it blocks.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut file = File::from(OwnedFd::from(writer.try_clone().unwrap()));
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    for chunk in [4096, 1] {
        loop {
            match file.write(&vec![b'x'; chunk]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    rustix::fs::fcntl_setfl(&file, flags).unwrap();
    (reader, writer)
}

#[test]
fn serves_and_ends_while_stderr_is_not_read() {
    let (mut reader, writer) = full_pipe();
    let (mut server, uri) = serve(&["mem:1M", "--log-level", "debug"], writer);
    // More lines than the queue has.
    for _ in 0..30 {
        succeed(&["info", &uri]);
        kill(&server.0, "USR1");
    }
    succeed(&["bench", &uri, "--time", "10ms"]);
    kill(&server.0, "TERM");
    assert!(server.0.wait().unwrap().success());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    assert!(log.trim_start_matches('x').is_empty(), "{log}");
}

#[test]
fn serves_and_ends_without_a_reader_of_stderr() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut server, uri) = serve(&["mem:1M"], writer);
    drop(reader);
    for signal in ["USR1", "USR2", "PIPE"] {
        kill(&server.0, signal);
        succeed(&["info", &uri]);
    }
    kill(&server.0, "TERM");
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn hangup_shuts_down_cleanly() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (mut server, _) = serve(&["mem:1M"], writer);
    kill(&server.0, "HUP");
    assert!(server.0.wait().unwrap().success());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    assert!(log.contains("completing commands in flight"), "{log}");
}

#[test]
fn write_beyond_limit_of_file_sizes_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.img");
    File::create(&file).unwrap().set_len(8 << 20).unwrap();
    let limited = |arguments: &[&str]| {
        let mut command = std::process::Command::new("sh");
        // Blocks of 512 or 1,024 bytes, so 1 or 2 MiB.
        command.args(["-c", "ulimit -f 2048; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_isolane")]);
        command.args(arguments);
        command
    };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command =
        limited(&["serve", "--listen", "127.0.0.1:0", "--mode", "sleep", text(&file), "mem:1M"]);
    let mut server = Killed(command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap());
    drop(command);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let uri = format!("nvme+tcp://{}", line.trim().strip_prefix("listening on ").unwrap());

    let source = directory.path().join("source");
    std::fs::write(&source, pattern(8 << 20)).unwrap();
    let error = fail(&["copy", text(&source), &format!("{uri}?nsid=1"), "--quiet"]);
    assert!(error.contains("0/81h") || error.to_lowercase().contains("capacity exceeded"), "{error}");
    succeed(&["bench", &format!("{uri}?nsid=2"), "--rw", "write", "--time", "10ms"]);
    kill(&server.0, "TERM");
    assert!(server.0.wait().unwrap().success());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    assert!(log.contains("raise the limit of file sizes"), "{log}");

    let copy = directory.path().join("copy");
    let output = limited(&["copy", text(&source), text(&copy), "--quiet"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("raise the limit of file sizes"), "{output:?}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "no partial file is left");
}

#[test]
fn logs_one_json_object_per_line() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (mut server, uri) = serve(&["mem:1M", "--log-format", "json", "--log-level", "debug"], writer);
    succeed(&["info", &uri]);
    kill(&server.0, "TERM");
    assert!(server.0.wait().unwrap().success());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            line["time"].is_string() && line["level"].is_string() && line["message"].is_string(),
            "{line}"
        );
    }
    assert!(log.contains(r#""level":"info""#) && log.contains("has connected"), "{log}");
}

#[test]
fn logs_priorities_for_the_journal() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let metadata = log.as_file().metadata().unwrap();
    let mut command = program();
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    command.args(["serve", "mem:1M", "--listen", "0.0.0.0:0", "--mode", "sleep"]);
    let mut server = Killed(command.stdout(Stdio::piped()).stderr(log.reopen().unwrap()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill(&server.0, "TERM");
    assert!(server.0.wait().unwrap().success());
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(
        log.lines()
            .any(|line| line.starts_with("<4>") && line.contains("without authentication or encryption")),
        "{log}"
    );
    assert!(log.lines().all(|line| line.starts_with("<4>") || line.starts_with("<6>")), "{log}");
}

#[test]
fn engine_admits_while_stderr_is_not_read() {
    let (mut reader, writer) = full_pipe();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let mut command = program();
    command.args(["--log-level", "debug", "engine", "--mode", "sleep", "--socket", text(&socket)]);
    let mut engine = Killed(command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap());
    drop(command);
    let mut line = String::new();
    BufReader::new(engine.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    for _ in 0..20 {
        let options =
            SessionOptions { path: socket.clone(), spawn_engine: false, ..SessionOptions::default() };
        Session::open(&options).unwrap();
        kill(&engine.0, "USR1");
        kill(&engine.0, "USR2");
    }
    kill(&engine.0, "TERM");
    assert!(engine.0.wait().unwrap().success());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    assert!(log.trim_start_matches('x').is_empty(), "{log}");
}
