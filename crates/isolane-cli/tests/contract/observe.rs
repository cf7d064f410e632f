//! Commands that read the control socket of a target.

use std::path::PathBuf;

use crate::{Server, fail, succeed, text};

/// A target with load in its past.
struct Observed {
    _server: Server,
    socket: PathBuf,
    dir: tempfile::TempDir,
}

fn observed() -> Observed {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    let server = Server::start(&["mem:16M", "--control-socket", text(&socket)]);
    succeed(&["bench", &server.uri, "--rw", "randread", "--time", "100ms"]);
    Observed { _server: server, socket, dir }
}

/// Polls a command until its output contains a text. A core publishes slow operations after a second.
fn poll_until(arguments: &[&str], wanted: &str) -> String {
    loop {
        let output = succeed(arguments);
        if output.contains(wanted) {
            return output;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn lists_slow_operations_of_socket_and_file() {
    let observed = observed();
    let (socket, file) = (text(&observed.socket), observed.dir.path().join("ticket.json"));
    let lines = poll_until(&["slow", socket], " read 4.0 KiB ");
    assert!(lines.contains("; a closed connection cid 0x") && lines.contains(" core "), "{lines}");
    assert_eq!(succeed(&["snapshot", socket, "-o", text(&file)]), "");
    assert!(succeed(&["slow", "--from", text(&file)]).contains(" read 4.0 KiB "));
    let json = succeed(&["slow", "--from", text(&file), "--json"]);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["operation"], &first["volume"]), (&"read".into(), &0.into()));
}

#[test]
fn snapshot_has_the_operations_of_the_load() {
    let observed = observed();
    let text = succeed(&["snapshot", text(&observed.socket)]);
    let snapshot: isolane_observe::snapshot::Snapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(snapshot.program.name, "serve");
    let reads: u64 = snapshot.numbers.series.iter().map(|series| series.total.count()).sum();
    assert!(reads > 0 && snapshot.volumes.len() == 1, "{text}");
}

#[test]
fn socket_is_gone_after_the_end() {
    let Observed { _server: server, socket, dir } = observed();
    assert!(socket.exists());
    assert!(server.stop());
    assert!(!socket.exists());
    let error = fail(&["slow", text(&socket)]);
    assert!(error.starts_with("isolane: ") && error.contains("serve.sock"), "{error}");
    drop(dir);
}

#[test]
fn refuses_unusable_sockets() {
    let error = fail(&["serve", "mem:1M", "--listen", "127.0.0.1:0", "--control-socket", "/no/such/x.sock"]);
    assert!(error.contains("/no/such is not a directory"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"version":1,"volumes":[{"id":-1}]}"#).unwrap();
    let error = fail(&["slow", "--from", text(file.path())]);
    assert!(error.contains(": volumes[0].id: "), "{error}");
    let error = fail(&["slow", "nvme+tcp://127.0.0.1"]);
    assert!(error.contains("cannot read a target over the network"), "{error}");
}
