//! Stops a process by SIGSTOP.

use std::fs;
use std::process::Command;
use std::time::Duration;

/// Stops a process, and waits until each of its threads has stopped: another core may run one for a moment.
pub fn stop(pid: u32) {
    assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
    let is_stopped = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_stopped) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
