//! Conditions of volumes that `serve` reports while it runs, and at its end.

use std::fs;
use std::time::{Duration, Instant};

use super::{Server, fail, kill, succeed, text};

/// Waits until the log of a target contains all of these texts.
pub fn wait_for_log(server: &Server, texts: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let log = fs::read_to_string(server.log.path()).unwrap();
        if texts.iter().all(|text| log.contains(text)) {
            return;
        }
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn reports_deleted_and_replaced_files() {
    let dir = tempfile::tempdir().unwrap();
    let [deleted, replaced, new] =
        ["deleted.img", "replaced.img", "new.img"].map(|name| dir.path().join(name));
    fs::write(&new, "new").unwrap();
    let volumes = [&deleted, &replaced].map(|path| format!("read-only:({},size=1M)", text(path)));
    for path in [&deleted, &replaced] {
        fs::write(path, vec![1; 1 << 20]).unwrap();
    }
    let mut server = Server::start(&volumes.each_ref().map(String::as_str));
    fs::remove_file(&deleted).unwrap();
    fs::rename(&new, &replaced).unwrap();
    let saved = format!("cp --sparse=always /proc/{}/fd/", server.child.id());
    wait_for_log(&server, &["deleted.img: the served file was deleted", "file was replaced", &saved]);
    kill(&server.child, "TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
    let log = fs::read_to_string(server.log.path()).unwrap();
    assert_eq!(log.matches("the served file was").count(), 4, "{log}");
    assert!(log.contains("not all volumes were served, or keep their data: 2 have a problem"), "{log}");
}

/// Sends SIGUSR1 until the log contains a text.
fn wait_for_counters(server: &Server, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let log = || fs::read_to_string(server.log.path()).unwrap();
    while !log().contains(wanted) {
        assert!(Instant::now() < deadline, "{}", log());
        kill(&server.child, "USR1");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn skips_missing_volumes_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.img");
    let nqn = ["--nqn", "nqn.2014-08.org.example:some"];
    let arguments = [text(&missing), "mem:1M", nqn[0], nqn[1]];
    assert!(fail(&[&["serve", "--listen", "127.0.0.1:0"], &arguments[..]].concat()).contains("no such file"));
    let socket = dir.path().join("serve.sock");
    let options = ["--skip-missing", "--control-socket", text(&socket)];
    let mut server = Server::start(&[&arguments[..], &options].concat());
    wait_for_log(&server, &["missing.img: namespace 1 is missing: no such file"]);
    let listed = succeed(&["info", &server.uri]);
    assert!(listed.contains("namespace    2: 1.0 MiB") && !listed.contains("namespace    1"), "{listed}");
    wait_for_counters(&server, &format!("\n{}: namespace 1 is missing", text(&missing)));
    let ctl = ["ctl", "--socket", text(&socket)];
    let status = succeed(&[&ctl[..], &["status"]].concat());
    assert!(status.contains("   1  offline ") && status.contains("no such file"), "{status}");
    assert!(fail(&[&ctl[..], &["namespace", "online", "1"]].concat()).contains("no such file"));
    fs::write(&missing, vec![1; 1 << 20]).unwrap();
    succeed(&[&ctl[..], &["namespace", "online", "1"]].concat());
    assert!(succeed(&["info", &server.uri]).contains("namespace    1: 1.0 MiB"));
    assert!(succeed(&[&ctl[..], &["status"]].concat()).contains("   1  online "));
    wait_for_counters(&server, &format!("\n{}: namespace 1 was missing at the start", text(&missing)));
    kill(&server.child, "TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
    fs::remove_file(&missing).unwrap();
    let listen = ["serve", "--listen", "127.0.0.1:0", "--skip-missing", text(&missing)];
    assert!(fail(&listen).contains("--nqn"));
    assert!(fail(&[&listen[..], &nqn].concat()).contains("no volume can be opened"));
}

#[test]
fn mirror_shows_copy_and_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("a"), vec![1; 16 << 20]).unwrap();
    let slow = format!("(delay:4ms:({},size=16M))", path("b"));
    let mirror = format!("mirror:{};{slow},bitmap={},create=yes", path("a"), path("map"));
    let server = Server::start_with_log("info", &[&mirror]);
    wait_for_counters(&server, ": copying to member 2, ");
    wait_for_counters(&server, ": in sync\n");
    wait_for_log(&server, &["copying 4 regions to member 2", ": copied 50 %", ": in sync, both members"]);
    assert!(server.stop());
}
