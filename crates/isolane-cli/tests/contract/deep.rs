//! `isolane explain --deep`: trace events of the kernel, as root with tracefs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::Access;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{Server, fail, kill, program, run, succeed, text};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// Name of a task; its length is the limit of the kernel.
const SPINNER: &str = "isolane-spinner";

fn has_tracefs() -> bool {
    rustix::fs::access(INSTANCES, Access::WRITE_OK).is_ok()
}

/// A target with a reactor on one core.
struct Target {
    server: Server,
    cpu: usize,
    dir: tempfile::TempDir,
}

impl Target {
    fn start() -> Target {
        let dir = tempfile::tempdir().unwrap();
        let cpu = isolane_reactor::cpu::allowed().unwrap()[0];
        let (socket, list) = (dir.path().join("s"), cpu.to_string());
        let server =
            Server::start(&["delay:200us:mem:16M", "--control-socket", text(&socket), "--cores", &list]);
        Target { server, cpu, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Starts a thread that never sleeps on the core of the reactor.
    fn spin(&self) -> Process {
        let script = self.dir.path().join(SPINNER);
        fs::write(&script, "#!/bin/sh\nwhile :; do :; done\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let child = Command::new(&script).spawn().unwrap();
        let mut cpus = CpuSet::new();
        cpus.set(self.cpu);
        let pid = Pid::from_child(&child);
        sched_setaffinity(Some(pid), &cpus).unwrap();
        // Also if the tests have a lower priority than other busy programs.
        setpriority_process(Some(pid), 0).unwrap();
        Process(child)
    }
}

/// A process, killed on drop.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Process {
        Process(program().args(arguments).stdout(Stdio::null()).spawn().unwrap())
    }

    fn instance(&self) -> PathBuf {
        Path::new(INSTANCES).join(format!("isolane-{}", self.0.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns `true` if there is a neighbor with the grade *measured* of a finding about the core.
fn is_named(verdict: &serde_json::Value, name: &str) -> bool {
    let core = |finding: &&serde_json::Value| finding["kind"] == "core";
    let findings = verdict["findings"].as_array().unwrap().iter().filter(core);
    findings
        .flat_map(|finding| finding["neighbours"].as_array().unwrap())
        .any(|neighbor| neighbor["name"] == name && neighbor["grade"] == "measured")
}

#[test]
fn names_task_on_core_of_reactor_as_measured() {
    let target = Target::start();
    let socket = target.socket();
    let explain = ["explain", text(&socket), "--deep=500ms"];
    if !has_tracefs() {
        let verdict = succeed(&explain);
        let missing = verdict.split("not seen: ").nth(1).expect(&verdict);
        let missing = missing.split("trace events of the kernel: /").nth(1).expect(&verdict);
        assert!(missing.contains(" (needs ") && missing.contains("sudo "), "{verdict}");
        return;
    }
    let spinner = target.spin();
    let load = ["--rw", "randread", "--rate", "1000", "--depth", "32", "--time", "1h"];
    let _load = Process::start(&[&["bench", &target.server.uri], &load[..]].concat());
    let name = format!("{SPINNER} (PID {})", spinner.0.id());
    loop {
        let json = succeed(&[&explain[..], &["--json"]].concat());
        let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(verdict["measured"]["seconds"].as_f64().unwrap() >= 0.5, "{json}");
        if is_named(&verdict, &name) {
            break;
        }
    }
}

#[test]
fn removes_instances_of_interrupted_and_killed_runs() {
    if !has_tracefs() {
        return;
    }
    let target = Target::start();
    let socket = target.socket();
    for (signal, status) in [("TERM", Some(143)), ("KILL", None)] {
        let mut deep = Process::start(&["explain", text(&socket), "--deep=10s"]);
        while !deep.instance().join("trace_pipe").exists() {
            assert_eq!(deep.0.try_wait().unwrap(), None);
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(&deep.0, signal);
        assert_eq!(deep.0.wait().unwrap().code(), status, "{signal}");
        if signal == "KILL" {
            succeed(&["explain", text(&socket), "--deep=10ms"]);
        }
        assert!(!deep.instance().exists(), "{signal}");
    }
}

#[test]
fn rejects_long_and_useless_measurements() {
    assert!(fail(&["explain", "--deep=11s"]).contains("write 10s or less"));
    for arguments in [["--from", "/dev/null"], ["--topology", "1"]] {
        let output = run(&[&["explain", "--deep"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
