//! Commands that read a target on another machine, over NVMe.

use std::process::{Child, Stdio};

use isolane_observe::snapshot::Snapshot;
use isolane_observe::verdict::{Kind, Verdict};

use crate::{Server, fail, program, succeed, text};

/// A host that does I/O until the end of a test.
struct Load(Child);

impl Load {
    fn start(uri: &str, arguments: &[&str]) -> Load {
        let mut command = program();
        command.args(["bench", uri, "--rw", "randread", "--mode", "sleep", "--time", "10m"]).args(arguments);
        Load(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const HOST: [&str; 4] =
    ["--host-nqn", "nqn.2014-08.org.example:host", "--host-id", "11111111-2222-3333-4444-555555555555"];

#[test]
fn explains_slow_volume_of_remote_target() {
    let server = Server::start(&["stall:20ms:mem:16M,one-in=40", "--control-socket", "off"]);
    let _load = Load::start(&server.uri, &HOST);
    let verdict = loop {
        let json = succeed(&[&["explain", &server.uri, "--window", "3s", "--json"], &HOST[..]].concat());
        let verdict: Verdict = serde_json::from_str(&json).unwrap();
        // A core of a loaded machine can delay more operations than the volume.
        if verdict.findings.iter().any(|finding| finding.kind == Kind::Device) {
            break verdict;
        }
    };
    let device = verdict.findings.iter().find(|finding| finding.kind == Kind::Device).unwrap();
    assert_eq!(device.name, "namespace 1");
    assert!(verdict.not_seen.iter().any(|missing| missing.what.contains("other hosts")), "{verdict:?}");
    let text =
        succeed(&[&["explain", &server.uri, "--window", "200ms", "--quantile", "0.9"], &HOST[..]].concat());
    assert!(text.contains("not seen: ") && !text.contains("has run for only"), "{text}");
}

#[test]
fn identity_without_uri_is_rejected() {
    for program in [&["absent.sock"][..], &["--from", "absent.json"], &[]] {
        let error = fail(&[&["explain"], &HOST[..], program].concat());
        assert!(
            error.contains("--host-nqn, --host-id, --key, --ctrl-key: they are for the URI of a target"),
            "{error}"
        );
    }
}

#[test]
fn other_identity_sees_no_operations() {
    let server = Server::start(&["mem:16M", "--control-socket", "off"]);
    let _load = Load::start(&server.uri, &HOST);
    let other = [&HOST[..2], &["--host-id", "11111111-2222-3333-4444-666666666666"]].concat();
    let text = succeed(&[&["explain", &server.uri, "--window", "200ms"], &other[..]].concat());
    assert!(
        text.contains(" 0 operations ") && text.contains("no finding: there are no operations"),
        "{text}"
    );
    let identity = "operations of nqn.2014-08.org.example:host with ID 11111111-2222-3333-4444-666666666666";
    assert!(text.contains(identity), "{text}");
    assert_eq!(succeed(&[&["slow", &server.uri], &other[..]].concat()), "");
}

#[test]
fn lists_own_operations_of_remote_target() {
    let server = Server::start(&["mem:16M", "--control-socket", "off"]);
    let _load = Load::start(&server.uri, &HOST);
    let own = |arguments: &[&str]| succeed(&[arguments, &HOST[..]].concat());
    while !own(&["slow", &server.uri]).contains(" read 4.0 KiB namespace 1 lba ") {}
    assert!(own(&["top", &server.uri, "--window", "200ms"]).contains("nqn.2014-08.org.example:host"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.json");
    own(&["snapshot", &server.uri, "-o", text(&file)]);
    let snapshot: Snapshot = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(!snapshot.slow.is_empty() && snapshot.numbers.connections.len() == 1, "{snapshot:?}");
    let text = succeed(&["explain", "--from", text(&file)]);
    assert!(text.contains("not seen: volumes, cores, disks, and other hosts of the target"), "{text}");
}

#[test]
fn reports_unreachable_targets() {
    // Port 1 is reserved, and no target listens there.
    for command in ["explain", "slow", "top", "snapshot"] {
        let error = fail(&[command, "nvme+tcp://127.0.0.1:1/nqn.2014-08.org.example:x"]);
        assert!(error.contains("127.0.0.1:1") && error.contains("is a target listening there?"), "{error}");
    }
}

#[test]
fn bench_explains_both_ends() {
    let server = Server::start(&["stall:20ms:mem:16M,one-in=40", "--control-socket", "off"]);
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("run.json");
    let arguments =
        ["bench", &server.uri, "--rw", "randread", "--time", "2s", "--explain", "--json", text(&json)];
    for threads in [&[][..], &["--threads", "2", "--depth", "4"]] {
        // On a loaded machine, the slowest operations of each second can differ between the ends.
        let (text, ends) = loop {
            let text = succeed(&[&arguments, threads].concat());
            let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
            if report["both_ends"]["matched"].as_u64() > Some(0) {
                break (text, report["both_ends"].clone());
            }
        };
        assert!(
            ends["operations"].as_u64() > Some(0) && ends["slow"].as_u64() >= ends["matched"].as_u64(),
            "{ends}"
        );
        assert!(ends["target_us"].as_f64() > Some(0.0) && ends["network_us"].is_number(), "{ends}");
        assert!(ends["verdict"]["operations"].as_u64() > Some(0), "{ends}");
        for part in
            ["target stages of ", "device ", " + network ", " operations on 1 volume: half take less "]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
