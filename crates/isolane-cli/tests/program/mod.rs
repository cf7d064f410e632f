//! A running `isolane engine`, killed at the end of a test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `isolane engine`, killed on drop.
pub struct Engine {
    pub supervisor: Child,
    pub dir: tempfile::TempDir,
}

impl Engine {
    /// Starts `program` with additional arguments. The engine is listening when this returns.
    pub fn start_by(mut program: Command, arguments: &[&str]) -> Engine {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let mut supervisor = program
            .args(["--log-level", "info", "engine", "--socket"])
            .arg(dir.path().join("sock"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let engine = Engine { supervisor, dir };
        assert_eq!(line, format!("listening on {}\n", engine.path().display()), "{}", engine.log());
        engine
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// PID of the engine process, the only child of the supervisor.
    pub fn pid(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.supervisor.id());
        let pid = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
        until("an engine", pid)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// Polls until `poll` returns a value; panics after a minute.
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
