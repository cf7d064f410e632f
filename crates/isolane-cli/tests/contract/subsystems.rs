//! Several subsystems of one configuration file.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::conditions::wait_for_log;
use crate::{Server, fail, run, succeed, text};

const A: &str = "nqn.2014-08.org.example:a";
const B: &str = "nqn.2014-08.org.example:b";
const HOST: &str = "nqn.2014-08.org.example:db1";
const STRANGER: &str = "nqn.2014-08.org.example:stranger";

/// A target with subsystem A for every host, and B, with a volume of the same ID, for one with a key.
struct Target {
    server: Server,
    directory: tempfile::TempDir,
}

fn start() -> Target {
    let directory = tempfile::tempdir().unwrap();
    let target = |name: &str| directory.path().join(name);
    succeed(&["key", "gen", text(&target("db1.key"))]);
    let file = format!(
        "[server]\nlimits.commands = 1000\nmode = \"sleep\"\ncontrol-socket = \"{}\"\n[[port]]\nname = \"local\"\nlisten = \"127.0.0.1:0\"\n\
         [[host]]\nname = \"db1\"\nnqn = \"{HOST}\"\nlimits.associations = 4\n{}\n\
         [[subsystem]]\nlimits.connections = 2\nnqn = \"{A}\"\nports = [\"local\"]\nhosts = \"any\"\n\
         namespace = [{{ nsid = 1, volume = \"mem:1M\" }}, \
         {{ nsid = 2, volume = \"null:2M\", qos = {{ iops = 4000, bytes = \"1M\", burst = \"20ms\" }} }}]\n\
         [[subsystem]]\nnqn = \"{B}\"\nports = [\"local\"]\nhosts = [\"db1\"]\nserial = \"B-1\"\n\
         namespace = [{{ nsid = 1, volume = \"{},size=3M\" }}]\n",
        target("serve.sock").display(),
        format_args!("auth-key = \"file:{}\"", target("db1.key").display()),
        target("b.img").display(),
    );
    fs::write(target("isolane.toml"), file).unwrap();
    let server = Server::start_alone(&["--config", text(&target("isolane.toml"))]);
    Target { server, directory }
}

impl Target {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn uri(&self, nqn: &str) -> String {
        format!("{}/{nqn}", self.server.uri)
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        succeed(&[&["ctl", "--socket", text(&self.path("serve.sock"))], arguments].concat())
    }

    fn refused(&self, arguments: &[&str]) -> String {
        fail(&[&["ctl", "--socket", text(&self.path("serve.sock"))], arguments].concat())
    }
}

#[test]
fn each_has_its_volumes_hosts_and_proofs() {
    let target = start();
    let printed = target.server.printed.join("\n");
    let expected = format!("subsystem {A}\nnamespace 1: mem:1M, memory, 1.0 MiB\nnamespace 2: null:2M");
    assert!(printed.contains(&expected), "{printed}");
    assert!(printed.contains(&format!("subsystem {B}\nnamespace 1: ")), "{printed}");

    let key = format!("--key={}", target.path("db1.key").display());
    let stranger = ["--host-nqn", STRANGER];
    let seen = succeed(&[&["discover", &target.server.uri][..], &stranger].concat());
    assert!(seen.contains(A) && !seen.contains(B), "{seen}");
    let seen = succeed(&["discover", &target.server.uri, "--host-nqn", HOST]);
    assert!(seen.contains(A) && seen.contains(B), "{seen}");

    succeed(&[&["info", &target.uri(A)][..], &stranger].concat());
    fail(&[&["info", &target.uri(B)][..], &stranger].concat());
    fail(&["info", &target.uri(B), "--host-nqn", HOST]);
    let info = succeed(&["info", &target.uri(B), "--host-nqn", HOST, &key]);
    assert!(info.contains("B-1") && info.contains("3.0 MiB"), "{info}");

    fs::write(target.path("source"), vec![7; 3 << 20]).unwrap();
    let volume = format!("{}?nsid=1&key={}", target.uri(B), target.path("db1.key").display());
    succeed(&["copy", text(&target.path("source")), &volume, "--host-nqn", HOST]);
    let first = succeed(&[&["copy", &format!("{}?nsid=1", target.uri(A)), "-"][..], &stranger].concat());
    assert!(first.bytes().all(|byte| byte == 0), "the volume with the same ID is another one");
    assert!(fs::read(target.path("b.img")).unwrap() == vec![7; 3 << 20]);
    assert!(target.server.stop());
}

#[test]
fn operator_names_the_subsystem_of_a_volume() {
    let target = start();
    let error = target.refused(&["namespace", "add", "mem:1M"]);
    assert!(error.contains(&format!("name one with --subsystem: {A}, {B}")), "{error}");
    let unknown = "nqn.2014-08.org.example:c";
    let error = target.refused(&["namespace", "remove", "1", "--subsystem", unknown]);
    assert!(error.contains(&format!("there is no subsystem {unknown}; it serves {A}, {B}")), "{error}");
    target.refused(&["namespace", "remove", "2", "--subsystem", B]);

    assert_eq!(
        target.ctl(&["namespace", "--subsystem", B, "add", "mem:1M"]),
        "namespace 2: mem:1M, memory, 1.0 MiB\n"
    );
    target.ctl(&["namespace", "offline", "1", "--subsystem", B]);
    target.ctl(&["namespace", "remove", "1", "--subsystem", A]);
    let status = target.ctl(&["status"]);
    let (a, b) = status.split_once(&format!("subsystem {B}\n")).expect("both are listed");
    assert!(a.starts_with(&format!("subsystem {A}\nNSID  STATE")), "{status}");
    assert!(!a.contains("   1  ") && a.contains("   2  online "), "{status}");
    assert!(b.contains("   1  offline ") && b.contains("   2  online "), "{status}");
    target.ctl(&["namespace", "online", "1", "--subsystem", B]);
    assert!(target.server.stop());
}

/// Port A is for discovery, B has the first subsystem, C both.
#[test]
fn each_is_at_its_ports() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isolane.toml");
    let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\n");
    let file = format!(
        "[server]\nmode = \"sleep\"\ncontrol-socket = \"off\"\n{}discovery-only = true\n{}{}\
         [[subsystem]]\nnqn = \"{A}\"\nports = [\"b\", \"c\"]\nhosts = \"any\"\nmodel = \"Disk 7\"\n\
         namespace = [{{ nsid = 1, volume = \"mem:1M\" }}]\n\
         [[subsystem]]\nnqn = \"{B}\"\nports = [\"c\"]\nhosts = \"any\"\ncntlid-min = 7\ncntlid-max = 9\n\
         namespace = [{{ nsid = 1, volume = \"mem:2M\" }}]\n\
         [[referral]]\nname = \"other\"\naddresses = [\"10.0.0.2:8009\"]\n",
        port("a"),
        port("b"),
        port("c"),
    );
    fs::write(&path, file).unwrap();
    let server = Server::start_alone(&["--config", text(&path)]);
    let listeners = server.printed.iter().filter_map(|line| line.strip_prefix("listening on "));
    let listeners: Vec<&str> = listeners.collect();
    let [finder, first, both] = listeners[..] else { panic!("{listeners:?}") };
    let paste = format!("isolane info nvme+tcp://{first}/{A}");
    assert!(server.printed.iter().any(|line| line.ends_with(&paste)), "{:?}", server.printed);

    let uri = |address: &str, nqn: &str| format!("nvme+tcp://{address}/{nqn}");
    assert!(succeed(&["info", &uri(first, A)]).contains("Disk 7"));
    assert!(!succeed(&["info", &uri(both, B)]).contains("Disk 7"));
    succeed(&["info", &uri(both, A)]);
    for refused in [uri(finder, A), uri(finder, B), uri(first, B)] {
        fail(&["info", &refused]);
    }
    for address in [finder, first, both] {
        let log = succeed(&["discover", &format!("nvme+tcp://{address}")]);
        let line = |(nqn, at): (&str, &str)| format!("{} {nqn}", at.replace(':', " port "));
        let expected = [(A, first), (A, both), (B, both)].map(line);
        let referral = "discovery TCP  10.0.0.2 port 8009 nqn.2014-08.org.nvmexpress.discovery";
        assert!(log.lines().any(|line| line == referral), "{log}");
        let nvm = log.lines().filter(|line| line.starts_with("nvm "));
        let found: Vec<&str> = nvm.filter_map(|line| line.split_once("TCP  ")).map(|it| it.1).collect();
        assert_eq!(found, expected, "{log}");
    }
    assert!(server.stop());
}

#[test]
fn namespace_has_its_maximum_speed() {
    let target = start();
    let started = Instant::now();
    let uri = format!("{}?nsid=2", target.uri(A));
    succeed(&["copy", &uri, text(&target.path("copy")), "--host-nqn", STRANGER]);
    assert!(started.elapsed() >= Duration::from_millis(900), "the second mebibyte comes after the first");
    let status = target.ctl(&["status"]);
    assert!(status.contains("null:2M, at most 4000 IOPS, at most 1.0 MiB/s\n"), "{status}");
    let status: serde_json::Value = serde_json::from_str(&target.ctl(&["status", "--json"])).unwrap();
    let expected = serde_json::json!({ "iops": 4000, "bytes": 1 << 20, "burst_ms": 20 });
    assert_eq!(status["namespaces"][1]["qos"], expected);
    assert_eq!(status["namespaces"][0]["qos"], serde_json::Value::Null);
    assert!(target.server.stop());
}

#[test]
fn limits_of_the_file_refuse_connections() {
    let target = start();
    let uri = format!("{}?nsid=1", target.uri(A));
    let bench = |lanes: &str| {
        let arguments = ["bench", &uri, "--time", "100ms", "--lanes", lanes, "--host-nqn", STRANGER];
        run(&arguments)
    };
    assert!(bench("1").status.success());
    bench("4");
    let reason = "its subsystem has 2 of at most 2 connections; raise limits.connections of its subsystem";
    wait_for_log(&target.server, &[reason]);
    assert!(target.server.stop());
}

#[test]
fn host_sees_its_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isolane.toml");
    let file = format!(
        "[server]\nmode = \"sleep\"\ncontrol-socket = \"off\"\n[[port]]\nname = \"local\"\nlisten = \"127.0.0.1:0\"\n\
         [[host]]\nname = \"db1\"\nnqn = \"{HOST}\"\n[[subsystem]]\nnqn = \"{A}\"\nports = [\"local\"]\nhosts = \"any\"\n\
         namespace = [{{ nsid = 1, volume = \"mem:1M\" }}, {{ nsid = 2, volume = \"mem:2M\", hosts = [\"db1\"] }}]\n"
    );
    fs::write(&path, file).unwrap();
    let server = Server::start_alone(&["--config", text(&path)]);
    let info = |host: &str| succeed(&["info", &format!("{}/{A}", server.uri), "--host-nqn", host]);
    assert!(info(HOST).contains("2.0 MiB"));
    let seen = info(STRANGER);
    assert!(seen.contains("1.0 MiB") && !seen.contains("2.0 MiB"), "{seen}");
    let volume = format!("{}/{A}?nsid=2", server.uri);
    fail(&["copy", &volume, "-", "--host-nqn", STRANGER]);
    assert!(server.stop());
}
