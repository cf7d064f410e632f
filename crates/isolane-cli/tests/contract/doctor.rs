//! `isolane doctor`: exit status, output, and system calls.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Server, fail, run, succeed, text};

/// Writes a file below a root.
fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A system on which `cpu.clock` is good, `cpu.allowed` an error, and `mem.huge` a warning.
fn system() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    write(root.path(), "proc/self/status", "Cpus_allowed_list:\t0\n");
    write(root.path(), "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    write(root.path(), "sys/kernel/mm/transparent_hugepage/defrag", "[madvise]\n");
    root
}

#[test]
fn exit_status_is_of_the_worst_finding() {
    let root = system();
    let doctor = |checks: &[&str]| {
        let only = checks.iter().flat_map(|check| ["--only", check]);
        let common = ["doctor", "--root", text(root.path()), "--cores", "0-1"];
        let output = run(&common.into_iter().chain(only).collect::<Vec<_>>());
        assert!(output.stderr.is_empty(), "{output:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(doctor(&["cpu.clock"]).0, 0);
    assert_eq!(doctor(&["mem.huge", "cpu.clock"]).0, 3);
    assert_eq!(doctor(&["lim.files"]).0, 3);
    let (status, text) = doctor(&["cpu.clock", "mem.huge", "cpu.allowed"]);
    assert_eq!(status, 4);
    let worst = text.lines().next().unwrap();
    assert!(worst.starts_with("error ") && worst.contains("cpu.allowed"), "{text}");
    assert!(text.ends_with("\n1 error, 1 warning, 1 good\n"), "{text}");
    let (_, text) = doctor(&["cpu.clock", "mem.huge", "own", "lim"]);
    assert!(text.ends_with("\n1 warning, 2 unseen, 1 good, 3 absent\n"), "{text}");
    write(root.path(), "proc/self/limits", "Max open files 10 10 files\n");
    let (_, text) = doctor(&["mem.huge", "lim.files", "cpu.allowed"]);
    assert!(text.ends_with("\n1 error, 2 warnings\n"), "{text}");
}

#[test]
fn copy_has_the_same_findings() {
    let root = system();
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let doctor = |more: &[&str]| run(&[&["doctor", "--json"], more].concat());
    let original = doctor(&["--root", text(root.path()), "--cores", "0-1", "--capture", text(&copy)]);
    let listed = String::from_utf8(original.stderr).unwrap();
    assert!(listed.starts_with(&format!("These files are copied to {}:\n", copy.display())), "{listed}");
    for path in listed.lines().skip(1) {
        assert!(copy.join(path.trim_start_matches('/')).is_file(), "{path}");
    }
    assert!(listed.contains("\n/proc/self/status\n"), "{listed}");
    let found = doctor(&["--root", text(&copy)]);
    assert_eq!(String::from_utf8(found.stdout).unwrap(), String::from_utf8(original.stdout).unwrap());
    let error = fail(&["doctor", "--only", "cpu.clock", "--capture", text(&copy)]);
    assert!(
        error.starts_with("isolane: cannot copy to ") && error.ends_with("; name a new directory\n"),
        "{error}"
    );
}

#[test]
fn script_has_the_remedies() {
    let root = system();
    let output = run(&["doctor", "--root", text(root.path()), "--only", "mem.huge", "--fix"]);
    let script = String::from_utf8(output.stdout).unwrap();
    assert!(script.starts_with("#!/bin/sh\n"), "{script}");
    assert!(script.ends_with("\necho madvise > /sys/kernel/mm/transparent_hugepage/enabled\n"), "{script}");
}

#[test]
fn json_has_all_checks() {
    let list: Value = serde_json::from_str(&succeed(&["doctor", "--list", "--json"])).unwrap();
    let output = run(&["doctor", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code().map(i64::from), found["exit_status"].as_i64(), "{found}");
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&list["checks"]), ids(&found["findings"]));
    for finding in found["findings"].as_array().unwrap() {
        let has = |name: &str| finding[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(has("value") && has("good") && has("reason") && has("severity") && has("state"), "{finding}");
    }
}

#[test]
fn running_target_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (dir.path().join("serve.sock"), dir.path().join("disk.img"));
    let volume = format!("{},size=1M", text(&disk));
    let server = Server::start(&["--control-socket", text(&socket), &volume]);
    let output = run(&["doctor", text(&socket), "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = |id: &str| {
        let all = found["findings"].as_array().unwrap();
        all.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {found}"))
    };
    for id in ["own.pool", "own.log", "mem.swap"] {
        assert_eq!(finding(id)["state"], "good", "{}", finding(id));
    }
    let pid = format!("of process {}", server.child.id());
    assert!(finding("mem.swap")["value"].as_str().unwrap().ends_with(&pid), "{}", finding("mem.swap"));
    for id in ["blk.space", "blk.system"] {
        assert!(finding(id)["value"].as_str().unwrap().contains("disk.img"), "{}", finding(id));
    }
    let copy = dir.path().join("copy");
    let original = run(&["doctor", text(&socket), "--json", "--capture", text(&copy)]);
    let found = run(&["doctor", "--root", text(&copy), "--json"]);
    assert_eq!(String::from_utf8(found.stdout).unwrap(), String::from_utf8(original.stdout).unwrap());
    assert!(server.stop());
    assert!(fail(&["doctor", text(&socket)]).contains("serve.sock"));
}

#[test]
fn rejects_unknown_checks_and_roots() {
    assert!(fail(&["doctor", "--only", "cpu.x"]).contains("isolane doctor --list"));
    assert!(fail(&["doctor", "--root", "/no/such"]).contains("cannot read /no/such"));
    assert_eq!(run(&["doctor", "--only", "x"]).status.code(), Some(2));
}

#[test]
fn doctor_opens_no_file_for_writing() {
    let calls = tempfile::NamedTempFile::new().unwrap();
    let trace = ["-f", "-qq", "-v", "-e", "trace=%file,write,pwrite64,writev", "-o", text(calls.path())];
    let strace = |program: &[&str]| {
        let output = Command::new("strace").args(trace).args(program).output();
        output.is_ok_and(|output| output.status.code().is_some_and(|status| status != 1))
    };
    if !strace(&["true"]) {
        eprintln!("not run: strace may not trace programs here");
        return;
    }
    let is_write = |call: &str| {
        ["O_WRONLY", "O_RDWR", "O_CREAT", "unlink", "rename", "mkdir", "chmod", "truncate", "symlink"]
            .iter()
            .any(|word| call.contains(word))
    };
    let program = env!("CARGO_BIN_EXE_isolane");
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    assert!(strace(&[program, "doctor", "--json", "--capture", text(&copy)]));
    let capture = fs::read_to_string(calls.path()).unwrap();
    assert!(capture.lines().filter(|call| is_write(call)).count() > 100);
    for call in capture.lines().filter(|call| is_write(call)) {
        assert!(call.contains(text(&copy)), "{call}");
    }
    assert!(strace(&[program, "doctor", "--json"]));
    let calls = fs::read_to_string(calls.path()).unwrap();
    let opened = calls.lines().filter(|call| call.contains("openat2(")).count();
    assert!(opened > 100, "{opened}");
    for call in calls.lines() {
        assert!(!is_write(call), "{call}");
        let is_other_output = call.contains("write") && !call.contains(" write(1,");
        assert!(!is_other_output || call.contains("open") || call.contains("readlink"), "{call}");
    }
}
