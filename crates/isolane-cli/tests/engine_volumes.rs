//! Volumes through an engine that is killed repeatedly.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2024-01.org.example:engine-volumes";

/// A program that prints its address on the first line, killed on drop.
struct Server {
    child: Child,
    line: String,
}

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let line = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Server { child, line }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isolane"));
    command.args(["--log-level", "error"]);
    command
}

struct Harness {
    target: Server,
    engine: Server,
    _folder: tempfile::TempDir,
}

impl Harness {
    fn start() -> Harness {
        let dir = tempfile::tempdir().unwrap();
        let serve =
            ["serve", "mem:16M", "mem:16M", "--listen", "127.0.0.1:0", "--nqn", NQN, "--mode", "sleep"];
        let target = Server::start(program().args(serve));
        let socket: PathBuf = dir.path().join("sock");
        let engine = Server::start(program().args(["engine", "--mode", "sleep", "--socket"]).arg(socket));
        Harness { target, engine, _folder: dir }
    }

    /// URI of a volume through the engine.
    fn volume(&self, nsid: u32) -> String {
        format!("{}&via={}", self.direct_volume(nsid), self.engine.line)
    }

    fn direct_volume(&self, nsid: u32) -> String {
        format!("nvme+tcp://{}/{NQN}?nsid={nsid}", self.target.line)
    }

    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(["bench", &self.volume(1), "--mode", "sleep"]).args(arguments);
        command
    }

    /// Kills the engine's process, the only child of its supervisor, if there is one now.
    fn kill_engine(&self) -> bool {
        let children = format!("/proc/{0}/task/{0}/children", self.engine.child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        let Some(pid) = children.split_whitespace().next() else { return false };
        Command::new("kill").args(["-9", pid]).status().unwrap().success()
    }

    /// Kills the engine `kills` times while a command runs, and returns the output of the command.
    fn run_while_killing(&self, mut command: Command, kills: u32) -> String {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (end, mut killed) = (Instant::now() + Duration::from_secs(120), 0);
        let status = loop {
            std::thread::sleep(Duration::from_millis(250));
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            killed += u32::from(killed < kills && self.kill_engine());
            assert!(Instant::now() < end, "the command hangs");
        };
        let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
        assert!(status.success(), "{output}");
        assert_eq!(killed, kills, "the command ended early");
        output
    }
}

#[test]
fn writes_survive_engine_kills() {
    let harness = Harness::start();
    let arguments = ["--verify", "--rw", "randrw", "--depth", "16", "--bs", "4k", "--time", "5s"];
    let output = harness.run_while_killing(harness.bench(&arguments), 5);
    assert!(output.contains(" 0 wrong"), "{output}");
}

#[test]
fn shared_volume_survives_an_engine_kill() {
    let harness = Harness::start();
    let arguments = ["--threads", "2", "--rw", "randread", "--bs", "4k", "--time", "3s"];
    let output = harness.run_while_killing(harness.bench(&arguments), 3);
    assert!(output.contains("IOPS"), "{output}");
}

#[test]
fn processes_verify_parts_concurrently() {
    let harness = Harness::start();
    let others: Vec<Child> = (0..3)
        .map(|seed| {
            let seed = seed.to_string();
            let arguments = ["--rw", "randread", "--time", "3s", "--seed", &seed];
            harness.bench(&arguments).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let output = harness.run_while_killing(harness.bench(&["--verify", "--rw", "randrw", "--time", "2s"]), 1);
    assert!(output.contains(" 0 wrong"), "{output}");
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
}

/// Runs a command that succeeds, and returns its output.
fn succeed(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}");
    stdout
}

/// Runs a command that fails, and returns its errors.
fn fail(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn bench_reports_engine_and_granted_lanes() {
    let harness = Harness::start();
    // The target grants 63 lanes altogether.
    let arguments =
        ["--lanes", "1", "--read-lanes", "70", "--depth", "4", "--time", "50ms", "--show-placement"];
    for threads in [&[][..], &["--threads", "2"]] {
        let output = succeed(harness.bench(&arguments).args(threads));
        assert!(
            output
                .contains(&format!("\nengine     {}, connections driven on its core ", harness.engine.line))
        );
        assert!(
            output.contains(" 63 read (of 70 requested)") || output.contains(" 62 read (of 70 requested)"),
            "{output}"
        );
        let output = succeed(harness.bench(&arguments).args(threads).args(["--json", "-"]));
        let figures: serde_json::Value = serde_json::from_str(&output).unwrap();
        assert_eq!(figures["placement"]["engine"]["socket"], harness.engine.line);
        assert_eq!(figures["placement"]["connections"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn rejects_unsupported_options_with_an_engine() {
    let harness = Harness::start();
    let stderr = fail(harness.bench(&["--coalesce"]).arg("--time=50ms"));
    assert!(stderr.contains("cannot use --coalesce: an engine does not delay operations"), "{stderr}");
    let stderr = fail(&mut harness.bench(&["--lanes", "200", "--time", "50ms"]));
    assert!(stderr.contains("more than 128 lanes of a class"), "{stderr}");
    let (through_engine, direct) = (harness.volume(1), harness.direct_volume(1));
    for pair in [[&through_engine, &direct], [&direct, &through_engine]] {
        let stderr = fail(program().arg("copy").args(pair));
        assert!(stderr.contains("to itself"), "{stderr}");
    }
}

#[test]
fn copy_and_info_work_through_an_engine() {
    let harness = Harness::start();
    let dir = tempfile::tempdir().unwrap();
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let bytes: Vec<u8> = (0..5_u32 << 20)
        .map(|at| if at >> 20 == 2 { 0 } else { (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 })
        .collect();
    fs::write(&there, &bytes).unwrap();
    succeed(program().args(["copy", "--verify"]).arg(&there).arg(harness.volume(1)));
    succeed(program().args(["copy", "--verify", &harness.volume(1), &harness.volume(2)]));
    // The same volume without the engine.
    succeed(program().args(["copy", &harness.direct_volume(2)]).arg(&back));
    let found = fs::read(&back).unwrap();
    assert!(found.starts_with(&bytes) && found[bytes.len()..].iter().all(|byte| *byte == 0));
    let output = succeed(program().args(["info", &harness.volume(2)]));
    assert!(output.contains("namespace    2: 16.0 MiB"), "{output}");
}
