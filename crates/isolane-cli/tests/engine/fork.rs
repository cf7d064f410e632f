//! Processes that inherited the descriptors of an application.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::*;

/// Not a test: the application of the next test, in a separate process.
#[test]
fn application_of_the_next_test() {
    let Ok(path) = std::env::var("ISOLANE_TEST_ENGINE") else { return };
    let options = SessionOptions {
        path: path.into(),
        memory_bytes: 4 << 20,
        spawn_engine: false,
        ..SessionOptions::default()
    };
    let _session = Session::open(&options).unwrap();
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
}

/// Duplicates of all descriptors of a process, as in a forked child; `None` without the permission.
fn inherited(pid: u32) -> Option<Vec<OwnedFd>> {
    let process = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let fds = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let descriptors = fds.map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok());
    descriptors.collect()
}

#[test]
fn detects_end_of_process_with_inherited_connection() {
    let engine = Engine::start(&["--max-clients", "1"]);
    for is_replaced in [false, true] {
        let mut application = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fork::application_of_the_next_test", "--nocapture"])
            .env("ISOLANE_TEST_ENGINE", engine.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(application.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line.contains("ready")));
        let inherited = inherited(application.id());
        if is_replaced {
            let pid = engine.pid();
            kill(pid, "KILL");
            until("another engine", || (engine.pid() != pid).then_some(()));
        }
        application.kill().unwrap();
        application.wait().unwrap();
        let Some(inherited) = inherited else {
            return eprintln!("skipped: no permission to duplicate descriptors");
        };
        until("space for another client", || engine.attach().ok());
        drop(inherited);
    }
}
