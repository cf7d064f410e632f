use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use isolane_observe::snapshot::{Snapshot, VERSION};
use serde_json::{Value, json};

use super::clients::MAX_CLIENTS;
use super::server::MAX_REQUEST;
use super::*;
use crate::program::{Program, Reply, Request};
use crate::source::{Parts, Source, execute};

fn snapshot() -> Snapshot {
    Snapshot { version: VERSION, at_unix_ms: 7, ..Snapshot::default() }
}

/// Reads a document, without the readings of the system.
fn read(source: &Source, parts: Parts) -> Result<Snapshot, String> {
    let mut snapshot = source.read(parts).map_err(|error| error.to_string())?;
    snapshot.numbers.counters.clear();
    Ok(snapshot)
}

fn start_with(listeners: &Listeners, program: impl Fn() -> Snapshot + Send + Sync + 'static) -> Control {
    start(listeners, Arc::new(Document::new(Arc::new(program), Vec::new()).unwrap())).unwrap()
}

struct Running {
    control: Control,
    dir: tempfile::TempDir,
}

fn running(program: impl Fn() -> Snapshot + Send + Sync + 'static) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir::socket_path(dir.path(), "serve");
    let listeners =
        Listeners { socket: Some(socket), metrics: Some("127.0.0.1:0".parse().unwrap()), setting: "" };
    Running { control: start_with(&listeners, program), dir }
}

impl Running {
    fn socket(&self) -> &Path {
        self.control.socket().unwrap()
    }

    /// Returns the response to a request over TCP.
    fn exchange(&self, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.control.metrics().unwrap()).unwrap();
        // The server can close before it has read all.
        let _ = socket.write_all(request);
        let mut response = Vec::new();
        let _ = socket.read_to_end(&mut response);
        String::from_utf8_lossy(&response).into_owned()
    }

    fn get(&self, target: &str) -> String {
        self.exchange(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }
}

#[test]
fn serves_the_snapshot_on_both_listeners() {
    let running = running(snapshot);
    let source = Source::Socket(running.socket().to_owned());
    assert_eq!(read(&source, Parts::All).unwrap(), snapshot());
    assert_eq!(read(&source, Parts::Now).unwrap(), snapshot());
    let response = running.get("/snapshot.json");
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("\"at_unix_ms\":7"),
        "{response}"
    );
    assert!(running.get("/healthz").ends_with("\r\n\r\nok\n"));
}

#[test]
fn metrics_have_the_accepted_format() {
    let running = running(snapshot);
    let text = running.get("/metrics");
    assert!(text.contains("\r\ncontent-type: application/openmetrics-text;"), "{text}");
    assert!(text.contains("# TYPE isolane_uptime_seconds gauge\n") && text.ends_with("# EOF\n"), "{text}");
    let messages =
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {messages}\r\n\r\n");
    let binary = running.exchange(head.as_bytes());
    assert!(binary.contains("\r\ncontent-type: application/vnd.google.protobuf;"), "{binary}");
    assert!(binary.contains("isolane_uptime_seconds") && !binary.contains("# TYPE"), "{binary}");
}

#[test]
fn rejects_other_requests() {
    let running = running(snapshot);
    assert!(running.get("/other").starts_with("HTTP/1.1 404"));
    assert!(running.get("/../etc/passwd").starts_with("HTTP/1.1 404"));
    assert!(
        running.exchange(b"POST /healthz HTTP/1.1\r\nContent-Length: 9\r\n\r\n").starts_with("HTTP/1.1 405")
    );
    assert!(running.exchange(b"\x16\x03\x01 TLS\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_REQUEST));
    assert!(!running.exchange(long.as_bytes()).contains("200 OK"));
    assert!(running.get("/healthz").contains("200 OK"), "it serves others");
}

#[test]
fn socket_is_private_and_removed_at_the_end() {
    let Running { control, dir } = running(snapshot);
    let path = control.socket().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(control);
    assert!(!path.exists() && dir.path().exists());
}

#[test]
fn forked_child_removes_no_socket() {
    let running = running(snapshot);
    let path = running.socket().to_owned();
    drop(Control { socket: Some(path.clone()), metrics: None, process: std::process::id() + 1 });
    assert!(path.exists());
}

#[test]
fn replaces_a_dead_socket_of_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir::socket_path(dir.path(), "serve");
    drop(UnixListener::bind(&socket).unwrap());
    let _control = start_with(&at(socket), snapshot);
}

fn at(socket: PathBuf) -> Listeners {
    Listeners { socket: Some(socket), metrics: None, setting: "--control-socket" }
}

#[test]
fn unusable_paths_have_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error_at = |name: &str| {
        let document = Arc::new(Document::new(Arc::new(snapshot), Vec::new()).unwrap());
        start(&at(dir.path().join(name)), document).unwrap_err()
    };
    std::fs::write(dir.path().join("file"), "data").unwrap();
    let _control = start_with(&at(dir.path().join("live")), snapshot);
    for (name, reason) in [
        ("live", "another program listens there; stop it"),
        ("file", "the file is not a socket; remove it"),
        ("no/x", "does not exist; create it"),
        (&"x".repeat(108), "the path is longer than 107 bytes; shorten it"),
    ] {
        let error = error_at(name);
        let remedy = format!("{reason}, or choose another path with `--control-socket`");
        assert!(error.starts_with("cannot listen on /") && error.ends_with(&remedy), "{error}");
    }
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"data", "it is still there");
}

#[test]
fn slow_clients_keep_no_other_one_out() {
    let running = running(snapshot);
    let source = Source::Socket(running.socket().to_owned());
    let slow: Vec<UnixStream> = (0..2 * MAX_CLIENTS)
        .map(|at| {
            let mut client = UnixStream::connect(running.socket()).unwrap();
            // Some send nothing, some half a request, and some a request without its body.
            let part =
                ["", "GET /snaps", "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"][at % 3];
            // A client that was displaced cannot send.
            let _ = client.write_all(part.as_bytes());
            client
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(read(&source, Parts::Now).unwrap(), snapshot());
    }
    // The clients of the socket do not affect the other listener.
    assert!(running.get("/healthz").contains("200 OK"));
    drop(slow);
}

#[test]
fn panic_ends_one_request_only() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let running = running(move || {
        let first = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        assert!(!first, "a panic in a side thread");
        snapshot()
    });
    let source = Source::Socket(running.socket().to_owned());
    assert!(source.read(Parts::Now).is_err());
    assert_eq!(read(&source, Parts::Now).unwrap(), snapshot());
}

/// A program that returns each request, unless it names another path.
struct Echo;

impl Program for Echo {
    fn snapshot(&self) -> Snapshot {
        snapshot()
    }

    fn control(&self, request: &Request) -> Option<Reply> {
        let Request { method, path, body } = request;
        match path.as_str() {
            "/v1/echo" => Some(Reply::ok(json!({ "method": method, "bytes": body.len() }))),
            "/v1/full" => Some(Reply::problem(409, "full", "no space; free some")),
            "/v1/panic" => panic!("a fault of the program"),
            _ => None,
        }
    }
}

#[test]
fn program_executes_requests_of_the_control_socket_only() {
    let dir = tempfile::tempdir().unwrap();
    let listeners = Listeners {
        socket: Some(dir.path().join("serve-1.sock")),
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        setting: "",
    };
    let document = Arc::new(Document::new(Arc::new(Echo), Vec::new()).unwrap());
    let running = Running { control: start(&listeners, Arc::clone(&document)).unwrap(), dir };
    let call = |path: &str, body: &Value| execute(running.socket(), "POST", path, body);
    assert_eq!(call("/v1/echo", &Value::Null).unwrap(), json!({ "method": "POST", "bytes": 0 }));
    let text = "x".repeat(8 << 20);
    assert_eq!(call("/v1/echo", &json!(text)).unwrap()["bytes"], text.len() + 2);
    assert_eq!(call("/v1/full", &Value::Null).unwrap_err(), "no space; free some");
    assert!(call("/v1/panic", &Value::Null).unwrap_err().contains("see its log"));
    assert!(call("/v1/none", &Value::Null).unwrap_err().contains("no such path"));
    let long = call("/v1/echo", &json!("x".repeat(commands::MAX_BODY)));
    assert!(long.unwrap_err().contains("shorten it"));
    assert!(running.get("/v1/echo").starts_with("HTTP/1.1 404"), "not for readers of metrics");

    document.detach();
    assert!(call("/v1/echo", &Value::Null).unwrap_err().contains("is stopping"));
}
