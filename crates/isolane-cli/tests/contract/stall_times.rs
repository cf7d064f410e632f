//! `stall-after` and `answer-within` of a running target.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::conditions::wait_for_log;
use crate::{Server, kill, program, succeed};

const NQN: &str = "nqn.2014-08.org.example:a";

/// A target whose volume takes minutes for a command.
struct Target {
    server: Server,
    file: String,
    socket: String,
}

fn start(directory: &Path) -> Target {
    let path = |name: &str| directory.join(name).display().to_string();
    let (file, socket) = (path("isolane.toml"), path("serve.sock"));
    let text = format!(
        "[server]\nmode = \"sleep\"\ncores = \"0\"\nstall-after = \"60s\"\nanswer-within = \"10m\"\n\
         control-socket = \"{socket}\"\n[[port]]\nname = \"local\"\nlisten = \"127.0.0.1:0\"\n[[subsystem]]\n\
         nqn = \"{NQN}\"\nports = [\"local\"]\nhosts = \"any\"\n[[subsystem.namespace]]\nnsid = 1\n\
         volume = \"delay:300s:({},size=1M)\"\n",
        path("a.img")
    );
    fs::write(&file, text).unwrap();
    Target { server: Server::start_alone(&["--config", &file]), file, socket }
}

impl Target {
    fn change_file(&self, from: &str, to: &str) {
        let before = fs::read_to_string(&self.file).unwrap();
        assert!(before.contains(from), "{before}");
        fs::write(&self.file, before.replace(from, to)).unwrap();
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        succeed(&[arguments, &["--socket", &self.socket]].concat())
    }

    fn namespace(&self) -> serde_json::Value {
        let status: serde_json::Value =
            serde_json::from_str(&self.ctl(&["ctl", "status", "--json"])).unwrap();
        status["namespaces"][0].clone()
    }

    #[track_caller]
    fn eventually(&self, is_reached: impl Fn(&serde_json::Value) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_reached(&self.namespace()) {
            assert!(Instant::now() < deadline, "{}", self.namespace());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn times_change_while_a_volume_is_stalled() {
    let directory = tempfile::tempdir().unwrap();
    let target = start(directory.path());
    let read = ["bench", &target.server.uri, "--rw", "read", "--depth", "1"];
    let mut read = program().args(read).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    target.eventually(|one| one["oldest_command_ms"].as_u64().is_some());
    assert_eq!(target.namespace()["state"], "online");

    target.change_file("stall-after = \"60s\"", "stall-after = \"1s\"");
    kill(&target.server.child, "HUP");
    target.eventually(|one| one["state"] == "stalled");
    target.change_file("stall-after = \"1s\"", "stall-after = \"59s\"");
    let plan = "live (1 change):\n  server: stall-after = \"1s\" -> \"59s\"\n";
    assert_eq!(target.ctl(&["config", "apply", &target.file, "--dry-run"]), plan);
    let status = target.namespace();
    let reason = status["reason"].as_str().unwrap_or_default();
    assert!(
        status["state"] == "stalled" && reason.starts_with("a command has not completed for "),
        "{status}"
    );
    assert_eq!(target.ctl(&["config", "apply", &target.file]), plan);
    target.eventually(|one| one["state"] == "online");

    let log = fs::read_to_string(target.server.log.path()).unwrap();
    assert!(!log.contains("their hosts repeat them"), "{log}");
    let set = ["ctl", "server", "set", "stall-after=1s", "answer-within=1s"];
    assert!(target.ctl(&set).starts_with("live (2 changes):\n"));
    wait_for_log(&target.server, &["commands within 1s, so their hosts repeat them"]);
    assert!(fs::read_to_string(&target.file).unwrap().contains("answer-within = \"1s\""));
    target.ctl(&["ctl", "server", "set", "stall-after=59s", "answer-within=10m"]);
    target.eventually(|one| one["state"] == "online");
    read.kill().unwrap();
    read.wait().unwrap();
}

#[test]
fn upgrade_keeps_changed_times() {
    let directory = tempfile::tempdir().unwrap();
    let target = start(directory.path());
    target.ctl(&["ctl", "server", "set", "stall-after=1s", "answer-within=2s"]);
    let upgraded = target.ctl(&["ctl", "upgrade", env!("CARGO_BIN_EXE_isolane")]);
    assert!(upgraded.contains("version"), "{upgraded}");
    let read = ["bench", &target.server.uri, "--rw", "read", "--depth", "1"];
    let mut read = program().args(read).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    target.eventually(|one| one["state"] == "stalled");
    wait_for_log(&target.server, &["commands within 2s, so their hosts repeat them"]);
    read.kill().unwrap();
    read.wait().unwrap();
}
