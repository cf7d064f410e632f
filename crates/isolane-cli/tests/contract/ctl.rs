//! `isolane ctl`: changes of a running target.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Server, fail, program, succeed, text};

struct Controlled {
    server: Server,
    socket: PathBuf,
    dir: tempfile::TempDir,
}

fn controlled(volumes: &[&str]) -> Controlled {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    let server = Server::start(&[volumes, &["--control-socket", text(&socket)]].concat());
    Controlled { server, socket, dir }
}

impl Controlled {
    fn ctl(&self, arguments: &[&str]) -> String {
        succeed(&[&["ctl", "--socket", text(&self.socket)], arguments].concat())
    }

    fn refused(&self, arguments: &[&str]) -> String {
        fail(&[&["ctl", "--socket", text(&self.socket)], arguments].concat())
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.ctl(&["status", "--json"])).unwrap()
    }

    /// Returns the IDs of the namespaces.
    fn nsids(&self) -> Vec<u64> {
        let list = &self.status()["namespaces"];
        list.as_array().unwrap().iter().map(|namespace| namespace["nsid"].as_u64().unwrap()).collect()
    }
}

#[test]
fn volume_is_added_and_removed_while_the_target_runs() {
    let target = controlled(&["mem:16M"]);
    let (source, image) = (target.dir.path().join("source"), target.dir.path().join("b.img"));
    std::fs::write(&source, vec![7; 1 << 20]).unwrap();
    let volume = format!("{},size=1M", image.display());
    let added = target.ctl(&["namespace", "add", &volume]);
    assert_eq!(added, format!("namespace 2: {}, file, 1.0 MiB\n", image.display()));
    succeed(&["copy", text(&source), &target.server.volume(2)]);
    let status = target.ctl(&["status"]);
    assert!(
        status.starts_with("NSID  STATE") && status.contains("   2  online       1.0 MiB  /"),
        "{status}"
    );
    assert_eq!(target.nsids(), [1, 2]);

    let removed = target.ctl(&["namespace", "remove", "2"]);
    assert_eq!(removed, "namespace 2: removed; the volume before is closed\n");
    assert_eq!(std::fs::read(&image).unwrap(), vec![7; 1 << 20]);
    fail(&["bench", &target.server.volume(2), "--rw", "read"]);
    assert_eq!((target.nsids(), target.status()["closing"].as_array().unwrap().len()), (vec![1], 0));
    // The lock of the file is free.
    let again = target.ctl(&["namespace", "add", &format!("{volume},nsid=7")]);
    assert!(again.starts_with("namespace 7: "), "{again}");
    assert!(target.server.stop());
}

#[test]
fn memory_volumes_are_added_up() {
    let target = controlled(&["mem:1M"]);
    let refusal = target.refused(&["namespace", "add", "mem:100000T"]);
    let size = refusal.split("this machine has ").nth(1).unwrap_or_else(|| panic!("{refusal}"));
    let mut words = size.split([' ', ',']);
    let (number, unit) = (words.next().unwrap(), words.next().unwrap());
    let most = format!("mem:{}{unit}", (number.parse::<f64>().unwrap() * 0.7).ceil());
    target.ctl(&["namespace", "add", &most]);
    let refusal = target.refused(&["namespace", "add", &most]);
    assert!(refusal.contains("are served already") && refusal.contains("choose less"), "{refusal}");
    target.ctl(&["namespace", "replace", "2", &most]);
    target.ctl(&["namespace", "remove", "2"]);
    target.ctl(&["namespace", "add", &most]);
    assert!(target.server.stop());
}

#[test]
fn file_grows_and_is_protected() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let target = controlled(&[text(image.path())]);
    assert_eq!(target.ctl(&["namespace", "resize", "1", "2M"]), "namespace 1: 2.0 MiB\n");
    assert_eq!(image.as_file().metadata().unwrap().len(), 2 << 20);
    assert_eq!(target.status()["namespaces"][0]["bytes"], 2 << 20);
    image.as_file().set_len(3 << 20).unwrap();
    assert_eq!(target.ctl(&["namespace", "resize", "1"]), "namespace 1: 3.0 MiB\n");
    let error = target.refused(&["namespace", "resize", "1", "1M"]);
    assert!(error.contains("would shrink from 3M to 1M; allow that with --shrink"), "{error}");
    assert_eq!(target.ctl(&["namespace", "resize", "1", "1M", "--shrink"]), "namespace 1: 1.0 MiB\n");
    assert_eq!(target.ctl(&["namespace", "read-only", "1"]), "namespace 1: rejects writes\n");
    assert!(target.ctl(&["status"]).contains(", read-only\n"));
    assert_eq!(target.ctl(&["namespace", "read-only", "1", "--off"]), "namespace 1: accepts writes\n");
    let replaced = target.ctl(&["namespace", "replace", "1", "mem:4M"]);
    assert_eq!(replaced, "namespace 1: replaced; the volume before is closed\n");
    assert_eq!(target.status()["namespaces"][0]["volume"], "mem:4M");
}

#[test]
fn namespace_stalls_and_fails_on_purpose() {
    let target = controlled(&["mem:16M"]);
    let volume = target.server.volume(1);
    let state = || {
        let status = target.status()["namespaces"][0].clone();
        (status["state"].as_str().unwrap().to_owned(), status["fault"].clone())
    };
    let events = || target.ctl(&["events", "--json"]);
    assert_eq!(target.ctl(&["namespace", "fault", "1", "fail"]), "namespace 1: fails until `fault clear`\n");
    assert_eq!(state(), ("failed".to_owned(), "fail".into()));
    let status = target.ctl(&["status"]);
    assert!(
        status.contains("fails on purpose; end that with `isolane ctl namespace fault 1 clear`"),
        "{status}"
    );
    let source = target.dir.path().join("source");
    std::fs::write(&source, vec![7; 1 << 20]).unwrap();
    let error = fail(&["copy", text(&source), &volume]);
    assert!(error.contains("write"), "{error}");
    until(|| events().contains("\"namespace-failed\"").then_some(()));
    assert_eq!(target.ctl(&["namespace", "fault", "1", "clear"]), "namespace 1: has no fault\n");
    assert_eq!(state(), ("online".to_owned(), Value::Null));
    succeed(&["copy", text(&source), &volume]);

    target.ctl(&["namespace", "fault", "1", "stall"]);
    assert_eq!(state(), ("stalled".to_owned(), "stall".into()));
    let mut copy = program().args(["copy", text(&source), &volume]).spawn().unwrap();
    until(|| events().contains("\"namespace-stalled\"").then_some(()));
    let is_held = || target.status()["namespaces"][0]["oldest_command_ms"].as_u64().is_some();
    until(|| is_held().then_some(()));
    assert!(copy.try_wait().unwrap().is_none(), "the host waits");
    target.ctl(&["namespace", "fault", "1", "clear"]);
    assert!(copy.wait().unwrap().success(), "the host continues");
    for (arguments, reason) in [
        (&["namespace", "fault", "9", "stall"][..], "namespace 9 does not exist"),
        (&["namespace", "fault", "1", "burn"], "stall, fail, clear"),
    ] {
        let error = target.refused(arguments);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    assert!(target.server.stop());
}

#[test]
fn refused_changes_name_the_remedy_and_change_nothing() {
    let target = controlled(&["mem:16M"]);
    let before = target.status();
    for (arguments, reason) in [
        (&["namespace", "remove", "9"][..], "namespace 9 does not exist"),
        (&["namespace", "add", "mem:1M,nsid=1"], "namespace 1 exists; choose another ID"),
        (&["namespace", "add", "/no/such/file"], "cannot open /no/such/file: no such file; check the path"),
        (&["namespace", "add", "mem:16000000T"], "choose less"),
        (&["namespace", "replace", "1", "mem:1M"], "allow that with --shrink"),
        (&["namespace", "replace", "1", "mem:16M,nsid=2"], "another nsid than 1"),
        (&["namespace", "resize", "1", "32M"], "fixed size"),
        (&["namespace", "add", "mem:1M,nsid=5000"], "use a number from 1 to 1024"),
    ] {
        let error = target.refused(arguments);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    assert_eq!(target.status(), before);
    let error = fail(&["ctl", "status", "--socket", text(&target.dir.path().join("none"))]);
    assert!(error.contains("no such socket"), "{error}");
}

#[test]
fn file_is_closed_while_its_namespace_is_offline() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let target = controlled(&[&format!("{},size=1M", text(image.path())), "mem:16M"]);
    target.ctl(&["namespace", "resize", "1", "2M"]);
    let offline = target.ctl(&["namespace", "offline", "1"]);
    assert_eq!(offline, "namespace 1: offline; the volume before is closed\n");
    assert_eq!(target.status()["namespaces"][0]["state"], "offline");
    assert!(target.refused(&["namespace", "resize", "1"]).contains("bring it online first"));
    // Another target can serve the file now.
    assert!(Server::start(&[text(image.path())]).stop());
    let online = target.ctl(&["namespace", "online", "1"]);
    assert!(online.starts_with("namespace 1: /") && online.ends_with(", file, 2.0 MiB\n"), "{online}");
    assert!(target.refused(&["namespace", "online", "1"]).contains("reopen closes its volume first"));
    assert_eq!(target.ctl(&["namespace", "reopen", "1"]), online);
    assert_eq!(target.status()["namespaces"][0]["state"], "online");
    target.ctl(&["namespace", "read-only", "1"]);
    target.ctl(&["namespace", "reopen", "1"]);
    assert_eq!(target.status()["namespaces"][0]["read_only"], true, "as before");
    let error = target.refused(&["namespace", "offline", "2"]);
    assert!(error.contains("loses its data when it is closed"), "{error}");
    assert!(target.server.stop());
}

#[test]
fn connections_are_listed_and_ended() {
    let target = controlled(&["mem:16M"]);
    assert_eq!(target.ctl(&["connections"]).lines().count(), 1, "only the header");
    let name = "nqn.2014-08.org.example:loader";
    let load = ["bench", &target.server.uri, "--host-nqn", name, "--rw", "randread", "--mode", "sleep"];
    let mut load =
        program().args([&load[..], &["--time", "10m"]].concat()).stdout(Stdio::null()).spawn().unwrap();
    let list = || -> Vec<Value> {
        let list: Value = serde_json::from_str(&target.ctl(&["connections", "--json"])).unwrap();
        list["connections"].as_array().unwrap().clone()
    };
    let find = |qid: u64| list().into_iter().find(|one| one["qid"] == qid && one["state"] == "connected");
    let address = until(|| find(1).filter(|one| one["host"] == name))["address"].as_str().unwrap().to_owned();
    let text = target.ctl(&["connections"]);
    assert!(text.starts_with("ADDRESS") && text.contains(&format!("  {name}  nqn.")), "{text}");

    assert_eq!(
        target.ctl(&["disconnect", &address]),
        "1 connection disconnected; the host may connect again\n"
    );
    until(|| find(1).filter(|one| one["address"] != *address));
    let ended = target.ctl(&["disconnect", name]);
    assert_eq!(ended, "1 association disconnected; the host may connect again\n");
    until(|| find(1));
    assert!(load.try_wait().unwrap().is_none(), "the host has connected again");
    load.kill().unwrap();
    load.wait().unwrap();
    for (unknown, reason) in [
        ("127.0.0.1:1", "127.0.0.1:1 has no connection; see `isolane ctl connections`"),
        ("nqn.2014-08.org.example:nobody", "nobody has no connection"),
        ("no\nname", "control characters"),
    ] {
        let error = target.refused(&["disconnect", unknown]);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn events_are_kept_and_followed() {
    let target = controlled(&["mem:16M"]);
    let mut follower = program();
    follower.args(["ctl", "--socket", text(&target.socket), "events", "--follow", "--json"]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    // It follows once it gets an event.
    until(|| {
        succeed(&["info", &target.server.uri]);
        target.ctl(&["events"]).contains("  disconnected  ").then_some(())
    });
    let mut next = |kind: &str| loop {
        let event: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        if event["event"] == kind {
            return event;
        }
    };
    target.ctl(&["namespace", "add", "null:1M"]);
    assert_eq!(next("namespace-added")["nsid"], 2);
    target.ctl(&["namespace", "remove", "2"]);
    assert_eq!(next("namespace-removed")["volume"], "null:1M");
    let before = next_connected(&target, &mut next);
    assert!(before["host"].as_str().unwrap().starts_with("nqn."), "{before}");
    let text = target.ctl(&["events"]);
    assert!(text.contains("  connected  address=127.0.0.1:"), "{text}");
    follower.kill().unwrap();
    follower.wait().unwrap();
}

fn next_connected(target: &Controlled, next: &mut impl FnMut(&str) -> Value) -> Value {
    succeed(&["info", &target.server.uri]);
    next("connected")
}

#[test]
fn level_of_the_log_changes() {
    let target = controlled(&["mem:16M"]);
    assert_eq!(target.ctl(&["log-level"]), "warn\n");
    let log = || std::fs::read_to_string(target.server.log.path()).unwrap();
    succeed(&["info", &target.server.uri]);
    assert!(!log().contains("has connected"));
    assert_eq!(target.ctl(&["log-level", "info"]), "info\n");
    succeed(&["info", &target.server.uri]);
    until(|| log().contains("has connected").then_some(()));
    assert_eq!(target.ctl(&["log-level", "off"]), "off\n");
    target.refused(&["log-level", "loud"]);
}

#[test]
fn many_clients_keep_no_other_one_out() {
    let target = controlled(&["mem:16M"]);
    let mut clients = Vec::new();
    for at in 0..300 {
        let Ok(mut client) = UnixStream::connect(&target.socket) else { break };
        let part =
            ["", "GET /v1/name", "POST /v1/namespaces HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"][at % 3];
        // One that was displaced cannot send.
        let _ = client.write_all(part.as_bytes());
        clients.push(client);
    }
    assert_eq!(target.nsids(), [1]);
    target.ctl(&["namespace", "add", "null:1M"]);
    assert_eq!(target.nsids(), [1, 2]);
    drop(clients);
    assert!(target.server.stop());
}

/// Waits for a value.
pub(super) fn until<T>(mut value: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
