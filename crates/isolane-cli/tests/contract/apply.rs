//! Changes of a target with a configuration file: as a whole file, and one by one.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::conditions::wait_for_log;
use crate::{Server, fail, kill, run, succeed, text};

pub const A: &str = "nqn.2014-08.org.example:a";
pub const B: &str = "nqn.2014-08.org.example:b";
pub const HOST: &str = "nqn.2014-08.org.example:db1";

/// A target whose file has comments, subsystem A, and its namespace 1 in a file.
pub struct Target {
    pub server: Server,
    pub directory: tempfile::TempDir,
}

pub fn start() -> Target {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let file = format!(
        "# A target.\n[server]\nmode = \"sleep\"\ncontrol-socket = \"{}\"\n\n[[port]]   # the only one\n\
         name = \"local\"\nlisten = \"127.0.0.1:0\"\n\n[[subsystem]]\nnqn = \"{A}\"\nports = [\"local\"]\n\
         hosts = \"any\"\n\n[[subsystem.namespace]]   # first\nnsid = 1\nvolume = \"{},size=1M\"\n",
        path("serve.sock"),
        path("a.img"),
    );
    fs::write(path("isolane.toml"), file).unwrap();
    let server = Server::start_alone(&["--config", &path("isolane.toml")]);
    Target { server, directory }
}

impl Target {
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn file(&self) -> String {
        fs::read_to_string(self.path("isolane.toml")).unwrap()
    }

    pub fn write(&self, text: &str) {
        fs::write(self.path("isolane.toml"), text).unwrap();
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<String> {
        let socket = self.path("serve.sock").display().to_string();
        arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .chain(["--socket".to_owned(), socket])
            .collect()
    }

    pub fn ctl(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments).unwrap()
    }

    pub fn refused(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments).unwrap_err()
    }

    /// Returns the output of a command, or its error.
    fn try_ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let arguments = self.arguments(&[&["ctl"], arguments].concat());
        let output = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    pub fn upgrade(&self) {
        assert!(self.ctl(&["upgrade", env!("CARGO_BIN_EXE_isolane")]).contains("version"));
    }

    pub fn apply(&self, options: &[&str]) -> String {
        let file = self.path("isolane.toml").display().to_string();
        let arguments = self.arguments(&[&["config", "apply", &file], options].concat());
        succeed(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn apply_refused(&self, name: &str) -> String {
        let file = self.path(name).display().to_string();
        let arguments = self.arguments(&["config", "apply", &file, "--overwrite"]);
        fail(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ctl(&["status", "--json"])).unwrap()
    }

    /// Returns subsystem, ID, and size in bytes of each namespace.
    pub fn namespaces(&self) -> Vec<(String, u64, u64)> {
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let status = self.status();
        let all = status["namespaces"].as_array().unwrap();
        let mut all: Vec<_> = all
            .iter()
            .map(|one| {
                (one["subsystem"].as_str().unwrap().to_owned(), number(&one["nsid"]), number(&one["bytes"]))
            })
            .collect();
        all.sort();
        all
    }

    /// The address of the only port at the start.
    fn address(&self) -> &str {
        self.server.uri.trim_start_matches("nvme+tcp://")
    }

    /// Makes a change that gives a port an address, and returns this.
    fn changed_address(&self, port: &str, change: impl FnOnce() -> String) -> String {
        let lines = || {
            let log = fs::read_to_string(self.server.log.path()).unwrap();
            log.matches(&format!("port {port}: listening on ")).count()
        };
        let before = lines();
        change();
        while lines() == before {
            thread::sleep(Duration::from_millis(10));
        }
        self.address_of(port)
    }

    /// The address of a port that was added, or changed last.
    pub fn address_of(&self, port: &str) -> String {
        let start = format!("port {port}: listening on ");
        wait_for_log(&self.server, &[&start]);
        let log = fs::read_to_string(self.server.log.path()).unwrap();
        let at = log.rfind(&start).unwrap() + start.len();
        log[at..].lines().next().unwrap().to_owned()
    }

    pub fn uri(&self, nqn: &str) -> String {
        format!("{}/{nqn}", self.server.uri)
    }
}

pub fn namespace(nqn: &str, nsid: u64, mebibytes: u64) -> (String, u64, u64) {
    (nqn.to_owned(), nsid, mebibytes << 20)
}

#[test]
fn file_is_applied_as_a_whole() {
    let target = start();
    assert_eq!(target.apply(&[]), "no changes\n");
    let before = target.file();
    let more = format!(
        "\n[[subsystem.namespace]]\nnsid = 4\nvolume = \"mem:4M\"\n\n[[host]]\nname = \"db1\"\nnqn = \"{HOST}\"\n\n\
         [[subsystem]]\nnqn = \"{B}\"\nports = [\"local\"]\nhosts = [\"db1\"]\n\
         namespace = [{{ nsid = 1, volume = \"null:3M\" }}]\n"
    );
    let grown = before.replace("size=1M", "size=2M").replace("mode =", "pool = \"64M\"\nmode =");
    target.write(&format!("{grown}{more}"));
    let planned = target.apply(&["--dry-run"]);
    assert_eq!(target.namespaces(), [namespace(A, 1, 1)]);
    let applied = target.apply(&[]);
    assert_eq!(applied, planned);
    assert!(applied.starts_with("live (5 changes):\n  add host db1: name = "), "{applied}");
    assert!(applied.ends_with("restart (1 change):\n  server: pool = (default) -> \"64M\"\n"), "{applied}");
    assert_eq!(target.namespaces(), [namespace(A, 1, 2), namespace(A, 4, 4), namespace(B, 1, 3)]);
    succeed(&["info", &target.uri(B), "--host-nqn", HOST]);
    fail(&["info", &target.uri(B)]);
    // Only the restart is left.
    assert_eq!(target.apply(&[]), "restart (1 change):\n  server: pool = (default) -> \"64M\"\n");

    target.write(&before.replace("size=1M", "size=2M"));
    let applied = target.apply(&[]);
    assert!(applied.contains(&format!("  remove subsystem {B}\n")), "{applied}");
    assert_eq!(target.namespaces(), [namespace(A, 1, 2)]);
    assert!(target.server.stop());
}

#[test]
fn failure_changes_neither_file_nor_target() {
    let target = start();
    let (before, status) = (target.file(), target.status());
    let other = target.path("other.toml");
    let add = |volume: &str| format!("{before}\n[[subsystem.namespace]]\nnsid = 9\nvolume = \"{volume}\"\n");
    for (text, expected) in [
        (add("mem:1X"), "isolane.toml:21: subsystem nqn.2014-08.org.example:a namespace 9: volume"),
        (add("/no/such/file"), "cannot open /no/such/file: no such file"),
        (before.replace("size=1M", "size=512k"), "would shrink"),
        (
            before.replace("127.0.0.1:0", "192.0.2.1:1"),
            "isolane.toml:8: port local: listen = \"192.0.2.1:1\": cannot listen on 192.0.2.1:1: ",
        ),
        (
            format!("{before}\n[[port]]\nname = \"taken\"\nlisten = \"{}\"\n", target.address()),
            "is given twice",
        ),
        (
            format!("{before}\n[[host]]\nname = \"h\"\nnqn = \"{HOST}\"\nauth-key = \"file:/no/such/key\"\n"),
            "cannot use auth-key of host h",
        ),
    ] {
        fs::write(&other, text).unwrap();
        let error = target.apply_refused("other.toml");
        assert!(error.contains(expected), "{error}");
        assert_eq!((target.file(), target.status()), (before.clone(), status.clone()));
    }
    // The file has a change of somebody else, which must not be lost.
    target.write(&format!("{before}# mine\n"));
    fs::write(&other, add("mem:1M")).unwrap();
    let error = target.apply_refused("other.toml");
    assert!(error.contains("neither applied nor in the new text"), "{error}");
    assert_eq!((target.file(), target.status()), (format!("{before}# mine\n"), status));
    target.apply(&[]);
    let written = add("mem:1M");
    fs::write(&other, &written).unwrap();
    let other = other.display().to_string();
    let arguments = target.arguments(&["config", "apply", &other]);
    let error = fail(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let own = target.path("isolane.toml").display().to_string();
    assert!(
        error.contains(&format!("cannot apply {other}: the target was started with {own}; apply that file")),
        "{error}"
    );
    assert!(error.contains("--overwrite"), "{error}");
    assert_ne!(target.file(), written);
    let arguments = target.arguments(&["config", "apply", &other, "--overwrite"]);
    succeed(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(target.file(), written);
    assert_eq!(target.namespaces(), [namespace(A, 1, 1), namespace(A, 9, 1)]);
    assert!(target.server.stop());
}

#[test]
fn signal_applies_the_file() {
    let target = start();
    let before = target.file();
    target.write(&format!("{before}\n[[subsystem.namespace]]\nnsid = 2\nvolume = \"mem:1M\"\n"));
    kill(&target.server.child, "HUP");
    while target.namespaces().len() < 2 {
        thread::sleep(Duration::from_millis(10));
    }
    wait_for_log(&target.server, &["isolane.toml: applied, 1 change"]);
    target.write("[server\n");
    kill(&target.server.child, "HUP");
    wait_for_log(&target.server, &["not applied, and nothing has changed"]);
    assert_eq!(target.namespaces().len(), 2);
    assert!(target.refused(&["namespace", "add", "mem:1M"]).contains("has changes that are not applied"));
    assert!(target.server.stop());
}

#[test]
fn operator_changes_the_file() {
    let target = start();
    target.ctl(&["host", "add", "db1", &format!("nqn={HOST}")]);
    let added = target.ctl(&[
        "subsystem",
        "add",
        B,
        "ports=local",
        "hosts=db1",
        "namespace=[{ nsid = 1, volume = \"mem:1M\" }]",
    ]);
    assert!(added.starts_with("live (2 changes):\n"), "{added}");
    let volume = format!("{},size=1M", target.path("b.img").display());
    let namespace_of_a = ["--subsystem", A];
    let added = target.ctl(&[&["namespace", "add", &volume][..], &namespace_of_a].concat());
    assert_eq!(added, format!("namespace 2: {}, file, 1.0 MiB\n", target.path("b.img").display()));
    target.ctl(&[&["namespace", "resize", "2", "3M"][..], &namespace_of_a].concat());
    target.ctl(&[&["namespace", "add", "mem:1M", "--runtime"][..], &namespace_of_a].concat());
    target.ctl(&["subsystem", "set", A, "hosts=db1"]);
    assert_eq!(
        target.namespaces(),
        [namespace(A, 1, 1), namespace(A, 2, 3), namespace(A, 3, 1), namespace(B, 1, 1)]
    );
    fail(&["info", &target.uri(A)]);
    let file = target.file();
    for part in [
        "# A target.\n",
        "[[port]]   # the only one\n",
        "[[subsystem.namespace]]   # first\n",
        "b.img,size=3M\"",
    ] {
        assert!(file.contains(part), "{part}: {file}");
    }
    assert!(!file.contains("nsid = 3"), "{file}");
    for (arguments, expected) in [
        (&["host", "remove", "db1"][..], "no host is named \"db1\""),
        (&["host", "add", "db1", "nqn=x"], "host db1 exists already"),
        (&["host", "set", "db2", "nqn=x"], "there is no host db2"),
        (&["subsystem", "set", A, "hosts=db2"], "db2"),
        (&["namespace", "remove", "3", "--subsystem", A], "there is no subsystem"),
        (&["host", "add", "-", "nqn=x"], "host \"-\""),
    ] {
        let error = target.refused(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert_eq!(target.file(), file);
    let dry = target.ctl(&["subsystem", "remove", B, "--dry-run"]);
    assert_eq!(dry, format!("live (1 change):\n  remove subsystem {B}\n"));
    // What was changed at runtime ends with the next application.
    let applied = target.apply(&[]);
    assert_eq!(applied, format!("live (1 change):\n  remove subsystem {A} namespace 3\n"));
    target.ctl(&[&["namespace", "remove", "1"][..], &namespace_of_a].concat());
    target.ctl(&["namespace", "remove", "1", "--subsystem", B]);
    assert_eq!(target.namespaces(), [namespace(A, 2, 3)]);
    assert!(target.ctl(&["status"]).contains(&format!("subsystem {B}\n")), "without a volume");
    target.ctl(&["subsystem", "remove", B]);
    assert_eq!(target.namespaces(), [namespace(A, 2, 3)]);
    let path = target.path("isolane.toml");
    assert!(target.server.stop());
    // The next start serves the same.
    let server = Server::start_alone(&["--config", text(&path)]);
    let printed = server.printed.join("\n");
    assert!(printed.contains("namespace 2: ") && !printed.contains("namespace 1: "), "{printed}");
}

#[test]
fn target_without_a_file_has_none_to_change() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("serve.sock");
    let server = Server::start(&["mem:1M", "--control-socket", text(&socket)]);
    let error = fail(&["ctl", "host", "add", "db1", "nqn=x", "--socket", text(&socket)]);
    assert!(error.contains("start it with `isolane serve --config FILE`"), "{error}");
    succeed(&["ctl", "namespace", "add", "mem:1M", "--runtime", "--socket", text(&socket)]);
    assert!(server.stop());
}

#[test]
fn keys_change_while_the_target_runs() {
    let target = start();
    let key = target.path("db1.key").display().to_string();
    succeed(&["key", "gen", &key]);
    let host = format!("[[host]]\nname = \"db1\"\nnqn = \"{HOST}\"\nauth-key = \"file:{key}\"\n");
    let before = target.file().replace("hosts = \"any\"", "hosts = [\"db1\"]");
    target.write(&format!("{before}{host}"));
    target.apply(&[]);
    let uri = target.uri(A);
    let info = |key: &str| ["info", &uri, "--host-nqn", HOST, "--key", key].map(str::to_owned);
    let with = |key: &str, run: fn(&[&str]) -> String| run(&info(key).each_ref().map(String::as_str));
    fail(&["info", &uri, "--host-nqn", HOST]);
    with(&key, succeed);

    let new = target.path("new.key").display().to_string();
    succeed(&["key", "gen", &new]);
    with(&new, fail);
    // Both are valid while the host changes its key.
    target.write(
        &format!("{before}{host}")
            .replace(&format!("\"file:{key}\""), &format!("[\"file:{key}\", \"file:{new}\"]")),
    );
    let applied = target.apply(&[]);
    assert!(applied.starts_with("new associations only (1 change):\n  host db1: auth-key = "), "{applied}");
    with(&key, succeed);
    with(&new, succeed);
    fs::rename(&new, &key).unwrap();
    let error = target.apply_refused("isolane.toml");
    assert!(error.contains("cannot use auth-key of host db1"), "{error}");
    target.write(&format!("{before}{host}"));
    target.apply(&[]);
    with(&key, succeed);

    // The file stays, and the key in it changes.
    assert_eq!(target.apply(&[]), "no changes\n");
    fs::remove_file(&key).unwrap();
    succeed(&["key", "gen", &key]);
    with(&key, fail);
    let expected = "new associations only (1 change):\n  host db1: its key files have other keys\n";
    assert_eq!(target.apply(&["--dry-run"]), expected);
    with(&key, fail);
    assert_eq!(target.apply(&[]), expected);
    with(&key, succeed);
    assert!(target.server.stop());
}

#[test]
fn maximum_speed_changes_while_the_target_runs() {
    let target = start();
    let qos = || target.status()["namespaces"][0]["qos"].clone();
    assert_eq!(qos(), serde_json::Value::Null);
    target.ctl(&["namespace", "set", "1", "qos={ iops = 5000 }"]);
    assert_eq!(qos(), serde_json::json!({ "iops": 5000 }));
    let file = target.file();
    assert!(file.contains("qos = { iops = 5000 }"), "{file}");
    target.write(&file.replace("iops = 5000", "bytes = \"1M\""));
    target.apply(&[]);
    assert_eq!(qos(), serde_json::json!({ "bytes": 1 << 20 }));
    target.ctl(&["namespace", "set", "1", "qos="]);
    assert_eq!(qos(), serde_json::Value::Null);
    assert!(target.server.stop());
}

#[test]
fn ports_come_and_go() {
    let target = start();
    target.ctl(&["port", "add", "finder", "listen=127.0.0.1:0", "discovery-only=true"]);
    let finder = target.address_of("finder");
    let log = succeed(&["discover", &format!("nvme+tcp://{finder}")]);
    assert!(log.contains(A) && log.contains(&target.address().replace(':', " port ")), "{log}");
    target.ctl(&["port", "add", "right", "listen=127.0.0.1:0"]);
    let right = target.address_of("right");
    fail(&["info", &format!("nvme+tcp://{right}/{A}")]);
    target.ctl(&["subsystem", "set", A, "ports=right"]);
    succeed(&["info", &format!("nvme+tcp://{right}/{A}")]);
    fail(&["info", &target.uri(A)]);
    target.ctl(&["port", "remove", "local"]);
    fail(&["discover", &target.server.uri]);
    let refused = target.refused(&["port", "remove", "right"]);
    assert!(refused.contains("no port is named \"right\""), "{refused}");
    target.ctl(&["referral", "add", "other", "addresses=192.0.2.7:8009"]);
    assert!(succeed(&["discover", &format!("nvme+tcp://{finder}")]).contains("192.0.2.7"));
    assert!(target.server.stop());
}

#[test]
fn runtime_changes_leave_the_file() {
    let target = start();
    let file = target.file();
    let qos = || target.status()["namespaces"][0]["qos"]["iops"].as_u64();
    let changed = target.ctl(&["namespace", "set", "1", "qos={iops=500}", "--runtime"]);
    assert!(changed.starts_with("live (1 change):"), "{changed}");
    assert_eq!(qos(), Some(500));
    target.ctl(&["namespace", "set", "1", "volume=mem:2M", "--runtime"]);
    assert_eq!(target.namespaces(), [namespace(A, 1, 2)]);
    target.ctl(&["host", "add", "db1", &format!("nqn={HOST}"), "--runtime"]);
    target.ctl(&["port", "add", "right", "listen=127.0.0.1:0", "--runtime"]);
    target.ctl(&["subsystem", "set", A, "ports=right", "hosts=db1", "--runtime"]);
    target.ctl(&["server", "set", "stall-after=5s", "--runtime"]);
    fail(&["info", &target.uri(A), "--host-nqn", HOST]);
    let right = format!("nvme+tcp://{}/{A}", target.address_of("right"));
    succeed(&["info", &right, "--host-nqn", HOST]);
    let refused = target.refused(&["subsystem", "set", A, "serial=S2", "--runtime"]);
    assert!(refused.contains("serial") && refused.contains("leave out --runtime"), "{refused}");
    assert_eq!(target.file(), file);
    target.upgrade();
    assert_eq!((qos(), target.namespaces()), (Some(500), vec![namespace(A, 1, 2)]));
    succeed(&["info", &right, "--host-nqn", HOST]);
    // Also if the file has changes that are not applied, or cannot be read.
    target.write("[server");
    target.ctl(&["namespace", "set", "1", "qos=", "--runtime"]);
    assert_eq!((qos(), target.file()), (None, "[server".into()));
    target.write(&file);
    target.apply(&["--shrink"]);
    assert_eq!(target.namespaces(), [namespace(A, 1, 1)]);
    succeed(&["info", &target.uri(A)]);
    assert!(target.server.stop());
}

/// Together, they exceed the memory of this machine.
#[test]
fn one_of_two_large_volumes_is_added() {
    let target = start();
    target.ctl(&["subsystem", "add", B, "ports=local", "hosts=any"]);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
    };
    let volume = format!("mem:{}M", (total("MemTotal:") + total("SwapTotal:")) / 1024 * 3 / 5);
    for options in [&[][..], &["--runtime"]] {
        // The ID, unless the volume is refused.
        let add = |subsystem: &str| {
            let arguments =
                [&["ctl", "namespace", "add", &volume, "--subsystem", subsystem], options].concat();
            let output = crate::program().args(target.arguments(&arguments)).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.strip_prefix("namespace ").map(|text| text.split(':').next().unwrap().to_owned())
        };
        let add = &add;
        let added = thread::scope(|scope| {
            [A, B].map(|subsystem| scope.spawn(move || add(subsystem))).map(|thread| thread.join().unwrap())
        });
        // A control group can have less memory than the machine.
        assert!(added.iter().flatten().count() <= 1, "{added:?}");
        for (subsystem, nsid) in [A, B].into_iter().zip(added) {
            let Some(nsid) = nsid else { continue };
            target.ctl(&[&["namespace", "remove", &nsid, "--subsystem", subsystem], options].concat());
        }
    }
    assert!(target.server.stop());
}

#[test]
fn port_changes_its_address() {
    let target = start();
    let set = |address: &str| target.try_ctl(&["port", "set", "local", &format!("listen={address}")]);
    let first = target.changed_address("local", || set("127.0.0.2:0").unwrap());
    fail(&["info", &target.uri(A)]);
    succeed(&["info", &format!("nvme+tcp://{first}/{A}")]);
    // The addresses include each other. Another program can have the first one.
    let number = (3..100).find_map(|host| {
        let local = target.changed_address("local", || set(&format!("127.0.0.{host}:0")).unwrap());
        let number = local.rsplit(':').next().unwrap().to_owned();
        match set(&format!("0.0.0.0:{number}")) {
            Ok(_) => Some(number),
            Err(error) => {
                assert!(error.contains("Address already in use"), "{error}");
                None
            }
        }
    });
    let number = number.unwrap();
    let everywhere = format!("nvme+tcp://127.0.0.1:{number}/{A}");
    succeed(&["info", &everywhere]);
    set(&format!("127.0.0.1:{number}")).unwrap();
    succeed(&["info", &everywhere]);
    target.ctl(&["port", "add", "right", "listen=127.0.0.1:0"]);
    target.ctl(&["subsystem", "set", A, "ports=local,right"]);
    let (local, right) = (target.address_of("local"), target.address_of("right"));
    target.ctl(&["port", "set", "right", &format!("listen={right}")]);
    let text = target.file().replace(&local, "(other)").replace(&right, &local).replace("(other)", &right);
    target.write(&text);
    let planned = target.apply(&["--dry-run"]);
    let expected = format!("port right: listen = \"{right}\" -> \"{local}\"; its connections close");
    assert!(planned.starts_with("live (2 changes):") && planned.contains(&expected), "{planned}");
    assert_eq!(target.changed_address("right", || target.apply(&[])), local);
    assert_eq!(target.address_of("local"), right);
    target.upgrade();
    assert_eq!(target.apply(&[]), "no changes\n");
    for address in [right, local] {
        let log = succeed(&["discover", &format!("nvme+tcp://{address}")]);
        assert_eq!(log.matches(A).count(), 2, "{log}");
        succeed(&["info", &format!("nvme+tcp://{address}/{A}")]);
    }
    assert!(target.server.stop());
}

#[test]
fn namespace_is_hidden_from_other_hosts() {
    let target = start();
    target.ctl(&["host", "add", "db1", &format!("nqn={HOST}")]);
    let sees = |host: &str| succeed(&["info", &target.uri(A), "--host-nqn", host]).contains("namespace    1");
    let other = "nqn.2014-08.org.example:other";
    assert!(sees(HOST) && sees(other));
    target.ctl(&["namespace", "set", "1", "hosts=db1"]);
    assert!(sees(HOST) && !sees(other));
    // Also while it has no volume, and with another one.
    target.ctl(&["namespace", "offline", "1"]);
    assert!(!sees(other));
    target.ctl(&["namespace", "online", "1"]);
    assert!(sees(HOST) && !sees(other));
    target.ctl(&["namespace", "set", "1", "hosts="]);
    assert!(sees(other));
    assert!(target.server.stop());
}

#[test]
fn left_temporary_file_blocks_no_apply() {
    let target = start();
    let left = target.path(&format!(".isolane.toml.{}-0.new", target.server.child.id()));
    fs::write(&left, "of a process that was killed").unwrap();
    let volume = target.path("b.img").display().to_string();
    target.write(&format!(
        "{}\n[[subsystem.namespace]]\nnsid = 2\nvolume = \"{volume},size=1M\"\n",
        target.file()
    ));
    target.apply(&[]);
    // The target writes the file itself.
    target.ctl(&["namespace", "add", &format!("{},size=1M", target.path("c.img").display())]);
    assert!(target.file().contains("c.img") && left.exists());
}
