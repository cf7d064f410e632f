//! The control socket: its OpenAPI document, and answers to requests that the document describes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Server, text};

const NQN: &str = "nqn.2014-08.org.example:disks";

struct Target {
    _server: Server,
    directory: tempfile::TempDir,
}

fn start() -> Target {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("serve.sock");
    let file = directory.path().join("isolane.toml");
    let content = format!(
        "[server]\nmode = \"sleep\"\ncontrol-socket = \"{}\"\n[[port]]\nname = \"local\"\nlisten = \"127.0.0.1:0\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nports = [\"local\"]\nhosts = \"any\"\n\
         namespace = [{{ nsid = 1, volume = \"mem:1M\" }}]\n",
        socket.display()
    );
    std::fs::write(&file, content).unwrap();
    Target { _server: Server::start_alone(&["--config", text(&file)]), directory }
}

impl Target {
    fn socket(&self) -> PathBuf {
        self.directory.path().join("serve.sock")
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Response {
        send(&self.socket(), method, path, body)
    }
}

struct Response {
    status: u16,
    head: String,
    body: Value,
}

fn send(socket: &Path, method: &str, path: &str, body: &str) -> Response {
    let mut socket = UnixStream::connect(socket).unwrap();
    let length = body.len();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head: head.to_lowercase(), body: serde_json::from_str(body).unwrap_or_default() }
}

#[test]
fn document_describes_each_answer() {
    let target = start();
    let document = target.send("GET", "/v1/openapi.json", "").body;
    assert_eq!(document["openapi"], "3.1.0");
    let mut problems = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if path == "/v1/events/follow" {
            continue;
        }
        let named = path.replace("{nsid}", "999").replace("{nqn}", &NQN.replace(':', "%3A"));
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let Response { status, head, body } = target.send(&method, &named, "[]");
            let described = &operation["responses"][status.to_string()]["content"];
            let kind = if status < 400 { None } else { Some("application/problem+json") };
            if let Some(kind) = kind {
                assert!(
                    described[kind].is_object() && head.contains(kind),
                    "{method} {path}: {status} {body}"
                );
                assert_eq!(body["status"], status, "{method} {path}");
                assert!(body["title"] != "unknown path" && body["detail"] != "", "{method} {path}: {body}");
                problems += 1;
            }
            assert!(described.is_object(), "{method} {path}: {status} {body}");
        }
        let Response { status, head, body } = target.send("PATCH", &named, "");
        assert_eq!((status, &body["title"]), (405, &Value::from("wrong method")), "{path}");
        let allowed = head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let mut listed = methods.as_object().unwrap().keys();
        assert!(
            listed.all(|method| allowed.split(", ").any(|allowed| allowed == method)),
            "{path}: {allowed}"
        );
    }
    assert!(problems > 15, "{problems}");
    assert_eq!(target.send("GET", "/v1/other", "").body["title"], "unknown path");
    assert_eq!(target.send("GET", "/other", "").body["title"], "unknown path");
}

#[test]
fn names_in_paths_are_decoded() {
    let target = start();
    let path = format!("/v1/subsystems/{}/namespaces", NQN.replace(':', "%3a"));
    let added = target.send("POST", &path, "{\"volume\": \"null:1M\", \"runtime\": true}");
    assert_eq!((added.status, &added.body["nsid"]), (201, &Value::from(2)), "{}", added.body);
    let wrong = target.send("POST", &path, "{\"volume\": \"null:1M\", \"runtime\": 1}");
    assert_eq!((wrong.status, &wrong.body["detail"]), (400, &Value::from("runtime is true or false")));
    let unknown = target.send("POST", "/v1/subsystems/a%20b/namespaces", "{\"volume\": \"null:1M\"}");
    assert_eq!((unknown.status, &unknown.body["title"]), (404, &Value::from("unknown subsystem")));
}
