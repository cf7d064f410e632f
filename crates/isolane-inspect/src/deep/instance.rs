//! An instance of tracefs.
//!
//! Instances are created and removed under a lock of their directory. An instance whose `trace_pipe` is open cannot be
//! removed, so only instances of killed programs are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isolane_observe::verdict::{HANDLERS, REQUESTS, TASKS};
use rustix::fs::{FlockOperation, OFlags, flock};

/// Directories of tracefs: mounted directly, or by debugfs.
const MOUNTS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
/// The enabled events, with the numbers that they give.
const EVENTS: [(&str, &str); 6] = [
    ("irq/irq_handler_entry", HANDLERS),
    ("irq/irq_handler_exit", HANDLERS),
    (SWITCH, TASKS),
    (WAKEUP, "tasks that delayed a wakeup"),
    ("block/block_rq_issue", REQUESTS),
    ("block/block_rq_complete", REQUESTS),
];
/// Format of a line. A new instance has the options of the system.
const OPTIONS: [(&str, &str); 10] = [
    ("context-info", "1"),
    ("irq-info", "1"),
    ("bin", "0"),
    ("hex", "0"),
    ("raw", "0"),
    ("verbose", "0"),
    ("fields", "0"),
    ("stacktrace", "0"),
    ("userstacktrace", "0"),
    ("record-tgid", "0"),
];
const SWITCH: &str = "sched/sched_switch";
const WAKEUP: &str = "sched/sched_wakeup";
/// Start of the name of an instance; the process ID follows.
const PREFIX: &str = "isolane-";
/// Buffer of each core.
const BUFFER_KB: usize = 4096;
/// Buffer of all cores.
const MAX_BUFFERS_KB: usize = 256 << 10;
/// Longest filter. The kernel takes less than one page.
const MAX_FILTER: usize = 3072;

/// Cores and threads whose delays are measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cores {
    /// Cores on which all tasks are recorded; all cores if empty.
    pub cpus: Vec<u32>,
    /// Threads of the program on these cores.
    pub threads: Vec<u32>,
}

/// Failure to use tracefs, with the requirement.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}; {needs}")]
pub struct Unavailable {
    /// File or directory.
    pub path: String,
    /// Reason.
    pub reason: String,
    /// Requirement.
    pub needs: &'static str,
}

/// An instance with its events, removed on drop.
#[derive(Debug)]
pub(super) struct Instance {
    dir: PathBuf,
    /// Open `trace_pipe`; `None` before it is opened, and while the instance is removed.
    events: Option<File>,
    not_seen: Vec<(String, String)>,
}

impl Instance {
    /// Creates an instance, after removing instances of killed programs.
    pub(super) fn create(root: &Path, cores: &Cores) -> Result<Instance, Unavailable> {
        let instances = find(root)?;
        let lock = File::open(&instances).map_err(|error| unavailable(&instances, &error))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| unavailable(&instances, &error.into()))?;
        remove_old(&instances);
        let dir = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| unavailable(&dir, &error))?;
        // From here on, the instance is removed after an error.
        let mut instance = Instance { dir, events: None, not_seen: Vec::new() };
        instance.open()?;
        drop(lock);
        instance.enable(cores)?;
        Ok(instance)
    }

    fn open(&mut self) -> Result<(), Unavailable> {
        let path = self.dir.join("trace_pipe");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        self.events = Some(file.map_err(|error| unavailable(&path, &error))?);
        Ok(())
    }

    fn enable(&mut self, cores: &Cores) -> Result<(), Unavailable> {
        self.write("buffer_size_kb", &buffer_kb(&self.dir).to_string())?;
        self.write("trace_clock", "mono")?;
        for (option, value) in OPTIONS {
            // Old kernels lack some of them.
            let _ = self.write(&format!("options/{option}"), value);
        }
        self.filter(SWITCH, "CPU", &cores.cpus)?;
        self.filter(WAKEUP, "pid", &cores.threads)?;
        let mut enabled = 0;
        for (event, what) in EVENTS {
            match self.write(&format!("events/{event}/enable"), "1") {
                Ok(()) => enabled += 1,
                Err(error) => self.not_seen.push((what.to_owned(), error.to_string())),
            }
        }
        self.not_seen.dedup_by(|left, right| left.0 == right.0);
        match self.not_seen.pop_if(|_| enabled == 0) {
            Some((_, reason)) => {
                Err(Unavailable { path: self.dir.display().to_string(), reason, needs: KERNEL })
            }
            None => Ok(()),
        }
    }

    /// Records an event for these values of a field only, unless there are too many or none.
    fn filter(&self, event: &str, field: &str, values: &[u32]) -> Result<(), Unavailable> {
        let conditions = values.iter().map(|value| format!("{field} == {value}"));
        let text = conditions.collect::<Vec<_>>().join(" || ");
        let path = format!("events/{event}/filter");
        let is_used = (1..=MAX_FILTER).contains(&text.len()) && self.dir.join(&path).exists();
        if is_used { self.write(&path, &text) } else { Ok(()) }
    }

    /// Returns the text of the events. A read of it does not block.
    pub(super) fn events(&mut self) -> &mut File {
        self.events.as_mut().expect("`create` opens it")
    }

    /// Returns the numbers that this kernel does not give, with the reason.
    pub(super) fn not_seen(&self) -> Vec<(String, String)> {
        self.not_seen.clone()
    }

    /// Ends the recording.
    pub(super) fn stop(&self) {
        // The instance is removed soon.
        let _ = self.write("tracing_on", "0");
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Unavailable> {
        let path = self.dir.join(file);
        let open = || OpenOptions::new().write(true).open(&path);
        open()
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| unavailable(&path, &error))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop();
        self.events = None;
        if let Err(error) = fs::remove_dir(&self.dir) {
            log::warn!("{}: {error}; remove it with rmdir", self.dir.display());
        }
    }
}

/// Returns the directory of instances.
fn find(root: &Path) -> Result<PathBuf, Unavailable> {
    let dirs = MOUNTS.map(|mount| root.join(mount).join("instances"));
    let mut denied = None;
    for dir in &dirs {
        match fs::metadata(dir) {
            Ok(_) => return Ok(dir.clone()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                denied = denied.or(Some(unavailable(dir, &error)));
            }
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or_else(|| Unavailable {
        path: dirs[0].display().to_string(),
        reason: "tracefs is not mounted".into(),
        needs: "sudo mount -t tracefs nodev /sys/kernel/tracing",
    }))
}

/// Returns the size of the buffer of each core. The kernel has one for all cores, also for those that this program may
/// not use.
pub(super) fn buffer_kb(dir: &Path) -> usize {
    let cores = fs::read_dir(dir.join("per_cpu")).map_or(1, Iterator::count);
    (MAX_BUFFERS_KB / cores.max(1)).clamp(64, BUFFER_KB)
}

/// Removes instances that no program has open.
fn remove_old(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some() && fs::remove_dir(entry.path()).is_ok() {
            log::info!("removed {}, which a killed program left", entry.path().display());
        }
    }
}

const KERNEL: &str = "a kernel with trace events (CONFIG_FTRACE)";

fn unavailable(path: &Path, error: &io::Error) -> Unavailable {
    let needs = match error.kind() {
        ErrorKind::PermissionDenied if rustix::process::geteuid().is_root() => {
            "tracing that is not locked down, outside of a container"
        }
        ErrorKind::PermissionDenied => "root: sudo isolane explain --deep",
        ErrorKind::NotFound => KERNEL,
        _ => "tracefs that root can write to",
    };
    Unavailable { path: path.display().to_string(), reason: error.to_string(), needs }
}
