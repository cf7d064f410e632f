//! `isolane engine status|stop|upgrade|logs`: manages a running engine.
//!
//! The supervisor is the process that holds the lock next to the socket.
//!
//! Invariant: no signal reaches another process that reuses the PID. A signal is sent through a pidfd, which was opened
//! while the supervisor held the lock.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use isolane_engine::files;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use super::socket_parser;
use crate::failure::{Context, Failure};
use crate::output;

/// Action on a running engine.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// Print the state of the engine, its processes, and its clients
    ///
    /// The exit status is 1 if no engine listens on the socket. Sessions are printed if the engine runs in the background,
    /// because they come from its log.
    Status(Target),
    /// Stop the engine, and wait until it has ended
    ///
    /// The engine returns or sends written data, for up to 5 s.
    Stop(Target),
    /// Replace the engine by the program that its file contains now
    ///
    /// Sessions continue. If the new program does not start, the engine keeps running and the exit status is 1.
    Upgrade(Target),
    /// Print the log of an engine in the background
    Logs {
        #[command(flatten)]
        target: Target,
        /// Continue with lines that are added
        #[arg(long, short)]
        follow: bool,
    },
    // Without a comment, because the arguments have the help.
    Run(super::run::Args),
}

/// A running engine.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Socket of the engine (default: as of `isolane engine`)
    #[arg(long, value_name = "PATH", value_parser = socket_parser())]
    socket: Option<PathBuf>,
}

impl Target {
    fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(isolane_engine::default_path)
    }
}

/// Runs the subcommand.
pub fn run(action: &Action) -> Result<(), Failure> {
    match action {
        Action::Status(target) => status(&target.path()),
        Action::Stop(target) => stop(&target.path()),
        Action::Upgrade(target) => upgrade(&target.path()),
        Action::Run(args) => super::run::run(args),
        Action::Logs { target, follow } => logs(&target.path(), *follow),
    }
}

/// The supervisor of a running engine.
struct Supervisor {
    pid: i32,
    process: OwnedFd,
}

impl Supervisor {
    fn find(socket: &Path) -> Result<Supervisor, Failure> {
        let none = || none(socket, "its lock is free");
        let lock = files::lock_path(socket);
        if let Err(error) = fs::symlink_metadata(&lock) {
            return Err(absent(socket, &error));
        }
        check_owner(socket, &lock)?;
        let lock = files::read_next_to_socket(&lock).map_err(Failure::from_error)?;
        let pid = || match files::supervisor_of(&lock) {
            Ok(pid) => pid.ok_or_else(none),
            Err(error) => Err(Failure::from_io("cannot find the supervisor", &error.into())
                .with_hint("run this in the container of the engine")),
        };
        let first = pid()?;
        let process = pidfd_open(first, PidfdFlags::empty()).context("cannot watch the supervisor")?;
        if pid()? == first {
            Ok(Supervisor { pid: first.as_raw_nonzero().get(), process })
        } else {
            Err(Failure::new("cannot find the supervisor", "the engine is being restarted")
                .with_hint("try again"))
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        pidfd_send_signal(&self.process, signal).context(format!("cannot signal process {}", self.pid))
    }

    /// Processes of engines: one, or two during an upgrade.
    fn engines(&self) -> Vec<i32> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid));
        children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Waits for the end of the process. Returns `false` after `timeout`.
    fn has_ended(&self, timeout: Duration) -> bool {
        let limit = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: 0 };
        let mut watched = [PollFd::from_borrowed_fd(self.process.as_fd(), PollFlags::IN)];
        matches!(poll(&mut watched, Some(&limit)), Ok(count) if count > 0)
    }
}

fn none(socket: &Path, reason: &str) -> Failure {
    Failure::new(format!("no engine listens on {}", socket.display()), reason)
        .with_hint("start one with `isolane engine`, or name another socket with --socket")
}

/// Returns the reason that no engine was found, after the error `error` of its lock.
fn absent(socket: &Path, error: &io::Error) -> Failure {
    let directory = socket.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    if fs::metadata(socket).is_ok_and(|found| !found.file_type().is_socket()) {
        return Failure::new(format!("no engine listens on {}", socket.display()), "it is not a socket")
            .with_hint("name the socket of an engine with --socket");
    }
    match error.kind() {
        ErrorKind::NotFound if directory.exists() => none(socket, "its lock is free"),
        ErrorKind::NotFound => none(socket, &format!("its directory {} does not exist", directory.display())),
        ErrorKind::PermissionDenied => {
            Failure::new(format!("cannot look for an engine on {}", socket.display()), error)
                .with_hint("run as the user of the engine")
        }
        _ => Failure::from_io(format!("cannot look for an engine on {}", socket.display()), error),
    }
}

/// Rejects a file of another user, whose engine this user cannot manage.
fn check_owner(socket: &Path, file: &Path) -> Result<(), Failure> {
    let own = geteuid().as_raw();
    match fs::symlink_metadata(file) {
        Ok(found) if found.is_file() && found.uid() != own => {
            let uid = found.uid();
            Err(Failure::new(
                format!("cannot manage the engine on {}", socket.display()),
                format!("{} belongs to user {uid}, not to user {own}", file.display()),
            )
            .with_hint(format!("run as user {uid}")))
        }
        _ => Ok(()),
    }
}

fn status(socket: &Path) -> Result<(), Failure> {
    let supervisor = Supervisor::find(socket)?;
    let engines: Vec<_> = supervisor.engines().iter().map(i32::to_string).collect();
    let mut text = format!(
        "listening on {}\nsupervisor: process {}\nengine: process {}\n",
        socket.display(),
        supervisor.pid,
        engines.join(", ")
    );
    let log = files::log_path(socket);
    if let Some(before) = log_bytes(&log) {
        supervisor.signal(Signal::USR1)?;
        // The engine writes all lines in one call.
        let overview = wait_for(STATUS_TIMEOUT, || {
            let new = tail(&log, before)?;
            let start = new
                .find("engine ")
                .filter(|_| new.contains(files::STATUS_SESSIONS) && new.ends_with('\n'))?;
            Some(new[start..].to_owned())
        });
        text += &overview.unwrap_or_else(|| "sessions: no response from the engine\n".into());
    }
    output::write_stdout(text.as_bytes())
}

fn stop(socket: &Path) -> Result<(), Failure> {
    let supervisor = Supervisor::find(socket)?;
    supervisor.signal(Signal::TERM)?;
    if supervisor.has_ended(STOP_TIMEOUT) {
        output::write_stdout(format!("process {} has ended\n", supervisor.pid).as_bytes())
    } else {
        Err(Failure::new(
            format!("process {} has not ended", supervisor.pid),
            format!("{} s have passed", STOP_TIMEOUT.as_secs()),
        )
        .with_hint("check that it is not suspended, or repeat the command to kill it"))
    }
}

fn upgrade(socket: &Path) -> Result<(), Failure> {
    let supervisor = Supervisor::find(socket)?;
    let log = files::log_path(socket);
    let (before, old) = (log_bytes(&log), supervisor.engines());
    supervisor.signal(Signal::HUP)?;
    let mut has_next = false;
    let result = wait_for(UPGRADE_TIMEOUT, || {
        let now = supervisor.engines();
        if !now.is_empty() && !now.iter().any(|pid| old.contains(pid)) {
            return Some(Ok(now[0]));
        }
        has_next |= now.len() > old.len();
        let reason = before.and_then(|before| refusal(&tail(&log, before)?));
        match (reason, has_next && now == old) {
            (Some(reason), _) => Some(Err(reason)),
            (None, true) => Some(Err("the new program has ended".into())),
            (None, false) => None,
        }
    });
    match result {
        Some(Ok(engine)) => output::write_stdout(format!("engine: process {engine}\n").as_bytes()),
        Some(Err(reason)) => Err(Failure::new("the engine is not replaced", reason)),
        None => Err(Failure::new("the engine is not replaced", "the new program has not started in time")
            .with_hint("see the log of the engine")),
    }
}

/// Returns the reason that the supervisor logs if an upgrade fails.
fn refusal(log: &str) -> Option<String> {
    log.lines().find_map(|line| line.split_once(files::UPGRADE_FAILED)).map(|(_, reason)| reason.to_owned())
}

fn logs(socket: &Path, follow: bool) -> Result<(), Failure> {
    let log = files::log_path(socket);
    check_owner(socket, &log)?;
    let mut file = files::read_next_to_socket(&log).map_err(|error| {
        Failure::from_error(error)
            .with_hint("only an engine in the background has a log; others write to their stderr")
    })?;
    loop {
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(CHUNK_BYTES).read_to_end(&mut bytes).context("cannot read the log")?;
        match (bytes.is_empty(), follow) {
            (false, _) => output::write_stdout(&bytes)?,
            (true, true) => thread::sleep(POLL_INTERVAL),
            (true, false) => return Ok(()),
        }
    }
}

/// Returns the size of a log.
pub fn log_bytes(log: &Path) -> Option<u64> {
    Some(files::read_next_to_socket(log).ok()?.metadata().ok()?.len())
}

/// Returns the part of a log after its first `before` bytes.
pub fn tail(log: &Path, before: u64) -> Option<String> {
    let mut file: File = files::read_next_to_socket(log).ok()?;
    file.seek(SeekFrom::Start(before)).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Tries until there is a result or the time has passed.
fn wait_for<T>(timeout: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + timeout;
    loop {
        let found = find();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// The supervisor kills an engine after 8 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The supervisor waits 10 s for the version of a new program.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
const CHUNK_BYTES: u64 = 64 << 10;
const MAX_TAIL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_inaccessible_directories() {
        let dir = tempfile::tempdir().unwrap();
        let error = absent(&dir.path().join("sock"), &ErrorKind::PermissionDenied.into()).to_string();
        assert!(error.starts_with("cannot look for an engine on"), "{error}");
        assert!(error.ends_with("permission denied; run as the user of the engine"), "{error}");
    }
}
