//! Child processes: pinned to a core, limited in time, and ended in any case.
//!
//! What a child says goes to files, so that no pipe can fill up. `setpriv` has the kernel end a child with
//! this program, even where this program is killed; `taskset` pins it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A program that is about to run.
pub struct Program {
    command: Command,
    name: String,
    logs: PathBuf,
}

impl Program {
    /// `path` on this core, or anywhere. Its output goes to files in `logs`.
    pub fn new(path: impl AsRef<OsStr>, core: Option<usize>, logs: &Path) -> Program {
        let path = path.as_ref();
        let name = Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(core) = core {
            command.args(["taskset", "-c", &core.to_string()]);
        }
        command.arg(path);
        Program { command, name, logs: logs.to_path_buf() }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Program {
        self.command.arg(argument);
        self
    }

    /// Adds arguments that are separated by spaces.
    pub fn args(mut self, arguments: &str) -> Program {
        self.command.args(arguments.split_whitespace());
        self
    }

    /// Starts it.
    pub fn start(mut self) -> io::Result<Running> {
        let (said, complained) = (self.log("out"), self.log("err"));
        self.command.stdin(Stdio::null());
        self.command.stdout(File::create(&said)?).stderr(File::create(&complained)?);
        let child = self.command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {} through setpriv: {error}", self.name))
        })?;
        Ok(Running { child, name: self.name, said, complained })
    }

    /// Runs it to its end, at most for `limit`, and returns what it said.
    pub fn run(self, limit: Duration) -> io::Result<String> {
        self.start()?.finish(limit)
    }

    fn log(&self, ending: &str) -> PathBuf {
        let id = fastrand::u64(..);
        self.logs.join(format!("{}-{id:016x}.{ending}", self.name))
    }
}

/// A program that runs, and ends with this value.
pub struct Running {
    child: Child,
    name: String,
    said: PathBuf,
    complained: PathBuf,
}

impl Running {
    /// Waits until something is found in what it said.
    pub fn wait_for<T>(&mut self, limit: Duration, find: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        let until = Instant::now() + limit;
        loop {
            let ended = self.child.try_wait()?;
            if let Some(found) = find(&fs::read_to_string(&self.said)?) {
                return Ok(found);
            }
            if let Some(status) = ended {
                return Err(self.failure(&format!("ended with {status}")));
            }
            if Instant::now() > until {
                return Err(self.failure("did not get ready in time"));
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Waits for its end, at most for `limit`, and returns what it said.
    pub fn finish(mut self, limit: Duration) -> io::Result<String> {
        let until = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                return Err(self.failure("did not end in time"));
            }
            sleep(LOOK_AGAIN);
        }
        let status: ExitStatus = self.child.wait()?;
        match status.success() {
            true => fs::read_to_string(&self.said),
            false => Err(self.failure(&format!("ended with {status}"))),
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn failure(&self, what: &str) -> io::Error {
        let complained = fs::read_to_string(&self.complained).unwrap_or_default();
        let start = complained.char_indices().rev().nth(1000).map_or(0, |(index, _)| index);
        io::Error::other(format!("{} {what}: {}", self.name, complained[start..].trim()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let until = Instant::now() + GRACE;
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id() as i32)) {
            let _ = kill_process(pid, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            sleep(LOOK_AGAIN);
        }
        let _ = fs::remove_file(&self.said);
        let _ = fs::remove_file(&self.complained);
    }
}

/// Rare enough not to disturb what is measured.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time between the polite end and the other one.
const GRACE: Duration = Duration::from_secs(3);

/// Looks a program up on PATH; a name with a slash is taken as it is.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    // Daemons are where users do not look.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("sh", None, &std::env::temp_dir()).arg("-c").arg(script)
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_complaint() {
        let error = shell("echo no luck >&2; exit 3").run(Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains("sh ended with") && error.contains("no luck"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let running = shell("exec sleep 1000").start().unwrap();
        let pid = Pid::from_raw(running.id() as i32).unwrap();
        assert!(running.finish(Duration::from_millis(50)).is_err());
        assert!(rustix::process::test_kill_process(pid).is_err(), "it still runs");
    }

    #[test]
    fn what_a_program_says_can_be_waited_for() {
        let mut running = shell("echo ready 7; exec sleep 1000").start().unwrap();
        let number = |text: &str| text.strip_prefix("ready ")?.trim().parse::<u32>().ok();
        assert_eq!(running.wait_for(Duration::from_secs(10), number).unwrap(), 7);
    }
}
