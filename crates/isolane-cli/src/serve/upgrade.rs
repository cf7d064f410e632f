//! Upgrade in place: the process becomes another program, and hosts keep their connections.
//!
//! 1. Rehearsal: the other program runs as a child, reads the arguments and the state of this target, and reports.
//! 2. The target is frozen, and its threads end.
//! 3. The process executes the other program, which inherits the sockets, the files of the volumes with their locks, and
//!    a sealed memory file with the state.
//!
//! Invariant: each failure before step 3 leaves this target as it was, and one in step 3 continues its connections.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use isolane_reactor::inherited;
use isolane_target::{FrozenState, Target, TargetConfig};
use isolane_volume::Volume;
use serde::Deserialize;

use super::handover::{self, Handover};
use super::memory_images::Copies;
use super::operator::Operator;
use super::present::{Present, failure};
use super::state::State;
use super::upgrade_request::Request;
use crate::failure::{Context, Failure};
use crate::output;

/// The configuration that a target was started with. It has no volumes, so that it keeps none open.
pub struct Started(TargetConfig);

impl Started {
    /// Returns a copy of a configuration.
    pub fn from_config(config: &TargetConfig) -> Started {
        let mut config = TargetConfig { sockets: Vec::new(), ..config.clone() };
        config.subsystems.iter_mut().for_each(|subsystem| subsystem.volumes.clear());
        Started(config)
    }
}

/// Everything that an upgrade needs of a running target.
pub struct Running<'a> {
    /// The configuration of its start.
    pub started: Started,
    /// The volumes of all namespaces, and changes of operators.
    pub operator: &'a Operator,
    /// Number of upgrades of this process.
    pub upgrades: u64,
}

impl Running<'_> {
    /// Executes a request. Returns the target if the process stays this program.
    ///
    /// # Errors
    /// If the target has ended without a replacement.
    pub fn upgrade(&self, target: Target, request: Request) -> Result<Target, Failure> {
        let Request { program, refused } = request;
        let (target, reason) = self.try_upgrade(target, &program)?;
        log::warn!("no upgrade to {}: {reason}", program.display());
        // The client may be gone.
        let _ = refused.send(reason);
        Ok(target)
    }

    fn try_upgrade(&self, target: Target, program: &Path) -> Result<(Target, String), Failure> {
        let subsystems = self.operator.subsystems();
        let prepared = Present::hold(self.operator, &subsystems).and_then(|present| {
            let mut handover = present.handover(&target, self.upgrades + 1)?;
            let copies = Copies::new(&target, &self.operator.kinds, &mut handover)?;
            self.rehearse(&target, program, &handover)?;
            // Less is left while hosts wait.
            copies.settle()?;
            let config = present.config(&target, &self.started.0, &handover)?;
            Ok((present, handover, copies, config))
        });
        let (_present, mut handover, copies, config) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => return Ok((target, reason)),
        };
        let files = match files(&config) {
            Ok(files) => files,
            Err(error) => return Ok((target, format!("cannot pass on the files of the volumes: {error}"))),
        };
        let state_lock = match self.operator.state().map(State::inheritable_lock).transpose() {
            Ok(lock) => lock,
            Err(error) => return Ok((target, format!("cannot pass on the lock of the state: {error}"))),
        };
        handover.files = files.iter().map(AsRawFd::as_raw_fd).collect();
        handover.state_lock = state_lock.as_ref().map(AsRawFd::as_raw_fd);
        let frozen = target.freeze(FREEZE_TIMEOUT).map_err(|refused| refused.to_string());
        // No volume fails any more once the target is frozen.
        let handed_over = frozen.and_then(|frozen| {
            let mut volumes = config.subsystems.iter().flat_map(|subsystem| &subsystem.volumes);
            let failed = volumes.find_map(|(nsid, volume)| failure(*nsid, &**volume));
            failed.map_or(Ok(()), Err)?;
            copies.finish()?;
            Ok(frozen.hand_over())
        });
        let state = match handed_over {
            Ok(state) => state.context("the upgrade failed")?,
            Err(reason) => return Ok((target, reason)),
        };
        let report = target.shutdown(Duration::ZERO);
        let reason = match report.into_result() {
            Ok(()) => execute(program, &state, &handover),
            Err(error) => error.to_string(),
        };
        let own = |number: RawFd| {
            let mut sockets = state.sockets().iter().filter(|socket| socket.as_raw_fd() == number);
            sockets.next().ok_or(io::ErrorKind::NotFound)?.try_clone()
        };
        let bytes = state.to_bytes();
        let again = FrozenState::from_bytes(&bytes).context("cannot continue")?;
        let mut target = Target::start_from(config, again, own).context("cannot continue")?;
        target.take_place_of(&self.operator.target);
        self.operator.receive_events();
        Ok((target, format!("{reason}; this target continues")))
    }

    /// Runs the other program with the real state.
    fn rehearse(&self, target: &Target, program: &Path, handover: &Handover) -> Result<(), String> {
        let frozen = target.freeze(FREEZE_TIMEOUT).map_err(|refused| refused.to_string())?;
        let state = frozen.state().to_bytes();
        drop(frozen);
        let memory = handover::write(handover, &state).map_err(|error| error.to_string())?;
        let arguments = arguments(std::env::args_os().skip(1), "--rehearse", memory.as_raw_fd());
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}; check its path", program.display()))?;
        drop(memory);
        let report = wait_for_report(child)?;
        log::info!(
            "{}: version {} can continue {} connections",
            program.display(),
            report.version,
            report.connections
        );
        Ok(())
    }
}

/// Becomes the other program. Returns the reason why that fails.
fn execute(program: &Path, state: &FrozenState, handover: &Handover) -> String {
    let prepared = handover::write(handover, &state.to_bytes()).and_then(|memory| {
        state.sockets().iter().try_for_each(|socket| handover::set_inherited(socket, true))?;
        Ok(memory)
    });
    let memory = match prepared {
        Ok(memory) => memory,
        Err(error) => return format!("cannot pass on the connections: {error}"),
    };
    let arguments = arguments(std::env::args_os().skip(1), "--resume-from", memory.as_raw_fd());
    log::info!("this process becomes {}", program.display());
    log::flush(LOG_TIMEOUT);
    let mut command = Command::new(program);
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    let restored = state.sockets().iter().try_for_each(|socket| handover::set_inherited(socket, false));
    if let Err(error) = restored {
        log::warn!("sockets are inherited by programs that this one starts: {error}");
    }
    format!("cannot execute {}: {error}", program.display())
}

/// Copies the open files of the volumes, which the other program inherits.
fn files(config: &TargetConfig) -> io::Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    for (_, volume) in config.subsystems.iter().flat_map(|one| &one.volumes) {
        add_files(volume, &mut files)?;
    }
    Ok(files)
}

fn add_files(volume: &Arc<dyn Volume>, files: &mut Vec<OwnedFd>) -> io::Result<()> {
    if let Some(file) = volume.file() {
        files.push(handover::inheritable(&**file)?);
    }
    volume.members().iter().try_for_each(|member| add_files(member, files))
}

/// Report of a rehearsal.
#[derive(Debug, Deserialize)]
struct Report {
    version: String,
    connections: usize,
}

/// Reports that this program can continue a state: the end of [`rehearse`].
pub fn report(state: &FrozenState) -> Result<(), Failure> {
    let report = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "connections": state.connections(),
    });
    output::write_stdout(format!("{MARK}{report}\n").as_bytes())
}

/// Waits for the report of a child, which is killed if it is late.
fn wait_for_report(mut child: Child) -> Result<Report, String> {
    let (stdout, stderr) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
    let deadline = Instant::now() + REHEARSAL_TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the rehearsal has not ended within {REHEARSAL_TIMEOUT:?}"));
            }
            Err(error) => return Err(format!("the rehearsal cannot be watched: {error}")),
        }
    };
    let text = |output: Receiver<String>| output.recv_timeout(OUTPUT_TIMEOUT).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    if !status.success() {
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("without a message");
        return Err(format!("the rehearsal failed with {status}: {last}"));
    }
    let report = stdout.lines().find_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok());
    report.ok_or_else(|| "the program does not continue connections: it has reported nothing".to_owned())
}

/// Reads the output of a child in a thread, up to a limit.
fn read_all(output: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(output) = output {
            // An incomplete text is better than none.
            let _ = output.take(MAX_OUTPUT).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    text
}

/// Returns the arguments of this process with an option of `serve`, instead of those of an earlier upgrade.
fn arguments(given: impl Iterator<Item = OsString>, option: &str, number: i32) -> Vec<OsString> {
    let is_own = |argument: &OsString| {
        argument
            .to_str()
            .is_some_and(|text| text.starts_with("--resume-from=") || text.starts_with("--rehearse="))
    };
    let mut arguments: Vec<OsString> = given.filter(|argument| !is_own(argument)).collect();
    let serve = arguments.iter().position(|argument| argument == OsStr::new("serve"));
    arguments.insert(serve.map_or(arguments.len(), |at| at + 1), format!("{option}={number}").into());
    arguments
}

/// Reads the state that the program before has passed on.
pub fn read(number: i32) -> Result<(Handover, FrozenState), Failure> {
    let memory = File::from(inherited::take(number).context("the state of the target before")?);
    let (handover, state) = handover::read(memory).context("the state of the target before")?;
    let state = FrozenState::from_bytes(&state).context("the state of the target before")?;
    Ok((handover, state))
}

/// Time for commands in flight.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the reader of the log, in which hosts wait.
const LOG_TIMEOUT: Duration = Duration::from_millis(20);
/// Time for the other program to read arguments and state.
const REHEARSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the end of the other program is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time for the last output of a child that has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum text of a child.
const MAX_OUTPUT: u64 = 64 << 10;
/// Start of the line with the report.
const MARK: &str = "isolane-rehearsal ";

#[cfg(test)]
mod tests {
    use super::*;

    fn with_option(given: &[&str]) -> Vec<String> {
        let arguments = arguments(given.iter().map(OsString::from), "--resume-from", 7);
        arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn option_follows_the_subcommand_once() {
        assert_eq!(with_option(&["serve", "a.img"]), ["serve", "--resume-from=7", "a.img"]);
        let again = with_option(&["--log-level", "info", "serve", "--resume-from=5", "--", "a.img"]);
        assert_eq!(again, ["--log-level", "info", "serve", "--resume-from=7", "--", "a.img"]);
    }
}
