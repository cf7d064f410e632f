//! `isolane verbs`: servers and clients of this machine.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{fail, program, succeed};

/// A server, killed on drop.
pub(super) struct VerbsServer {
    child: Child,
    pub(super) address: String,
}

impl VerbsServer {
    fn start() -> VerbsServer {
        VerbsServer::start_at("127.0.0.1:0")
    }

    pub(super) fn start_at(address: &str) -> VerbsServer {
        VerbsServer::start_with(&["bench", "--server", address])
    }

    /// Starts a subcommand of `isolane verbs`; its line after `listening on` is the address.
    fn start_with(arguments: &[&str]) -> VerbsServer {
        let mut command = program();
        command.arg("verbs").args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on ").expect("the first line names the listener").to_owned();
        VerbsServer { child, address }
    }
}

impl Drop for VerbsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn verbs_bench_measures_each_operation() {
    let server = VerbsServer::start();
    let common = ["verbs", "bench", &server.address, "--time", "20ms", "--json"];
    for operation in ["send", "write", "read", "compare-swap", "fetch-add"] {
        for depth in ["1", "16"] {
            let load = ["--operation", operation, "--size", "64,4k,300000", "--depth", depth];
            let rows: Value = serde_json::from_str(&succeed(&[&common[..], &load].concat())).unwrap();
            let sizes: Vec<_> =
                rows.as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
            let is_atomic = operation.contains('-');
            assert_eq!(sizes, if is_atomic { vec![8] } else { vec![64, 4096, 300_000] }, "{operation}");
            for row in rows.as_array().unwrap() {
                assert!(row["operations_per_s"].as_f64().unwrap() > 0.0, "{operation}: {row}");
                assert!(row["p50_us"].as_f64() <= row["max_us"].as_f64(), "{operation}: {row}");
            }
        }
    }
    let dedicated = ["--progress", "thread:0", "--socket", "tos=0x68"];
    assert!(succeed(&[&common[..5], &dedicated].concat()).contains("operations/s"));
    let several = ["--lanes", "4", "--operation", "write", "--size", "64,1M"];
    assert!(succeed(&[&common[..5], &several].concat()).contains("1048576"));
}

/// Number of established connections of a process.
fn connections(process: u32) -> usize {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return 0 };
    let sockets: Vec<String> = descriptors
        .filter_map(|descriptor| fs::read_link(descriptor.ok()?.path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "01" && sockets.iter().any(|socket| socket == row[9])).count()
}

#[test]
fn verbs_bench_fails_if_its_server_is_restarted() {
    let server = VerbsServer::start();
    let address = server.address.clone();
    let mut command = program();
    command.args(["verbs", "bench", &address, "--lanes", "4", "--time", "600s"]);
    let client = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while connections(server.child.id()) < 4 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(server);
    let _restarted = VerbsServer::start_at(&address);
    let output = client.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("a request failed"), "{error}");
}

#[test]
fn verbs_bench_names_wrong_arguments() {
    let server = VerbsServer::start();
    for (arguments, reason) in [
        (&["--size", "0"][..], "a size is 1 to 64M"),
        (&["--size", "65M"], "a size is 1 to 64M"),
        (&["--depth", "257"], "257"),
        (&["--progress", "thread"], "thread:1"),
        (&["--progress", "thread:99999"], "cannot use core 99999"),
    ] {
        let error = fail(&[&["verbs", "bench", &server.address], arguments].concat());
        assert!(error.contains(reason), "{error}");
    }
    let error = fail(&["verbs", "bench", "127.0.0.1:1"]);
    assert!(error.contains("cannot measure at 127.0.0.1:1"), "{error}");
}

#[test]
fn verbs_serve_offers_memory_for_read_and_write() {
    let server = VerbsServer::start_with(&["serve", "127.0.0.1:0", "--bytes", "3M", "--rkey", "0x5eed"]);
    let (address, offer) = server.address.split_once(", ").expect("an address, then rkey and size");
    assert_eq!(offer, "rkey 0x00005eed, 3145728 bytes");
    let file = tempfile::NamedTempFile::new().unwrap();
    let text: String = (0..300_000).map(|number| format!("{number:07}")).collect();
    fs::write(file.path(), &text).unwrap();
    let remote = [address, "--rkey", "24301", "--offset", "1000"];
    succeed(&[&["verbs", "write"], &remote[..], &[file.path().to_str().unwrap()]].concat());
    let copy = succeed(&[&["verbs", "read"], &remote[..], &["--bytes", &text.len().to_string()]].concat());
    assert!(copy == text, "the memory has the bytes of the file");
    for (key, bytes, reason) in
        [("24302", "1", "remote access error"), ("24301", "4M", "remote access error")]
    {
        let error = fail(&["verbs", "read", address, "--rkey", key, "--bytes", bytes]);
        assert!(error.contains(reason) && error.contains("isolane verbs serve"), "{error}");
    }
    let error = fail(&["verbs", "read", "127.0.0.1:1", "--rkey", "1", "--bytes", "1"]);
    assert!(error.contains("cannot connect to 127.0.0.1:1"), "{error}");
    let error = fail(&["verbs", "serve", "127.0.0.1:0", "--bytes", "0"]);
    assert!(error.contains("allocate at least 1"), "{error}");
}

#[test]
fn verbs_devices_lists_local_addresses() {
    let rows: Value = serde_json::from_str(&succeed(&["verbs", "devices", "--json"])).unwrap();
    let rows = rows.as_array().unwrap();
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["device"], format!("isolane{index}"));
    }
    assert!(rows.iter().any(|row| row["address"] == "127.0.0.1"), "{rows:?}");
    assert!(succeed(&["verbs", "devices"]).contains("127.0.0.1"));
}

#[test]
fn verbs_run_starts_the_program_with_its_environment() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile_library(directory.path());
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.env("ISOLANE_IBVERBS", &library).env_remove("LD_PRELOAD").stderr(Stdio::null());
        let output = command.args(["verbs", "run"]).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let shown = "echo $LD_PRELOAD $ISOLANE_VERBS_PROGRESS $ISOLANE_VERBS_SOCKET $ISOLANE_VERBS_PORTS $ISOLANE_VERBS_LANES; exit 7";
    let options =
        ["--progress", "thread:0", "--socket", "tos=0x68", "--ports", "20000-20007", "--lanes", "2"];
    let (code, text) = run(&[&options, &["--", "sh", "-c", shown][..]].concat());
    assert_eq!((code, text), (Some(7), format!("{} thread:0 tos=0x68 20000-20007 2\n", library.display())));
    let error = fail(&["verbs", "run", "--ports", "9-1", "--", "true"]);
    assert!(error.contains("20000-20007"), "{error}");
    let error = fail(&["verbs", "run", "--progress", "thread:99999", "--", "true"]);
    assert!(error.contains("cannot use core 99999"), "{error}");
}

/// Runs a program with `verbs run` and a library. Returns its success and its stderr.
fn run_with(library: &Path, arguments: &[&OsStr]) -> (bool, String) {
    let mut command = program();
    command.env("ISOLANE_IBVERBS", library).env_remove("ASAN_OPTIONS").args(["verbs", "run"]);
    let output = command.args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn verbs_env_prints_the_environment_of_verbs_run() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile_library(directory.path());
    let mut command = program();
    command.env("ISOLANE_IBVERBS", &library).args(["verbs", "env", "--lanes", "2"]);
    let output = command.output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    for (before, after) in [("", ""), ("/other.so", ":/other.so")] {
        let mut shell = Command::new("sh");
        let script = format!("LD_PRELOAD={before}; {lines} echo $LD_PRELOAD $ISOLANE_VERBS_LANES");
        let output = shell.env_remove("LD_PRELOAD").args(["-c", &script]).output().unwrap();
        let expected = format!("{}{after} 2\n", library.display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}

#[test]
fn verbs_run_refuses_wrong_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let any = compile_library(directory.path());
    let spaced = directory.path().join("a library");
    fs::copy(&any, &spaced).unwrap();
    for (library, arguments, reason) in [
        (&any, &["--", "/no/such/program"][..], "/no/such/program"),
        (&any, &["--lane", "2", "--", "true"], "'--lanes'"),
        (&any, &["--lane", "true"], "'--lanes'"),
        (&"/no/such/library".into(), &["true"], "ISOLANE_IBVERBS=/no/such/library: No such file"),
        (&"/dev/null".into(), &["true"], "ISOLANE_IBVERBS=/dev/null: not a shared library"),
        (&"/bin/sh".into(), &["true"], "ISOLANE_IBVERBS=/bin/sh: not a shared library"),
        (&spaced, &["true"], "cannot hold a path with a space"),
    ] {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let (is_success, error) = run_with(library, &arguments);
        assert!(!is_success && error.contains(reason), "{arguments:?}: {error}");
    }
    // Options after the program are the ones of the program.
    assert_eq!(run_with(&any, &["sh".as_ref(), "-c".as_ref(), "exit 0".as_ref()]), (true, String::new()));
}

/// Compiles a library, which stands for the one of the devices.
fn compile_library(directory: &Path) -> PathBuf {
    let library = directory.join("library.so");
    fs::rename(compile(directory, &["-shared", "-fPIC"]), &library).unwrap();
    library
}

/// Compiles a program that returns 0.
fn compile(directory: &Path, options: &[&str]) -> PathBuf {
    let (source, program) = (directory.join("main.c"), directory.join("main"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(options).arg("-o").args([&program, &source]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

#[test]
fn verbs_run_warns_of_static_programs() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile_library(directory.path());
    for options in [&["-static"][..], &["-static-pie"]] {
        let program = compile(directory.path(), options);
        let (is_success, error) = run_with(&library, &[program.as_os_str()]);
        assert!(is_success && error.contains("linked statically"), "{options:?}: {error}");
    }
    let program = compile(directory.path(), &[]);
    assert_eq!(run_with(&library, &[program.as_os_str()]), (true, String::new()));
}

#[test]
fn verbs_run_starts_programs_with_asan() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile_library(directory.path());
    let program = compile(directory.path(), &["-fsanitize=address"]);
    assert_eq!(run_with(&library, &[program.as_os_str()]), (true, String::new()));
}

#[test]
fn verbs_run_finds_the_installed_library() {
    let prefix = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = prefix.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (copy, library) = (directory("bin").join("isolane"), directory("lib").join("libisolane_ibverbs.so"));
    // A file that this process has open for writing cannot be started by another thread.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_isolane")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let run = || {
        let mut command = Command::new(&copy);
        command
            .env_remove("ISOLANE_IBVERBS")
            .env_remove("LD_PRELOAD")
            .env("LD_LIBRARY_PATH", prefix.path())
            .stderr(Stdio::piped());
        let output = command.args(["verbs", "run", "sh", "-c", "echo $LD_PRELOAD"]).output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [_, error] = run();
    assert!(error.contains("scripts/install") && error.contains("ISOLANE_IBVERBS"), "{error}");
    fs::copy(compile_library(prefix.path()), &library).unwrap();
    let [preloaded, warning] = run();
    assert!(preloaded.trim().ends_with("lib/libisolane_ibverbs.so"), "{preloaded}");
    assert!(warning.contains("isolane-verbs") && warning.lines().count() == 1, "{warning}");
    let versioned = library.with_file_name("isolane-verbs");
    fs::create_dir(&versioned).unwrap();
    // It lacks the versions of an installed library.
    let installed = prefix.path().join("libibverbs.so.1");
    fs::write(&installed, b"\0IBVERBS_PRIVATE_99\0").unwrap();
    fs::write(versioned.join("libibverbs.so.1"), b"\0IBVERBS_PRIVATE_34\0").unwrap();
    let [preloaded, warning] = run();
    assert!(preloaded.trim().ends_with("lib/libisolane_ibverbs.so"), "{preloaded}");
    assert!(warning.contains("IBVERBS_PRIVATE_99") && warning.lines().count() == 1, "{warning}");
    fs::write(versioned.join("libibverbs.so.1"), b"\0IBVERBS_PRIVATE_99\0").unwrap();
    fs::write(prefix.path().join("librdmacm.so.1"), b"\0IBVERBS_PRIVATE_99\0").unwrap();
    let [preloaded, _] = run();
    assert!(preloaded.trim().ends_with("lib/isolane-verbs/libibverbs.so.1"), "{preloaded}");
}
