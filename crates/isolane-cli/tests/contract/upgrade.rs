//! `isolane ctl upgrade`: the program is replaced while hosts use it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::conditions::wait_for_log;
use crate::{Server, fail, program, succeed, text};

struct Upgraded {
    server: Server,
    socket: PathBuf,
    dir: tempfile::TempDir,
}

/// A target of a file of 64 MiB.
fn serving() -> Upgraded {
    serve(&["DIR/a.img,size=64M"])
}

/// A target of volumes, in whose text `DIR` is its directory.
fn serve(volumes: &[&str]) -> Upgraded {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    let volumes: Vec<String> = volumes.iter().map(|text| text.replace("DIR", text_of(&dir))).collect();
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    let server =
        Server::start_with_log("info", &[&["--control-socket", text(&socket)], &volumes[..]].concat());
    Upgraded { server, socket, dir }
}

fn text_of(dir: &tempfile::TempDir) -> &str {
    text(dir.path())
}

impl Upgraded {
    fn arguments<'a>(&'a self, program: &'a [&'a str]) -> Vec<&'a str> {
        [&["ctl", "--socket", text(&self.socket), "upgrade"], program].concat()
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        succeed(&[&["ctl", "--socket", text(&self.socket)], arguments].concat())
    }

    /// Returns the state of all namespaces, as text of users.
    fn status(&self) -> serde_json::Value {
        let mut status: serde_json::Value = serde_json::from_str(&self.ctl(&["status", "--json"])).unwrap();
        for namespace in status["namespaces"].as_array_mut().unwrap() {
            namespace["oldest_command_ms"] = serde_json::Value::Null;
        }
        status
    }

    fn upgrade(&self) -> String {
        succeed(&self.arguments(&[env!("CARGO_BIN_EXE_isolane")]))
    }

    fn refused(&self, program: &str) -> String {
        fail(&self.arguments(&[program]))
    }

    /// Writes a program in its directory.
    fn script(&self, name: &str, lines: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, lines).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        text(&path).to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.server.log.path()).unwrap()
    }
}

/// Writes and verifies until a time has passed; a lost connection is an error.
fn verify(volume: &str, duration: &str) -> Child {
    program()
        .args(["bench", volume, "--rw", "randrw", "--verify", "--time", duration, "--reconnect", "0s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_until(target: &Upgraded, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{}", target.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hosts_verify_their_data_over_several_upgrades() {
    let target = serving();
    let pid = target.server.child.id();
    let bench = verify(&target.server.volume(1), "4s");
    // The first connection reads the discovery log.
    let connections = || target.log().matches(" has connected").count();
    wait_until(&target, || connections() >= 2);
    for count in 1..=20 {
        let printed = target.upgrade();
        assert!(
            printed.starts_with(&format!("process {pid}: version "))
                && printed.ends_with(&format!(", upgrade {count}\n")),
            "{printed}\n{}",
            target.log()
        );
    }
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), target.log());
    assert_eq!(connections(), 2, "{}", target.log());
    assert!(target.server.stop());
}

#[test]
fn unusable_programs_are_refused_and_the_target_continues() {
    let target = serving();
    let silent = target.dir.path().join("silent");
    for (name, script) in
        [("silent", "exit 0"), ("crash", "kill -SEGV $$"), ("other", "echo isolane-rehearsal {}")]
    {
        let path = target.dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let crash = target.dir.path().join("crash");
    let other = target.dir.path().join("other");
    for (program, reason) in [
        ("/bin/false", "the rehearsal failed with exit status: 1"),
        ("/no/such/program", "cannot run /no/such/program"),
        (text(&silent), "it has reported nothing"),
        (text(&crash), "the rehearsal failed with signal: 11"),
        (text(&other), "it has reported nothing"),
    ] {
        let error = target.refused(program);
        assert!(error.contains(reason), "{program}: {error}");
    }
    let bench = verify(&target.server.volume(1), "200ms").wait_with_output().unwrap();
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    let pid = target.server.child.id();
    assert!(target.upgrade().starts_with(&format!("process {pid}: ")));
    assert!(target.server.stop());
}

/// A program that is gone after its rehearsal cannot be executed.
#[test]
fn target_continues_after_its_threads_have_ended() {
    let target = serve(&["DIR/a.img,size=8M", "mem:8M", "--metrics", "127.0.0.1:0"]);
    let lines = format!("#!/bin/sh\nrm -f \"$0\"\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_isolane"));
    let benches = [1, 2].map(|nsid| verify(&target.server.volume(nsid), "6s"));
    let queues = || target.ctl(&["connections", "--json"]).matches("\"qid\": 1,").count();
    wait_until(&target, || queues() == benches.len());
    for name in ["gone", "gone-again"] {
        let before = target.status();
        let error = target.refused(&target.script(name, &lines));
        assert!(error.contains("cannot execute") && error.contains("this target continues"), "{error}");
        assert_eq!(target.status(), before);
        assert_eq!(queues(), benches.len(), "{}", target.log());
        // All changes are still possible.
        let added = target.ctl(&["namespace", "add", "null:1M"]);
        let nsid = added.strip_prefix("namespace ").and_then(|text| text.split_once(':')).unwrap().0;
        target.ctl(&["namespace", "read-only", nsid]);
        target.ctl(&["namespace", "resize", "1", "16M"]);
        target.ctl(&["namespace", "remove", nsid]);
    }
    let connected = || target.ctl(&["events"]).matches("  connected  ").count();
    let before = connected();
    assert!(target.ctl(&["namespace", "add", "mem:1M,nsid=9"]).starts_with("namespace 9: "));
    assert!(verify(&target.server.volume(9), "100ms").wait_with_output().unwrap().status.success());
    wait_until(&target, || connected() > before);
    let pid = target.server.child.id();
    assert!(target.upgrade().starts_with(&format!("process {pid}: ")));
    for bench in benches {
        let output = bench.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), target.log());
    }
    assert!(!target.log().contains("panicked"), "{}", target.log());
    assert!(target.server.stop());
}

#[test]
fn hanging_program_is_ended_and_the_target_continues() {
    let target = serving();
    let hang = target.dir.path().join("hang");
    fs::write(&hang, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&hang, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let started = Instant::now();
    let error = target.refused(text(&hang));
    assert!(error.contains("the rehearsal has not ended within 10s"), "{error}");
    assert!(started.elapsed() >= Duration::from_secs(10));
    assert!(target.upgrade().ends_with(", upgrade 1\n"));
    assert!(target.server.stop());
}

#[test]
fn target_that_would_lose_something_refuses() {
    // The other program could not open the file, which is still served.
    let target = serving();
    fs::rename(target.dir.path().join("a.img"), target.dir.path().join("moved.img")).unwrap();
    wait_for_log(&target.server, &["moved.img"]);
    let error = target.refused(env!("CARGO_BIN_EXE_isolane"));
    assert!(error.contains("namespace 1: ") && error.contains("moved.img"), "{error}");
    let bench = verify(&target.server.volume(1), "200ms").wait_with_output().unwrap();
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
}

#[test]
fn changes_of_operators_survive_upgrades() {
    let target = serving();
    let path = |name: &str| target.dir.path().join(name).display().to_string();
    target.ctl(&["namespace", "add", &format!("{},size=8M", path("b.img"))]);
    target.ctl(&["namespace", "add", "null:1M"]);
    target.ctl(&["namespace", "add", "delay:1us:null:2M"]);
    target.ctl(&["namespace", "add", &format!("{},size=4M", path("c.img"))]);
    target.ctl(&["namespace", "resize", "1", "96M"]);
    target.ctl(&["namespace", "resize", "2", "2M", "--shrink"]);
    target.ctl(&["namespace", "read-only", "3"]);
    target.ctl(&["namespace", "offline", "5"]);
    let bench = verify(&target.server.volume(2), "3s");
    let connections = || target.log().matches(" has connected").count();
    wait_until(&target, || connections() >= 2);
    let before = target.status();
    assert_eq!(before["namespaces"].as_array().unwrap().len(), 5);
    for count in 1..=2 {
        assert!(target.upgrade().ends_with(&format!(", upgrade {count}\n")), "{}", target.log());
        assert_eq!(target.status(), before);
    }
    target.ctl(&["namespace", "remove", "4"]);
    target.ctl(&["namespace", "online", "5"]);
    target.ctl(&["namespace", "read-only", "3", "--off"]);
    let before = target.status();
    target.upgrade();
    assert_eq!(target.status(), before);
    let added = target.ctl(&["namespace", "add", "null:1M"]);
    assert!(added.starts_with("namespace 6: "), "4 was used before: {added}");
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), target.log());
    assert_eq!(connections(), 2, "{}", target.log());
    assert!(target.server.stop());
}

#[test]
fn file_stays_locked_over_an_upgrade() {
    let target = serving();
    target.upgrade();
    let image = target.dir.path().join("a.img");
    let error = fail(&["serve", text(&image), "--listen", "127.0.0.1:0"]);
    assert!(error.contains("in use by"), "{error}");
    let log = target.log();
    assert!(!log.contains("not served any longer"), "{log}");
}

#[test]
fn state_of_another_program_is_refused() {
    for option in ["--rehearse=99", "--resume-from=99", "--rehearse=0", "--resume-from=1"] {
        let error = fail(&["serve", option, "null:1M", "--listen", "127.0.0.1:0"]);
        assert!(error.contains("the state of the target before"), "{option}: {error}");
    }
}

#[test]
fn memory_volumes_keep_their_data_over_upgrades() {
    let target = serve(&[
        "mem:64M",
        "stripe:64k:mem:8M;mem:8M;mem:8M",
        "delay:1us:mem:16M",
        "mirror:mem:8M;mem:8M,bitmap=DIR/bits,create=yes",
    ]);
    let queues = || target.ctl(&["connections", "--json"]).matches("\"qid\": 1,").count();
    let benches: Vec<Child> = (1..=4).map(|nsid| verify(&target.server.volume(nsid), "4s")).collect();
    wait_until(&target, || queues() == benches.len());
    let before = target.status();
    for count in 1..=6 {
        assert!(target.upgrade().ends_with(&format!(", upgrade {count}\n")), "{}", target.log());
        assert_eq!(target.status()["namespaces"], before["namespaces"]);
    }
    for bench in benches {
        let output = bench.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), target.log());
    }
    assert!(target.server.stop());
}

#[test]
fn program_without_the_data_of_memory_volumes_is_refused() {
    let target = serve(&["mem:16M", "mem:16M"]);
    let data = target.dir.path().join("data");
    fs::write(&data, vec![7; 16 << 20]).unwrap();
    succeed(&["copy", text(&data), &target.server.volume(2)]);
    for (name, redirection, reason) in [
        ("missing", "<&-", "Bad file descriptor"),
        ("forged", &*format!("<>{}", data.display()), "it is not a sealed memory file"),
    ] {
        let lines = format!(
            "#!/bin/bash\nfor fd in /proc/$$/fd/*; do\n\
             case $(readlink $fd) in *isolane-volume*) eval \"exec ${{fd##*/}}{redirection}\";; esac\n\
             done\nexec {} \"$@\"\n",
            env!("CARGO_BIN_EXE_isolane")
        );
        let error = target.refused(&target.script(name, &lines));
        assert!(error.contains("the data of namespace 1 in memory") && error.contains(reason), "{error}");
    }
    assert!(target.upgrade().ends_with(", upgrade 1\n"));
    let copy = target.dir.path().join("copy");
    succeed(&["copy", &target.server.volume(2), text(&copy)]);
    assert!(fs::read(&copy).unwrap() == vec![7; 16 << 20]);
    assert!(target.server.stop());
}

/// A namespace that the other program cannot open keeps its data in memory.
#[test]
fn namespace_that_is_offline_after_an_upgrade_keeps_its_memory() {
    let target = serve(&["stripe:64k:mem:1M;(DIR/b.img,size=1M)"]);
    let bytes: Vec<u8> = (0..2 << 20).map(|at: u32| (at >> 12) as u8).collect();
    let (data, copy) = (target.dir.path().join("data"), target.dir.path().join("copy"));
    fs::write(&data, &bytes).unwrap();
    succeed(&["copy", text(&data), &target.server.volume(1)]);
    let [image, moved] = ["b.img", "moved"].map(|name| target.dir.path().join(name));
    // The program replaces the file after its rehearsal.
    let lines = format!(
        "#!/bin/sh\ncase \"$*\" in *--resume-from*) mv {0} {1}; mkdir {0};; esac\nexec {2} \"$@\"\n",
        image.display(),
        moved.display(),
        env!("CARGO_BIN_EXE_isolane")
    );
    let script = target.script("moves", &lines);
    let printed = succeed(&target.arguments(&[&script]));
    assert!(printed.ends_with(", upgrade 1\n"), "{printed}");
    assert_eq!(target.status()["namespaces"][0]["state"], "offline");
    let error = target.refused(env!("CARGO_BIN_EXE_isolane"));
    assert!(error.contains("its data in memory would be lost"), "{error}");
    fs::remove_dir(&image).unwrap();
    fs::rename(&moved, &image).unwrap();
    target.ctl(&["namespace", "online", "1"]);
    succeed(&["copy", &target.server.volume(1), text(&copy)]);
    assert!(fs::read(&copy).unwrap() == bytes);
    assert!(target.upgrade().ends_with(", upgrade 2\n"));
}

#[test]
fn volume_that_has_become_smaller_is_named_in_the_log() {
    let target = serving();
    let image = target.dir.path().join("a.img");
    let lines = format!(
        "#!/bin/sh\ncase \"$*\" in *--resume-from*) truncate -s 32M {};; esac\nexec {} \"$@\"\n",
        image.display(),
        env!("CARGO_BIN_EXE_isolane")
    );
    succeed(&target.arguments(&[&target.script("truncates", &lines)]));
    assert_eq!(target.status()["namespaces"][0]["state"], "offline");
    let log = target.log();
    assert!(log.contains("namespace 1 (") && log.contains("and had 67108864 before the upgrade"), "{log}");
}
