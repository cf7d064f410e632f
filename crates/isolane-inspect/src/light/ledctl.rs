//! The program `ledctl`, which knows interfaces of other vendors.
//!
//! Without `--listed-only`, it can change the lights of other drives.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Control, Drive, Interface, Light, LightError, Place, Slot};
use crate::system::Root;

/// Directories of the program, below the root.
const DIRECTORIES: [&str; 7] = [
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/run/current-system/sw/bin",
];

/// Limit in bytes of the shown error.
const MAX_MESSAGE: usize = 4 << 10;
/// Time between two checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// `ledctl` for one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ledctl {
    program: PathBuf,
    drive: String,
}

pub(super) fn path(root: &Root) -> Option<PathBuf> {
    DIRECTORIES.iter().find_map(|directory| root.outside(&format!("{directory}/ledctl")).ok())
}

/// Returns the slot of a drive as `ledctl` finds it, if the program exists.
pub(super) fn slot(root: &Root, drive: &Drive) -> Option<Slot> {
    Some(Slot {
        interface: Interface::Ledctl,
        name: drive.name.clone(),
        place: Place::Drive(drive.name.clone()),
        control: Control::Ledctl(Ledctl { program: path(root)?, drive: drive.name.replace('!', "/") }),
    })
}

impl Ledctl {
    /// Changes a light. Fault off means both off.
    pub(super) fn set(&self, light: Light, on: bool, limit: Duration) -> Result<(), LightError> {
        let state = match (light, on) {
            (Light::Locate, true) => "locate",
            (Light::Locate, false) => "locate_off",
            (Light::Fault, true) => "failure",
            (Light::Fault, false) => "off",
        };
        let argument = format!("{state}=/dev/{}", self.drive);
        let mut child = Command::new(&self.program)
            .args(["--listed-only", &argument])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C at a terminal would end it.
            .process_group(0)
            .spawn()
            .map_err(|error| self.failed(format!("cannot be started: {error}")))?;
        let status = wait(&mut child, limit).map_err(|error| self.failed(error.to_string()))?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(format!("{status}{}", message(&mut child)))),
            None => Err(self.failed(format!("ended after {limit:?} without a result"))),
        }
    }

    fn failed(&self, reason: String) -> LightError {
        LightError::Ledctl { drive: self.drive.clone(), reason }
    }
}

/// Waits for the end of a child, and kills it after `limit`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            child.kill()?;
            return child.wait().map(|_| None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the errors that the child has printed. A child of the child can hold the pipe open.
fn message(child: &mut Child) -> String {
    let Some(stderr) = child.stderr.take() else { return String::new() };
    let mut text = vec![0; MAX_MESSAGE];
    let is_set = rustix::io::ioctl_fionbio(&stderr, true).is_ok();
    let len = if is_set { rustix::io::read(&stderr, &mut text).unwrap_or(0) } else { 0 };
    let text = String::from_utf8_lossy(&text[..len]).trim().to_owned();
    if text.is_empty() { text } else { format!(": {}", crate::text::shown_name(&text, 200)) }
}
