//! Conditions of volumes that `serve` reports while it runs, and at its end.

use std::fs;
use std::time::{Duration, Instant};

use super::{Server, kill, text};

/// Waits until the log of a target contains all of these texts.
fn wait_for_log(server: &Server, texts: &[&str]) {
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
    assert!(log.contains("not all data is kept: 2 volumes have a problem"), "{log}");
}
