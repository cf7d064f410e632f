//! Configuration files: errors, gaps, differences, and the file of arguments.

use std::fs;
use std::path::Path;

use crate::{Server, fail, run, succeed, text};

const NQN: &str = "nqn.2014-08.org.example:disks";

/// Writes a file with one subsystem.
fn write(directory: &Path, name: &str, listen: &str, namespace: &str) -> String {
    let path = directory.join(name).display().to_string();
    let text = format!(
        "[[port]]\nname = \"left\"\nlisten = \"{listen}\"\n\n[[subsystem]]\nnqn = \"{NQN}\"\nports = [\"left\"]\n\
         hosts = \"any\"\n\n[[subsystem.namespace]]\n{namespace}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn wrong_files_and_strict_alone_are_errors_of_usage() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    fs::write(&file, "[server\n").unwrap();
    for arguments in
        [&["serve", "--config", text(&file)][..], &["serve", "--strict", "mem:1M", "--listen", "127.0.0.1:0"]]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn checks_the_example() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/isolane.toml");
    let checked = succeed(&["config", "check", "--strict", example]);
    assert_eq!(checked, format!("{example}: valid, 1 port, 0 hosts, 1 subsystem, 1 namespace\n"));
}

#[test]
fn reports_all_errors_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "a.toml", "4420", "nsid = 0\nvolume = \"mem:1X\"\nqso = 1");
    let error = fail(&["config", "check", &path]);
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    assert!(
        lines[0].starts_with(&format!("isolane: {path}:11: subsystem {NQN} namespace 0: nsid = 0: out of"))
    );
    assert!(
        lines[1].starts_with(&format!("{path}:12: "))
            && lines[1].contains("volume = \"mem:1X\": invalid size")
    );
    assert!(lines[2].ends_with("qso: unknown key; write qos"), "{error}");
    let missing = fail(&["config", "check", "/nonexistent/isolane.toml"]);
    assert!(missing.contains("cannot read /nonexistent/isolane.toml") && missing.contains("check the path"));
    let error = fail(&["config", "check", &directory.path().display().to_string()]);
    assert!(error.contains("a directory instead of a file; name a regular file"), "{error}");
}

#[test]
fn strict_check_fails_for_access_without_authentication() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "a.toml", "0.0.0.0:4420", "nsid = 1\nvolume = \"mem:1M\"");
    let checked = succeed(&["config", "check", &path]);
    assert!(
        checked.contains("\ngap: subsystem nqn.2014-08.org.example:disks: any host reads and writes"),
        "{checked}"
    );
    let strict = run(&["config", "check", "--strict", &path]);
    assert_eq!((strict.status.code(), String::from_utf8_lossy(&strict.stdout)), (Some(1), checked.into()));
}

#[test]
fn lists_changes_by_effect() {
    let directory = tempfile::tempdir().unwrap();
    let old = write(directory.path(), "a.toml", "4420", "nsid = 1\nvolume = \"mem:1M\"");
    let new =
        write(directory.path(), "b.toml", "4420", "nsid = 1\nvolume = \"mem:2M\"\n[server]\npool = \"64M\"");
    assert_eq!(succeed(&["config", "diff", &old, &old]), "no changes\n");
    assert_eq!(
        succeed(&["config", "diff", &old, &new]),
        format!(
            "live (1 change):\n  subsystem {NQN} namespace 1: volume = \"mem:1M\" -> \"mem:2M\"\nrestart (1 change):\n  \
             server: pool = (default) -> \"64M\"\n"
        )
    );
}

#[test]
fn prints_file_of_arguments() {
    let file = succeed(&[
        "config",
        "dump",
        "--nqn",
        NQN,
        "--listen",
        "10.0.0.1:4420,priority=5",
        "--listen",
        "4421",
        "--allow-host",
        "nqn.2014-08.org.example:db1",
        "--cores",
        "0",
        "--mode",
        "sleep",
        "--fair-queueing",
        "off",
        "--pool",
        "64M",
        "--on-slow",
        "none",
        "--control-socket",
        "off",
        "/srv/a.img,size=10G,nsid=7",
        "mem:1M",
    ]);
    assert_eq!(
        file,
        "[server]\ncores = \"0\"\nmode = \"sleep\"\nfair-queueing = false\npool = \"64M\"\non-slow = \"none\"\n\
         control-socket = \"off\"\n\n\
         [[port]]\nname = \"port1\"\nlisten = \"10.0.0.1:4420,priority=5\"\n\n\
         [[port]]\nname = \"port2\"\nlisten = \"127.0.0.1:4421\"\n\n\
         [[host]]\nname = \"host1\"\nnqn = \"nqn.2014-08.org.example:db1\"\n\n\
         [[subsystem]]\nnqn = \"nqn.2014-08.org.example:disks\"\nports = [\"port1\", \"port2\"]\nhosts = [\"host1\"]\n\n\
         [[subsystem.namespace]]\nnsid = 1\nvolume = \"mem:1M\"\n\n\
         [[subsystem.namespace]]\nnsid = 7\nvolume = \"/srv/a.img,size=10G\"\n"
    );
}

#[test]
fn file_of_arguments_has_absolute_paths_and_its_name() {
    let file = succeed(&["config", "dump", "--nqn", NQN, "./a,,b.img"]);
    let directory = std::env::current_dir().unwrap().display().to_string().replace(',', ",,");
    assert!(file.contains(&format!("volume = \"{directory}/a,,b.img\"")), "{file}");
    assert!(succeed(&["config", "dump"]).contains("nqn = \"nqn.2014-08.org.nvmexpress:uuid:"));
    let error = fail(&["config", "dump", "a.img"]);
    assert!(error.contains("depends on the identity of a.img; give the name with --nqn"), "{error}");
    let error = fail(&["config", "dump", "--nqn", NQN, "/srv/a.img", "/srv/a.img,nsid=2"]);
    assert!(
        error.contains("namespace 2: volume = \"/srv/a.img\": subsystem") && error.contains("same volume"),
        "{error}"
    );
}

/// A schema that accepts everything would also be valid JSON.
#[test]
fn prints_schema() {
    let schema: serde_json::Value = serde_json::from_str(&succeed(&["config", "schema"])).unwrap();
    assert_eq!(schema["properties"]["server"]["properties"]["io-queues"]["maximum"], 1024);
    assert_eq!(
        schema["properties"]["subsystem"]["items"]["required"],
        serde_json::json!(["nqn", "ports", "hosts"])
    );
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn serves_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let namespaces = "nsid = 3\nvolume = \"mem:1M\"\n[[subsystem.namespace]]\nnsid = 7\nvolume = \"null:2M,ro\"\n\
                      [server]\nmode = \"sleep\"\ncores = \"0\"\ncontrol-socket = \"off\"\nfair-queueing = false";
    let path = write(directory.path(), "a.toml", "127.0.0.1:0", namespaces);
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("hosts =", "serial = \"FILE-1\"\nhosts ="))
        .unwrap();
    let server = Server::start_alone(&["--config", &path]);
    assert!(
        server.printed.iter().any(|line| line.starts_with("namespace 3: mem:1M, memory")),
        "{:?}",
        server.printed
    );
    assert!(
        server.printed.iter().any(|line| line.contains("namespace 7: null:2M, null, 2.0 MiB, read-only"))
    );
    let info = succeed(&["info", &format!("{}/{NQN}", server.uri)]);
    assert!(info.contains("FILE-1") && info.contains(NQN), "{info}");
    assert!(server.stop());
}

#[test]
fn names_everything_in_a_file_that_cannot_be_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "a.toml", "0.0.0.0:0", "nsid = 1\nvolume = \"mem:1M\"\nhosts = []");
    let text = fs::read_to_string(&path).unwrap();
    let without = text.split("[[subsystem]]").next().unwrap();
    fs::write(&path, without).unwrap();
    let error = fail(&["serve", "--config", &path]);
    let part = "a file without a subsystem; add a table [[subsystem]]";
    let checked = run(&["config", "check", &path]);
    assert!(
        String::from_utf8_lossy(&checked.stdout).contains(&format!("not served by this version: {part}"))
    );
    assert_eq!(checked.status.code(), Some(1), "no target can serve it");
    assert!(error.contains(part), "{error}");
    fs::write(&path, text.replace("hosts = []", "")).unwrap();
    let error = fail(&["serve", "--config", &path, "--strict"]);
    assert!(
        error.contains("with --strict") && error.contains("any host reads and writes it without"),
        "{error}"
    );
    fs::write(&path, format!("{}[server]\nstrict = true\n", text.replace("hosts = []", ""))).unwrap();
    let error = fail(&["serve", "--config", &path]);
    assert!(
        error.contains("with server.strict") && error.contains("any host reads and writes it without"),
        "{error}"
    );
    assert_eq!(run(&["config", "check", &path]).status.code(), Some(1));
    fs::write(&path, text.replace("hosts = []", "")).unwrap();
    let error = String::from_utf8(run(&["serve", "--config", &path, "--cores", "0"]).stderr).unwrap();
    assert!(error.contains("'--config <FILE>' cannot be used with '--cores <LIST>'"), "{error}");
}

/// Arguments, the file of them, and the arguments of that file mean the same.
#[test]
fn file_of_arguments_is_served_with_the_same_meaning() {
    let directory = tempfile::tempdir().unwrap();
    let file = succeed(&[
        "config",
        "dump",
        "--nqn",
        NQN,
        "--listen",
        "127.0.0.1:0",
        "--mode",
        "sleep",
        "--cores",
        "0",
        "--placement",
        "round-robin",
        "--scheduler",
        "dynamic",
        "--io",
        "epoll",
        "--io-queues",
        "3",
        "--queue-depth",
        "7",
        "--fair-queueing",
        "off",
        "--acks",
        "1/10",
        "--observe-memory",
        "1M",
        "--on-slow",
        "log,avoid",
        "--rbd-images-per-connection",
        "2",
        "--pool",
        "8M",
        "--zerocopy-threshold",
        "4k",
        "--stall-after",
        "1500ms",
        "--answer-within",
        "2s",
        "--skip-missing",
        "--control-socket",
        "off",
        "--metrics",
        "127.0.0.1:0",
        "--advertise",
        "127.0.0.1:4499",
        "--allow-host",
        "nqn.2014-08.org.example:a",
        "mem:1M",
        "null:1M,nsid=9",
    ]);
    let path = directory.path().join("a.toml");
    fs::write(&path, &file).unwrap();
    let server = Server::start_alone(&["--config", path.to_str().unwrap()]);
    let info = run(&["info", &format!("{}/{NQN}", server.uri)]);
    assert!(!info.status.success(), "a host with another name was admitted");
    let info =
        succeed(&["info", "--host-nqn", "nqn.2014-08.org.example:a", &format!("{}/{NQN}", server.uri)]);
    assert!(info.contains('9'), "{info}");
    assert!(server.stop());
}
