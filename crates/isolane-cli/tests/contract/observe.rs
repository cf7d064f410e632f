//! Commands that read the control socket of a target.

use std::io::{Read, Write};
use std::path::PathBuf;

use crate::{Server, fail, run, succeed, text};

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
    assert!(lines.contains(" cid 0x") && lines.contains(" core "), "{lines}");
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
fn explains_socket_and_file() {
    let observed = observed();
    let (socket, file) = (text(&observed.socket), observed.dir.path().join("ticket.json"));
    let verdict =
        poll_until(&["explain", socket, "--window", "60s"], "operations on 1 volume: half take less than ");
    assert!(verdict.contains("the program has run for only "), "{verdict}");
    succeed(&["snapshot", socket, "-o", text(&file)]);
    let json = succeed(&["explain", "--from", text(&file), "--window", "60s", "--json"]);
    let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(verdict["operations"].as_u64().unwrap() > 0 && verdict["findings"].is_array(), "{json}");
    let status = run(&["explain", "--from", text(&file), "--window", "60s", "--check"]).status.code();
    let found = !verdict["findings"].as_array().unwrap().is_empty();
    assert_eq!(status, Some(if found { 3 } else { 0 }), "{json}");
    let error = fail(&["explain", "--from", text(&file), "--window", "0.1s"]);
    assert_eq!(error, "isolane: --window 100ms: recorded steps have 1 s; use 1s or more\n");
}

#[test]
fn shows_the_topology_of_a_volume() {
    let observed = observed();
    let socket = text(&observed.socket);
    let topology = succeed(&["explain", socket, "--topology", "1"]);
    assert!(topology.starts_with("volume ") && topology.contains("\nreactor 0: "), "{topology}");
    let json = succeed(&["explain", socket, "--topology", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["nodes"][0]["kind"], "volume");
    let copy = tempfile::tempdir().unwrap();
    let missing = succeed(&["explain", socket, "--topology", "1", "--root", text(copy.path())]);
    assert!(missing.contains("not seen: "), "{missing}");
    let unknown = fail(&["explain", socket, "--topology", "no"]);
    let remedy = "isolane: no volume no; use a name, path, or namespace ID, as of one of these: mem:";
    assert!(unknown.starts_with(remedy), "{unknown}");
}

#[test]
fn explains_sampled_acknowledgments() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    let server = Server::start(&["mem:16M", "--acks", "1/10", "--control-socket", text(&socket)]);
    succeed(&["bench", &server.uri, "--rw", "randread", "--time", "100ms"]);
    let peer = "\nstage peer: nqn.";
    let verdict = poll_until(&["explain", text(&socket), "--window", "60s"], peer);
    assert!(verdict.contains(" sampled sends within "), "{verdict}");
}

#[test]
fn rejects_fractions_of_acknowledgments() {
    for wrong in ["0/5", "2/1", "1/0", "1/-1", "x", ""] {
        let error = fail(&["serve", "mem:1M", "--listen", "127.0.0.1:0", "--acks", wrong]);
        assert!(error.contains("'--acks <1/N|off>': write 1/N, as 1/1000, or off"), "{error}");
    }
    let off = fail(&["serve", "mem:1M", "--listen", "127.0.0.1:0", "--acks", "1/9", "--observe", "off"]);
    assert!(off.contains("--observe off records nothing; leave out --acks or --observe off"), "{off}");
}

#[test]
fn serves_metrics() {
    let server =
        Server::start_with_log("info", &["mem:16M", "--control-socket", "off", "--metrics", "127.0.0.1:0"]);
    succeed(&["bench", &server.uri, "--rw", "randread", "--time", "50ms"]);
    let log = std::fs::read_to_string(server.log.path()).unwrap();
    let address = log.split("http://").nth(1).unwrap().split("/metrics").next().unwrap();
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.contains("content-type: application/openmetrics-text"), "{response}");
    let counts = response.lines().filter(|line| line.starts_with("isolane_io_seconds_count{nsid=\"1\","));
    let labels = "side=\"target\",op=\"read\",size=\"4K\"} ";
    let reads = counts.filter_map(|line| Some(line.split_once(labels)?.1)).next().unwrap();
    assert!(reads.parse::<u64>().unwrap() > 0 && response.ends_with("# EOF\n"), "{response}");
    assert!(!log.contains("metrics are readable"), "{log}");
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
    assert!(error.contains("/no/such does not exist; create it"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"version":1,"volumes":[{"id":-1}]}"#).unwrap();
    let error = fail(&["slow", "--from", text(file.path())]);
    assert!(error.contains(": volumes[0].id: "), "{error}");
    for needs_steps in [&["heatmap", "-o", "x.svg"][..], &["explain", "--topology", "1"]] {
        let error = fail(&[needs_steps, &["nvme+tcp://127.0.0.1"]].concat());
        assert!(error.contains("cannot read a target over the network"), "{error}");
    }
}
