//! State that outlives a target with a configuration file.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::discovery_log::read_header;
use crate::{Server, fail, program, succeed, text};

const A: &str = "nqn.2014-08.org.example:a";

/// Everything that a target needs: a file, a volume, and a directory for the state.
struct Site(tempfile::TempDir);

fn site(ports: &[&str]) -> Site {
    let site = Site(tempfile::tempdir().unwrap());
    site.write(ports);
    site
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file with these ports, of which the first is that of subsystem A with its namespace 1.
    fn write(&self, ports: &[&str]) {
        let port = |name: &&str| format!("[[port]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\n");
        let file = format!(
            "[server]\nmode = \"sleep\"\nstate = \"{}\"\ncontrol-socket = \"{}\"\n{}[[subsystem]]\nnqn = \"{A}\"\n\
             ports = [\"{}\"]\nhosts = \"any\"\n[[subsystem.namespace]]\nnsid = 1\nvolume = \"{},size=1M\"\n",
            self.path("state").display(),
            self.path("serve.sock").display(),
            ports.iter().map(port).collect::<String>(),
            ports[0],
            self.path("a.img").display(),
        );
        fs::write(self.path("isolane.toml"), file).unwrap();
    }

    fn start(&self) -> Server {
        Server::start_alone(&["--config", text(&self.path("isolane.toml"))])
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        succeed(&[&["ctl", "--socket", text(&self.path("serve.sock"))], arguments].concat())
    }

    fn state(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("state/state.json")).unwrap()).unwrap()
    }

    fn set_state(&self, key: &str, value: Value) {
        let mut state = self.state();
        state[key] = value;
        fs::write(self.path("state/state.json"), state.to_string()).unwrap();
    }
}

/// IDs of the ports in the discovery log.
fn port_ids(server: &Server) -> Vec<u64> {
    let found: Value = serde_json::from_str(&succeed(&["discover", &server.uri, "--json"])).unwrap();
    let records = found["records"].as_array().unwrap().iter();
    records.filter(|one| one["subtype"] == "nvm").map(|one| one["portid"].as_u64().unwrap()).collect()
}

#[test]
fn namespace_ids_are_not_used_again() {
    let site = site(&["local"]);
    let server = site.start();
    assert_eq!(site.ctl(&["namespace", "add", "mem:1M"]), "namespace 2: mem:1M, memory, 1.0 MiB\n");
    assert!(site.ctl(&["namespace", "add", "mem:2M", "--runtime"]).starts_with("namespace 3: "));
    site.ctl(&["namespace", "remove", "2"]);
    assert!(site.ctl(&["namespace", "add", "mem:1M"]).starts_with("namespace 4: "));
    site.ctl(&["namespace", "remove", "4"]);
    assert!(server.stop());

    // Namespace 3 was not in the file.
    let server = site.start();
    assert!(site.ctl(&["namespace", "add", "mem:1M"]).starts_with("namespace 5: "));
    site.ctl(&["namespace", "remove", "5"]);
    let file = fs::read_to_string(site.path("isolane.toml")).unwrap();
    let named = format!("{file}\n[[subsystem.namespace]]\nnsid = 2\nvolume = \"mem:1M\"\n");
    fs::write(site.path("isolane.toml"), named.replace("nsid = 2", "nsid = 9")).unwrap();
    let socket = site.path("serve.sock");
    succeed(&["config", "apply", text(&site.path("isolane.toml")), "--socket", text(&socket)]);
    // An operator can name an ID again.
    fs::write(site.path("isolane.toml"), named).unwrap();
    succeed(&["config", "apply", text(&site.path("isolane.toml")), "--socket", text(&socket)]);
    assert!(site.ctl(&["namespace", "add", "mem:1M"]).starts_with("namespace 10: "));
    site.ctl(&["namespace", "add", "mem:2M,nsid=1024"]);
    let error = fail(&["ctl", "--socket", text(&socket), "namespace", "add", "mem:3M"]);
    assert!(error.contains("name an ID that is free, with nsid=N"), "{error}");
    assert!(server.stop());
}

#[test]
fn ports_and_generation_outlive_the_target() {
    let site = site(&["left", "right"]);
    let server = site.start();
    assert_eq!(port_ids(&server), [1]);
    site.ctl(&["port", "add", "middle", "listen=127.0.0.1:0"]);
    site.ctl(&["port", "remove", "right"]);
    assert_eq!(site.state()["ports"], serde_json::json!({ "left": 1, "middle": 3, "right": 2 }));
    assert!(server.stop());
    let generation = site.state()["generation"].as_u64().unwrap();

    site.write(&["middle", "new", "left"]);
    let server = site.start();
    assert_eq!(port_ids(&server), [3]);
    assert_eq!(site.state()["ports"]["new"], 4);
    assert!(site.state()["generation"].as_u64().unwrap() > generation);
    assert!(server.stop());

    // A clock that was set back does not matter.
    site.set_state("generation", 90_000_000_000_u64.into());
    let server = site.start();
    assert!(site.state()["generation"].as_u64().unwrap() > 90_000_000_000);
    assert!(server.stop());
}

/// Hosts compare GENCTR (Fabrics 1.1 §5.3) also across a restart.
#[test]
fn hosts_see_generation_rise_over_restarts() {
    let site = site(&["left", "right"]);
    let server = site.start();
    let first = read_header(&server.uri);
    assert_eq!(read_header(&server.uri).genctr, first.genctr, "nothing has changed");
    site.ctl(&["port", "remove", "right"]);
    let changed = read_header(&server.uri);
    assert!(changed.genctr > first.genctr, "{changed:?}");
    assert!(site.state()["generation"].as_u64().unwrap() > changed.genctr, "the record is ahead");
    assert!(server.stop());

    // Another log.
    site.write(&["left", "new"]);
    let server = site.start();
    let restarted = read_header(&server.uri);
    assert!(restarted.genctr > changed.genctr, "{restarted:?} after {changed:?}");
    site.ctl(&["port", "add", "more", "listen=127.0.0.1:0"]);
    let last = read_header(&server.uri);
    assert!(last.genctr > restarted.genctr, "{last:?}");
    assert!(server.stop());

    // The record has all generations that a killed target has shown, also if the clock is behind.
    let future = 90_000_000_000_u64;
    site.set_state("generation", future.into());
    let server = site.start();
    let shown = read_header(&server.uri).genctr;
    assert!(shown >= future);
    drop(server);
    let server = site.start();
    assert!(read_header(&server.uri).genctr > shown);
    assert!(server.stop());
}

#[test]
fn unusable_state_is_refused_and_named() {
    let site = site(&["local"]);
    assert!(succeed(&["config", "check", text(&site.path("isolane.toml"))]).contains("valid, 1 port"));
    assert!(!site.path("state").exists());
    assert!(site.start().stop());
    let file = site.path("isolane.toml");
    let refused = |expected: &str| {
        let before = fs::read(site.path("state/state.json")).unwrap();
        for command in [["serve", "--config", text(&file)], ["config", "check", text(&file)]] {
            let output = program().args(command).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(
                error.contains(expected) && error.contains("/state/state.json: "),
                "{command:?}: {error}"
            );
            assert_eq!(output.status.code(), Some(2), "{command:?}");
        }
        assert_eq!(fs::read(site.path("state/state.json")).unwrap(), before);
    };
    let valid = site.state();
    site.set_state("version", 7.into());
    refused("it has version 7, and this program reads version 1; start the program that has written it");
    if !valid["server"].is_null() {
        fs::write(site.path("state/state.json"), valid.to_string()).unwrap();
        site.set_state("server", "f8ca7d1c-0000-5000-8000-000000000000".into());
        refused("it is of another server; use another directory, or remove the file");
    }
    fs::write(site.path("state/state.json"), &valid.to_string()[..40]).unwrap();
    refused("damaged: EOF while parsing");
    fs::write(site.path("state/state.json"), [0xff; 100]).unwrap();
    refused("damaged: line 1 is not UTF-8; restore it from a backup, or remove it");
    fs::write(site.path("state/state.json"), vec![b' '; (4 << 20) + 1]).unwrap();
    refused("longer than 4 MiB; restore it");
    fs::remove_file(site.path("state/state.json")).unwrap();
    assert!(site.start().stop());
}

#[test]
fn directory_is_that_of_one_target_also_over_upgrades() {
    let site = site(&["local"]);
    let mut server = site.start();
    let second = site.path("second.toml");
    let file = fs::read_to_string(site.path("isolane.toml")).unwrap();
    fs::write(&second, file.replace("a.img", "b.img").replace("serve.sock", "second.sock")).unwrap();
    let refused = || {
        let error = fail(&["serve", "--config", text(&second)]);
        let expected = format!("another target uses the directory (process {})", server.child.id());
        assert!(error.contains(&expected) && error.contains("/state/state.lock"), "{error}");
    };
    refused();
    let upgraded = site.ctl(&["upgrade", env!("CARGO_BIN_EXE_isolane")]);
    assert!(upgraded.ends_with(", upgrade 1\n"), "{upgraded}");
    refused();
    assert!(site.ctl(&["namespace", "add", "mem:1M"]).starts_with("namespace 2: "));
    // The lock ends with a killed target.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(Server::start_alone(&["--config", text(&second)]).stop());
}

/// The service manager tries again with status 1, and does not with 2.
#[test]
fn paths_that_may_appear_are_worth_another_try() {
    let site = site(&["local"]);
    let path = |name: &str| text(&site.path(name)).to_owned();
    let file = path("isolane.toml");
    let valid = fs::read_to_string(&file).unwrap();
    let status = |file: &str| {
        let output = program().args(["serve", "--config", file]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), error)
    };
    let with = |text: String| {
        fs::write(&file, text).unwrap();
        status(&file)
    };
    let key = |name: &str| {
        format!(
            "{valid}\n[[host]]\nname = \"db1\"\nnqn = \"nqn.2014-08.org.example:db1\"\nauth-key = \"file:{}\"\n",
            path(name)
        )
    };
    fs::write(path("wrong.key"), "no key").unwrap();
    fs::set_permissions(path("wrong.key"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for ((found, error), expected, reason) in [
        (status(&path("missing.toml")), 1, "missing.toml"),
        (status(&path("")), 2, "cannot read"),
        (with(valid.replace("nsid = 1", "nsid = 0")), 2, "nsid"),
        (with(valid.replace("/state\"", "/none/state\"")), 1, "none"),
        (with(valid.replace("/state\"", "/isolane.toml\"")), 2, "not a directory"),
        (with(valid.replace("a.img,size=1M", "none/a.img")), 1, "none/a.img"),
        (with(valid.replace("127.0.0.1:0", "192.0.2.1:4420")), 1, "192.0.2.1"),
        (with(key("missing.key")), 1, "missing.key"),
        (with(key("wrong.key")), 2, "wrong.key"),
    ] {
        assert!(error.contains(reason), "{reason}: {error}");
        assert_eq!(found, expected, "{reason}: {error}");
    }
}
