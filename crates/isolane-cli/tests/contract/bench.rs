//! `isolane bench`: its end, counts, and output.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::gate::Gate;
use super::stop::stop;
use super::{Server, fail, kill, program, run, succeed};

const KINDS: [&[&str]; 2] = [&[], &["--threads", "2"]];

fn figures(server: &Server, arguments: &[&str]) -> Value {
    let common = ["bench", &server.uri, "--json", "-"];
    serde_json::from_str(&succeed(&[&common, arguments].concat())).unwrap()
}

fn operations(figures: &Value) -> u64 {
    figures["operations"].as_u64().unwrap()
}

#[test]
fn ctrl_c_prints_the_results_so_far() {
    for kind in KINDS {
        let server = Server::start(&["mem:1M"]);
        let mut command = program();
        command.args(["bench", &server.uri, "--time", "10m", "--json", "-"]).args(kind);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_operations(&server);
        kill(&child, "INT");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(operations(&figures) > 0 && figures["seconds"].as_f64().unwrap() < 600.0, "{figures}");
    }
}

#[test]
fn explain_ends_with_stages() {
    let server = Server::start(&["mem:1M"]);
    let bench = ["bench", &server.uri, "--time", "100ms", "--explain"];
    for kind in KINDS {
        let text = succeed(&[&bench[..], kind].concat());
        let rows = ["read stages of ", "send ", "wait ", "deliver "];
        assert!(rows.iter().all(|row| text.lines().any(|line| line.starts_with(row))), "{text}");
    }
    let json = [&bench[..], &["--rw", "randrw", "--json", "-"]].concat();
    let figures: Value = serde_json::from_str(&succeed(&json)).unwrap();
    let kinds = figures["stages"].as_array().unwrap();
    assert_eq!(kinds.iter().map(operations).sum::<u64>(), operations(&figures), "{figures}");
    for kind in kinds {
        let shares = kind["stages"].as_array().unwrap().iter();
        let sum: f64 = shares.map(|stage| stage["share"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{figures}");
    }
    let error = fail(&[&bench[..], &["--observe", "off"]].concat());
    assert!(error.contains("remove --observe off"), "{error}");
    let text = succeed(&[&bench[..], &["--rate", "100"]].concat());
    assert!(text.contains("needs more load, or a longer --time") && !text.contains("--window"), "{text}");
}

#[test]
fn offset_moves_used_part_of_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, region) = (dir.path().join("disk"), 64 << 10);
    let server = Server::start(&[&format!("{},size=1M", disk.display())]);
    let bench = ["bench", &server.uri, "--offset", "64k", "--size", "64k", "--time", "200ms"];
    succeed(&[&bench[..], &["--bs", "64k", "--rw", "write"]].concat());
    succeed(&[&bench[..], &["--verify", "--rw", "randrw"]].concat());
    assert!(server.stop());
    let data = std::fs::read(&disk).unwrap();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    assert!(is_zero(&data[..region]) && is_zero(&data[2 * region..]));
    assert!(data[region..2 * region].chunks(4096).all(|block| !is_zero(block)));
    let server = Server::start(&["mem:1M"]);
    for (offset, size) in [("1M", "4k"), ("100", "4k"), ("1020k", "8k")] {
        let error = fail(&["bench", &server.uri, "--offset", offset, "--size", size, "--time", "10ms"]);
        assert!(error.contains("the volume has"), "{error}");
    }
}

/// A host with a long keep-alive timeout does not notice that the target is stopped.
#[test]
fn ctrl_c_ends_a_run_with_hung_target() {
    let server = Server::start(&["mem:1M"]);
    let mut command = program();
    command.args(["bench", &server.uri, "--time", "10m", "--keep-alive", "10m", "--json", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_operations(&server);
    stop(server.child.id());
    kill(&child, "INT");
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            panic!("the bench continues");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("operations failed"), "{error}");
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(operations(&figures) > 0 && figures["errors"].as_u64().unwrap() > 0, "{figures}");
}

#[test]
fn ctrl_c_ends_the_writing_of_patterns() {
    let server = Server::start(&["null:16G"]);
    let mut command = program();
    command.args(["bench", &server.uri, "--rw", "randread", "--verify", "--time", "10m"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_commands(&server, "write");
    kill(&child, "INT");
    child.wait_with_output().unwrap();
    let all_slots = 4 << 20;
    assert!(wait_for_commands(&server, "write") < all_slots, "all patterns were written");
}

#[test]
fn ctrl_c_while_verifying_reports_unread_data() {
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let server = Server::start(&["mem:1M"]);
        let mut command = program();
        command.args(["bench", &server.uri, "--rw", "randwrite", "--verify", "--time", "10m"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_commands(&server, "write");
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("interrupted: nothing was read back"), "{error}");
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("IOPS"), "{output:?}");
    }
}

#[test]
fn verifying_reads_announces_the_initial_write() {
    let server = Server::start(&["mem:1M"]);
    let stderr = |rw| {
        let arguments = ["bench", &server.uri, "--rw", rw, "--verify", "--time", "20ms"];
        String::from_utf8(run(&arguments).stderr).unwrap()
    };
    assert!(stderr("randread").contains("writing patterns to all 1.0 MiB"), "{}", stderr("randread"));
    assert_eq!(stderr("randwrite"), "");
}

/// Waits until the target has completed operations of the bench.
fn wait_for_operations(server: &Server) {
    wait_for_commands(server, "read");
}

/// Waits until the target has completed commands of a kind, and returns their number.
fn wait_for_commands(server: &Server, kind: &str) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    let before = std::fs::metadata(server.log.path()).unwrap().len() as usize;
    loop {
        kill(&server.child, "USR1");
        std::thread::sleep(Duration::from_millis(20));
        let log = std::fs::read_to_string(server.log.path()).unwrap();
        let start = format!("namespace 1 {kind} ");
        if let Some(rest) = log[before..].lines().rev().find_map(|line| line.strip_prefix(&start)) {
            return rest.split_whitespace().next().unwrap().parse().unwrap();
        }
        assert!(Instant::now() < deadline, "no operations: {log}");
    }
}

#[test]
fn keeps_the_time_when_the_target_dies() {
    for kind in KINDS {
        for reconnect in ["10m", "0"] {
            let child = kill_target_during_bench(&["--depth", "4", "--reconnect", reconnect], kind);
            let output = child.wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && error.contains("operations failed"), "{error}");
            let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(figures["errors"].as_u64().unwrap() >= 4, "{kind:?}, {reconnect}: {figures}");
            assert!(operations(&figures) > 0, "{figures}");
        }
    }
}

/// Starts a bench, and kills its target while it runs. Retries with more time on a slow machine.
fn kill_target_during_bench(options: &[&str], kind: &[&str]) -> Child {
    for time in ["4s", "16s", "60s"] {
        let mut server = Server::start(&["mem:1M"]);
        let mut command = program();
        command.args(["bench", &server.uri, "--json", "-", "--time", time]).args(options).args(kind);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_operations(&server);
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        if child.try_wait().unwrap().is_none() {
            return child;
        }
    }
    panic!("the bench ends before its target is killed");
}

#[test]
fn mixed_run_reports_reads_and_writes() {
    let server = Server::start(&["mem:1M"]);
    for kind in KINDS {
        let mixed = ["--rw", "randrw", "--mix", "60", "--time", "100ms"];
        let figures = figures(&server, &[&mixed, kind].concat());
        let iops = |what: &str| figures[what]["iops"].as_f64().unwrap();
        assert!(iops("read") > 0.0 && iops("write") > 0.0, "{figures}");
        let sum = iops("read") + iops("write");
        assert!((sum / figures["iops"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{figures}");
        assert!(figures["write"]["latency_us"]["p99"].as_f64().unwrap() > 0.0);
    }
    let text = succeed(&["bench", &server.uri, "--rw", "randrw", "--time", "20ms"]);
    assert!(text.contains("\nreads\nIOPS ") && text.contains("\nwrites\nIOPS "), "{text}");
    assert!(figures(&server, &["--time", "20ms"])["read"].is_null());
}

#[test]
fn limits_the_rate_and_excludes_the_warm_up() {
    let server = Server::start(&["mem:1M"]);
    for kind in KINDS {
        let limited = figures(&server, &[&["--rate", "200", "--time", "500ms"], kind].concat());
        // 200/s for half a second, and at most a tenth of a second more to catch up.
        assert!((1..=122).contains(&operations(&limited)), "{limited}");
        assert_eq!(limited["workload"]["rate"], 200);
        let warm =
            figures(&server, &[&["--rate", "200", "--time", "100ms", "--warm-up", "400ms"], kind].concat());
        // Both phases together would have 100. Some can be in flight when the warm-up ends.
        assert!(operations(&warm) <= 70, "{warm}");
        assert_eq!(warm["workload"]["warm_up_seconds"], 0.4);
    }
}

/// Each thread has a share of the rate: together they start no more operations than one would.
#[test]
fn threads_share_the_rate_from_the_first_operation() {
    let server = Server::start(&["mem:1M"]);
    let figures = figures(&server, &["--threads", "64", "--depth", "2", "--rate", "10", "--time", "300ms"]);
    assert!((1..=4).contains(&operations(&figures)), "{figures}");
}

const RATES: [&[&str]; 2] = [&[], &["--rate", "1000"]];
const NQN: &str = "nqn.2024-01.org.example:slow";
/// Operations that each thread keeps in flight.
const DEPTH: u64 = 8;

/// A long bench, whose operations are all in flight at a target that completes none.
fn bench_of_slow_target(kind: &[&str], options: &[&str]) -> (Server, Gate, Child, u64) {
    let server = Server::start(&["mem:1M", "--nqn", NQN]);
    let gate = Gate::start(&server.uri);
    // Without discovery, which would bypass the gate.
    let uri = format!("{}/{NQN}", gate.uri);
    let mut command = program();
    command.args(["bench", &uri, "--lanes", "1", "--depth", &DEPTH.to_string(), "--time", "10m"]);
    command.args(["--reconnect", "0", "--json", "-"]).args(kind).args(options);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let all = if kind.is_empty() { DEPTH } else { 2 * DEPTH };
    let deadline = Instant::now() + Duration::from_secs(60);
    while wait_for_commands(&server, "read") < all {
        assert!(Instant::now() < deadline, "the bench waits for completions before it starts operations");
    }
    (server, gate, child, all)
}

#[test]
fn counts_first_completions_of_slow_target() {
    for kind in KINDS {
        for options in RATES {
            let (_server, gate, child, all) = bench_of_slow_target(kind, options);
            kill(&child, "INT");
            gate.open();
            let output = child.wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{kind:?} {options:?}: {error}");
            let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(operations(&figures) >= all, "{kind:?} {options:?}: {figures}");
            assert_eq!(figures["errors"], 0);
        }
    }
}

#[test]
fn operations_that_fail_before_any_completes_are_errors() {
    for kind in KINDS {
        let (_server, gate, child, all) = bench_of_slow_target(kind, &[]);
        gate.cut();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("operations failed"), "{kind:?}: {error}");
        let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(figures["errors"].as_u64().unwrap() >= all, "{kind:?}: {figures}");
    }
}

#[test]
fn takes_the_names_that_fio_uses() {
    let server = Server::start(&["mem:1M"]);
    let figures = figures(&server, &["--runtime", "20ms", "--iodepth", "3", "--numjobs", "2"]);
    assert_eq!((&figures["workload"]["depth"], &figures["workload"]["threads"]), (&3.into(), &2.into()));
    assert!(fail(&["bench", &server.uri, "--time", "0"]).contains("must not be 0"));
    assert!(run(&["bench", &server.uri, "--time", "1ms"]).status.success());
}
