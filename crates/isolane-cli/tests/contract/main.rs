//! The command line: output, errors, and exit codes of the program.

mod apply;
mod apply_upgrade;
mod auth;
mod bench;
mod completions;
mod conditions;
mod config;
mod copy;
mod ctl;
mod deep;
mod discovery_log;
mod doctor;
mod dump;
mod engine_run;
mod export;
mod gate;
mod heatmap;
mod host_control;
mod key;
mod light;
mod observe;
mod openapi;
mod remote;
#[path = "../../../isolane-inspect/src/sample.rs"]
mod sample;
mod serve;
mod stall_times;
mod state;
mod stderr;
#[path = "../stop/mod.rs"]
mod stop;
mod subsystems;
mod top;
mod upgrade;
mod upgrade_kill;
mod verbs;
mod verbs_stages;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Once};

use signal_hook::consts::SIGHUP;

/// A running `isolane serve`, killed on drop.
struct Server {
    child: Child,
    /// Its stderr.
    log: tempfile::NamedTempFile,
    uri: String,
    printed: Vec<String>,
}

impl Server {
    /// Serves on a free port, and reads the output up to the last command to paste.
    fn start(arguments: &[&str]) -> Server {
        Server::start_with_log("warn", arguments)
    }

    fn start_with_log(level: &str, arguments: &[&str]) -> Server {
        let options = ["--listen", "127.0.0.1:0", "--mode", "sleep", "--log-level", level];
        Server::start_alone(&[&options[..], arguments].concat())
    }

    /// Serves with these arguments only.
    fn start_alone(arguments: &[&str]) -> Server {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut child = program()
            .args([&["serve"], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut printed = Vec::new();
        for line in lines {
            let is_last = line.contains("isolane bench ");
            printed.push(line);
            if is_last {
                break;
            }
        }
        let address = printed[0].strip_prefix("listening on ").expect("the first line names the listener");
        let uri = format!("nvme+tcp://{address}");
        Server { child, log, uri, printed }
    }

    fn volume(&self, nsid: u32) -> String {
        format!("{}?nsid={nsid}", self.uri)
    }

    /// Sends a signal and waits for the end.
    fn stop(mut self) -> bool {
        kill(&self.child, "TERM");
        self.child.wait().unwrap().success()
    }

    /// Stops as [`Server::stop`], with success. Returns the whole log.
    fn log_at_end(mut self) -> String {
        kill(&self.child, "TERM");
        assert!(self.child.wait().unwrap().success());
        fs::read_to_string(self.log.path()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Command {
    // Under nohup the program would inherit an ignored SIGHUP; exec resets a handled one.
    static HANDLE_SIGHUP: Once = Once::new();
    HANDLE_SIGHUP.call_once(|| {
        signal_hook::flag::register(SIGHUP, Arc::default()).unwrap();
    });
    Command::new(env!("CARGO_BIN_EXE_isolane"))
}

fn kill(child: &Child, signal: &str) {
    kill_pid(child.id(), signal);
}

fn kill_pid(pid: u32, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that fails, and returns its errors.
fn fail(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn version_names_the_commit() {
    let version = succeed(&["--version"]);
    let suffix = version.trim().strip_prefix(concat!("isolane ", env!("CARGO_PKG_VERSION"))).unwrap();
    let git = |arguments: &[&str]| {
        let git = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output();
        git.is_ok_and(|output| output.status.success())
    };
    let is_checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git").exists();
    if !is_checkout || !git(&["rev-parse", "HEAD"]) {
        return assert_eq!(suffix, "");
    }
    let commit = suffix.strip_prefix(" (").and_then(|suffix| suffix.strip_suffix(")")).expect(&version);
    assert!(git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]), "{version}");
}

#[test]
fn help_names_every_product() {
    let help = succeed(&["-h"]);
    let summary = help.lines().find(|line| line.contains("NVMe/TCP")).expect(&help);
    for product in ["target", "host", "engine", "verbs"] {
        assert!(summary.contains(product), "{summary}");
    }
}

#[test]
fn serve_prints_commands_and_ends_cleanly() {
    let server = Server::start(&[]);
    let text = server.printed.join("\n");
    assert!(text.contains("sudo modprobe nvme-tcp") && text.contains("sudo nvme connect -t tcp"), "{text}");
    // A shell that does not have the program in its PATH.
    for pasted in ["isolane info ", "isolane bench "] {
        let line = server.printed.iter().find(|line| line.contains(pasted)).expect(pasted);
        let line = format!("{line} {}", if pasted.contains("bench") { "--time 10ms" } else { "" });
        let ran = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    assert!(server.stop());
}

#[test]
fn help_into_full_device_fails() {
    for arguments in [&["--help"][..], &["--version"], &["serve", "--help"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().args(arguments).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("cannot write to stdout"), "{error}");
    }
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(run(&["--bogus"]).status.code(), Some(2));
}

#[test]
fn info_prints_namespaces() {
    let server = Server::start(&["mem:1M", "null:1T,block-size=4096,nsid=7,ro"]);
    let info: serde_json::Value = serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
    let namespaces = info["namespaces"].as_array().unwrap();
    assert_eq!(namespaces[0]["bytes"], 1 << 20);
    assert_eq!(
        (namespaces[1]["nsid"].as_u64(), namespaces[1]["block_bytes"].as_u64()),
        (Some(7), Some(4096))
    );
    assert_eq!(
        (namespaces[0]["read_only"].as_bool(), namespaces[1]["read_only"].as_bool()),
        (Some(false), Some(true))
    );
    assert!(succeed(&["info", &server.uri]).contains("namespace    7: 1.0 TiB"));
}

#[test]
fn discover_prints_the_given_address() {
    let server = Server::start(&["mem:1M"]);
    let found: serde_json::Value =
        serde_json::from_str(&succeed(&["discover", &server.uri, "--json"])).unwrap();
    let record = &found["records"][0];
    assert_eq!(record["subtype"], "nvm");
    assert_eq!(record["traddr"], "127.0.0.1");
    assert!(server.uri.ends_with(record["trsvcid"].as_str().unwrap()));
}

#[test]
fn lists_namespaces_if_none_is_selected() {
    let server = Server::start(&["mem:1M", "mem:1M"]);
    let error = fail(&["bench", &server.uri, "--time", "100ms"]);
    assert!(error.contains("nsid=1") && error.contains("nsid=2"), "{error}");
}

#[test]
fn round_trips_a_file_with_holes() {
    let server = Server::start(&["mem:8M"]);
    let dir = tempfile::tempdir().unwrap();
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let file = fs::File::create(&there).unwrap();
    file.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(300_000), 1 << 20).unwrap();
    succeed(&["bench", &server.uri, "--rw", "write", "--bs", "64k", "--time", "200ms"]);
    succeed(&["copy", text(&there), &server.uri, "--verify"]);
    succeed(&["copy", &server.uri, text(&back), "--verify"]);
    assert!(fs::read(&there).unwrap() == fs::read(&back).unwrap());
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&back).unwrap());
    assert!(blocks * 512 < 2 << 20, "{blocks} blocks of 512 B are allocated for 300 kB of data");
}

#[test]
fn copies_pipes_in_both_directions() {
    let server = Server::start(&["mem:1M"]);
    let bytes = pattern(1 << 20);
    let mut child =
        program().args(["copy", "-", &server.uri, "--verify"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(run(&["copy", &server.uri, "-"]).stdout == bytes);
}

#[test]
fn checks_sizes_before_writing() {
    let server = Server::start(&["mem:1M"]);
    let dir = tempfile::tempdir().unwrap();
    let (odd, large) = (dir.path().join("odd"), dir.path().join("large"));
    fs::write(&odd, pattern(1000)).unwrap();
    fs::write(&large, pattern(2 << 20)).unwrap();
    let error = fail(&["copy", text(&odd), &server.uri]);
    assert!(error.contains("whole blocks of 512") && error.contains("add --pad"), "{error}");
    let error = fail(&["copy", text(&large), &server.uri]);
    assert!(error.contains("destination holds 1048576"), "{error}");
    let volume = run(&["copy", &server.uri, "-"]).stdout;
    assert!(volume.iter().all(|&byte| byte == 0), "something was written");
}

#[test]
fn rejects_writers_of_read_only_volumes() {
    let server = Server::start(&["mem:1M,ro"]);
    assert!(fail(&["bench", &server.uri, "--rw", "randwrite"]).contains("read-only"));
    let error = fail(&["bench", &server.uri, "--background", "write:4k:1"]);
    assert!(error.contains("read-only; use a background load of reads"), "{error}");
    assert!(fail(&["bench", &server.uri, "--verify"]).contains("remove --verify"));
    assert!(fail(&["copy", "/dev/null", &server.uri]).contains("read only"));
}

#[test]
fn bench_supports_classes_and_threads() {
    let server = Server::start(&["mem:4M"]);
    let measure = |arguments: &[&str]| -> serde_json::Value {
        let common = ["bench", &server.uri, "--time", "200ms", "--json", "-"];
        serde_json::from_str(&succeed(&[&common, arguments].concat())).unwrap()
    };
    let classes = ["--lanes", "2", "--read-lanes", "1", "--poll-lanes", "1", "--depth", "4"];
    let background = ["--background", "write:64k:2", "--share-depth"];
    for more in [&[][..], &["--class", "poll"], &["--coalesce"]] {
        let figures = measure(&[&classes[..], &background, more].concat());
        assert!(figures["operations"].as_u64().unwrap() > 0, "{figures}");
        assert!(figures["background"]["iops"].as_f64().unwrap() > 0.0, "{figures}");
    }
    for inline in ["on", "off"] {
        let figures = measure(&["--threads", "3", "--depth", "2", "--inline", inline]);
        assert!(figures["operations"].as_u64().unwrap() > 0, "{figures}");
        assert_eq!((&figures["errors"], &figures["workload"]["threads"]), (&0.into(), &3.into()));
    }
}

#[test]
fn bench_reports_settings_and_granted_lanes() {
    let server = Server::start(&["mem:4M", "--io-queues", "3"]);
    let measure = |arguments: &[&str]| -> serde_json::Value {
        let common = ["bench", &server.uri, "--time", "20ms", "--json", "-"];
        serde_json::from_str(&succeed(&[&common, arguments].concat())).unwrap()
    };
    for threads in [&[][..], &["--threads", "2", "--inline", "off"]] {
        let chosen =
            ["--read-lanes", "7", "--class", "read", "--coalesce=8:4k:20us", "-g", "--mode", "sleep"];
        let workload = &measure(&[&chosen, threads].concat())["workload"];
        let lanes = |name: &str| (&workload[name], &workload["lanes_requested"]["read"]);
        assert_eq!(lanes("read_lanes"), (&2.into(), &7.into()), "{workload}");
        assert_eq!((&workload["class"], &workload["mode"]), (&"read".into(), &"sleep".into()));
        assert_eq!((&workload["hdr_digest"], &workload["data_digest"]), (&true.into(), &false.into()));
        assert_eq!(workload["coalesce"], "8:4k:20us");
        assert_eq!(workload["inline"].as_bool(), threads.first().map(|_| false), "{workload}");
    }
    let heading = succeed(&["bench", &server.uri, "--time", "20ms", "--read-lanes", "7"]);
    assert!(heading.contains("1 lane + 2 read (of 7 requested)"), "{heading}");
    assert!(heading.contains("class by direction, digests none, coalescing off"), "{heading}");
}

#[test]
fn bench_rejects_useless_options() {
    let server = Server::start(&["mem:1M"]);
    let error = fail(&["bench", &server.uri, "--mix", "50", "--rw", "randread"]);
    assert!(error.contains("--mix") && error.contains("--rw randrw"), "{error}");
    let error = fail(&["bench", &server.uri, "--size", "2m"]);
    assert!(error.contains("--size of 2097152 bytes") && error.contains("has 1048576"), "{error}");
    succeed(&["bench", &server.uri, "--rw", "randrw", "--mix", "50", "--size", "1m", "--time", "20ms"]);
}

#[test]
fn sends_everything_without_a_copy() {
    let server = Server::start(&["mem:4M", "--zerocopy-threshold", "0"]);
    succeed(&["bench", &server.uri, "--rw", "randrw", "--bs", "64k", "--verify", "--time", "100ms"]);
}

#[test]
fn bench_shows_placement() {
    let server = Server::start(&["mem:4M"]);
    let run = |more: &[&str]| {
        let lanes = ["--lanes", "2", "--read-lanes", "1", "--time", "20ms"];
        succeed(&[&["bench", &server.volume(1)], &lanes[..], more].concat())
    };
    let shown = run(&["--show-placement"]);
    for line in [
        "\nthread     on core ",
        "\nadmin      queue 0, port ",
        "\ndefault 1  queue 2, port ",
        "\nread 0     queue 3, ",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(!run(&[]).contains("queue 0"), "only with --show-placement");
    let figures: serde_json::Value = serde_json::from_str(&run(&["--threads", "3", "--json", "-"])).unwrap();
    let of = |what: &str| figures["placement"][what].as_array().map_or(0, Vec::len);
    assert_eq!((of("threads"), of("connections")), (3, 4), "{figures}");
}

#[test]
fn bench_places_lanes_on_cores() {
    let server = Server::start(&["mem:4M"]);
    let core = isolane_reactor::cpu::allowed().unwrap()[0];
    let list = core.to_string();
    let common = ["--threads", "2", "--time", "20ms", "--read-lanes", "1", "--show-placement"];
    let shown = succeed(
        &[&["bench", &server.uri, "--cores", &list, "--thread-cores", &list][..], &common[..]].concat(),
    );
    assert!(shown.contains(&format!(", lanes on cores {core}\n")), "{shown}");
    assert_eq!(
        shown.matches(&format!("placed on core {core}, driven on core {core}, ")).count(),
        3,
        "{shown}"
    );
    assert_eq!(shown.matches(&format!("\nthread     on core {core}, pinned")).count(), 2, "{shown}");
    let placed = format!("{}?cores={core}", server.volume(1).split('?').next().unwrap());
    let shown = succeed(&[&["bench", &placed][..], &common[..]].concat());
    assert_eq!(shown.matches(&format!("placed on core {core}, ")).count(), 3, "{shown}");
    assert!(shown.contains(&format!(", lanes on cores {core}\n")), "cores of the URI: {shown}");
    assert!(fail(&["bench", &placed]).contains("--threads"));
    assert!(fail(&["copy", &placed, "-"]).contains("leave them out"));
    let error = fail(&["bench", &server.uri, "--threads", "1", "--cores", "1023"]);
    assert!(error.contains("core 1023"), "{error}");
    assert!(
        fail(&["bench", &server.uri, "--threads", "1", "--cores", "1,1"]).contains("core 1 is given twice")
    );
}

#[test]
fn bench_writes_the_promised_json_and_verifies() {
    let server = Server::start(&["mem:4M"]);
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("figures.json");
    let arguments = [
        "--rw",
        "randrw",
        "--verify",
        "--time",
        "300ms",
        "--lanes",
        "2",
        "--depth",
        "8",
        "--json",
        text(&json),
    ];
    succeed(&[&["bench", &server.uri][..], &arguments].concat());
    let figures: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert!(figures["iops"].as_f64().unwrap() > 0.0 && figures["mib_per_s"].as_f64().unwrap() > 0.0);
    for name in ["mean", "p50", "p90", "p99", "p99_9", "p99_99", "max"] {
        assert!(figures["latency_us"][name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(figures["verified_blocks"].as_u64().unwrap() > 0);
    assert_eq!(figures["verify_errors"], 0);
}

#[test]
fn verifying_a_volume_that_drops_writes_fails() {
    let server = Server::start(&["null:4M"]);
    let error = fail(&["bench", &server.uri, "--rw", "randwrite", "--verify", "--time", "100ms"]);
    assert!(error.contains("blocks are wrong") && error.contains("holds no pattern"), "{error}");
}

#[test]
fn rejects_excessive_depth_with_the_limit() {
    let server = Server::start(&["mem:1M", "--queue-depth", "16"]);
    let error = fail(&["bench", &server.uri, "--depth", "16", "--time", "100ms"]);
    assert!(error.contains("hold 15 commands, depth 16 requested"), "{error}");
}

#[test]
fn default_depth_adapts_to_small_queues() {
    let server = Server::start(&["mem:4M", "--queue-depth", "4"]);
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, pattern(4 << 20)).unwrap();
    let nqn = server.printed.iter().find_map(|line| line.split("nvme+tcp://").nth(1)).unwrap();
    let front = Server::start(&[&format!("nvme+tcp://{nqn}"), "--nqn", "nqn.2014-08.org.example:front"]);
    succeed(&["copy", "--verify", text(&from), &front.uri]);
    succeed(&["copy", &server.uri, text(&dir.path().join("to"))]);
    assert!(fs::read(dir.path().join("to")).unwrap() == pattern(4 << 20));
    let measured = succeed(&["bench", &server.uri, "--time", "10ms"]);
    assert!(measured.contains("x depth 3 x 1 lane"), "{measured}");
    succeed(&["bench", &server.uri, "--time", "10ms", "--threads", "2"]);
    assert!(front.stop() && server.stop());
}

#[test]
fn rejects_hosts_that_are_not_allowed() {
    let server = Server::start(&["mem:1M", "--allow-host", "nqn.2014-08.org.example:friend"]);
    let nqn = server.printed.iter().find_map(|line| line.split("nvme+tcp://").nth(1)).unwrap();
    let uri = format!("nvme+tcp://{nqn}");
    succeed(&["info", &uri, "--host-nqn", "nqn.2014-08.org.example:friend"]);
    let error = fail(&["info", &uri, "--host-nqn", "nqn.2014-08.org.example:stranger"]);
    assert!(error.contains("allow"), "{error}");
}

#[test]
fn file_volume_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("{},size=4M", text(&dir.path().join("disk.img")));
    let input = dir.path().join("input");
    fs::write(&input, pattern(4 << 20)).unwrap();
    let identity = |server: &Server| {
        let info: serde_json::Value =
            serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
        info["namespaces"][0]["uuid"].as_str().unwrap().to_owned()
    };
    let server = Server::start(&[&volume]);
    succeed(&["copy", text(&input), &server.volume(1)]);
    let before = identity(&server);
    assert!(server.stop());
    let server = Server::start(&[&volume]);
    assert_eq!(identity(&server), before);
    assert!(run(&["copy", &server.uri, "-"]).stdout == fs::read(&input).unwrap());
}

#[test]
fn two_targets_cannot_serve_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("{},size=1M", text(&dir.path().join("disk.img")));
    let server = Server::start(&[&volume]);
    let owner = format!("disk.img: in use by isolane (process {}); stop it first", server.child.id());
    let error = fail(&["serve", "--listen", "127.0.0.1:0", &volume]);
    assert!(error.contains(&owner), "{error}");
    let link = dir.path().join("link.img");
    fs::hard_link(dir.path().join("disk.img"), &link).unwrap();
    let error = fail(&["serve", "--listen", "127.0.0.1:0", text(&link)]);
    assert!(error.contains(&owner.replace("disk", "link")), "{error}");
}

#[test]
fn errors_include_a_hint() {
    for (arguments, remedy) in [
        (&["info", "http://127.0.0.1"][..], "nvme+tcp://HOST"),
        (&["info", "nvme+tcp://127.0.0.1:1"][..], "is a target listening there"),
        (&["serve", "mem:lots"][..], "such as mem:1G"),
        (&["serve", "/no/such/file"][..], "size="),
        (&["serve", "--cores", "1000"][..], "choose from"),
        (&["serve", "--nqn", "nqn.x:a?b"][..], "use a name such as"),
        (&["copy", "/no/such/file", "/tmp/x"][..], "check the path"),
        (&["copy", "/dev/null", "/tmp"][..], "name a file"),
    ] {
        let error = fail(arguments);
        assert!(error.starts_with("isolane: ") && error.contains(remedy), "{arguments:?}: {error}");
    }
}

#[test]
fn explains_invalid_addresses_and_cores() {
    for (arguments, form) in [
        (&["serve", "--listen", "localhost:x"][..], "[::1]:4420"),
        (&["serve", "--advertise", "10.0.0.1:x"][..], "127.0.0.1:4420"),
        (&["serve", "--cores", "0:1"][..], "a list as 0,1 or 0-3"),
    ] {
        let error = fail(arguments);
        assert!(error.contains(form), "{arguments:?}: {error}");
    }
}

#[test]
fn rejects_copy_of_a_file_to_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::write(&one, pattern(8192)).unwrap();
    fs::hard_link(&one, &two).unwrap();
    assert!(fail(&["copy", text(&one), text(&two)]).contains("to itself"));
    assert!(fs::read(&one).unwrap() == pattern(8192));
}

#[test]
fn rejects_replacement_of_served_files() {
    let dir = tempfile::tempdir().unwrap();
    let (served, other) = (dir.path().join("disk.img"), dir.path().join("other"));
    fs::write(&served, pattern(1 << 20)).unwrap();
    fs::write(&other, [0; 512]).unwrap();
    let _server = Server::start(&[text(&served)]);
    let error = fail(&["copy", text(&other), text(&served)]);
    assert!(error.contains("a target serves it") && error.contains("URI"), "{error}");
    assert!(fs::read(&served).unwrap() == pattern(1 << 20));
}

#[test]
fn replaces_longer_files() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, pattern(5000)).unwrap();
    fs::write(&to, [7; 9000]).unwrap();
    succeed(&["copy", text(&from), text(&to), "--verify"]);
    assert!(fs::read(&to).unwrap() == pattern(5000));
}

#[test]
fn treats_character_devices_as_pipes() {
    let server = Server::start(&["mem:1M"]);
    assert!(fail(&["copy", "/dev/zero", &server.uri]).contains("larger than its 2048 blocks"));
    succeed(&["copy", &server.uri, "/dev/null"]);
    assert!(fail(&["copy", &server.uri, "/dev/full"]).contains("free space"));
    assert!(fail(&["copy", &server.uri, "/dev/null", "--verify"]).contains("remove --verify"));
}

#[test]
fn rejects_unwritable_json_before_measuring() {
    let server = Server::start(&["mem:1M"]);
    let error = fail(&["bench", &server.uri, "--time", "1h", "--json", "/no/such/dir/figures.json"]);
    assert!(error.contains("/no/such/dir/figures.json") && error.contains("check the path"), "{error}");
}

#[test]
fn shows_hosts_without_keep_alive() {
    let server = Server::start(&["mem:1M"]);
    assert!(succeed(&["info", &server.uri, "-k", "0"]).contains("keep alive none"));
}
