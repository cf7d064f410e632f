//! A running `isolane engine`, as programs see it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `isolane engine`, ended with the test.
pub struct Engine {
    pub supervisor: Child,
    pub folder: tempfile::TempDir,
}

impl Engine {
    /// Of this program, with arguments behind the usual ones. Listens when this returns.
    pub fn start_by(mut program: Command, arguments: &[&str]) -> Engine {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let mut supervisor = program
            .args(["--log-level", "info", "engine", "--socket"])
            .arg(folder.path().join("sock"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let engine = Engine { supervisor, folder };
        assert_eq!(line, format!("listening on {}\n", engine.path().display()), "{}", engine.log());
        engine
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The engine's process: the only child of the supervisor.
    pub fn pid(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.supervisor.id());
        let pid = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
        until("there is an engine", pid)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// Waits for something that must come.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
