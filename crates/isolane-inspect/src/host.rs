//! Control socket of a program with a host or verbs: the volumes, clients, and queue pairs that it has connected.
//!
//! [`serve`] opens one for a volume, [`HostControl::from_variable`] one at the path in `ISOLANE_CONTROL`. Volumes that
//! are closed disappear from the document, whose IDs are never used again.
//!
//! Invariant: no socket is opened in a set-user-ID program, and a forked child neither answers nor removes one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use isolane_engine_api::runtime_dir::is_privileged;
use isolane_observe::observable::{Observable, SnapshotSource};
use isolane_observe::snapshot::{Program as Description, Snapshot, VERSION};

use crate::control::Listeners;
use crate::program::{OnSlow, Program};
use crate::side_threads::SideThreads;

/// Variable of the environment with the path of the control socket of a program with a host.
pub const VARIABLE: &str = "ISOLANE_CONTROL";

/// Reason for which a program has no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The program was started by a user without its rights, who could choose the path.
    #[error(
        "control socket: the program runs with more rights than the user who started it; run a copy without the \
         set-user-ID bit, set-group-ID bit, and capabilities"
    )]
    Privileged,
    /// The volume was connected before a fork.
    #[error(
        "control socket: the volume was connected by process {process} before a fork; connect it in this process"
    )]
    Forked {
        /// ID of the process that connected it.
        process: u32,
    },
    /// The socket or a thread cannot be made; the reason, with a remedy.
    #[error("{0}")]
    Listen(String),
}

/// Serves the numbers of a volume or client at the path of a new control socket, which `isolane top`, `explain`, `slow`,
/// and `snapshot` read.
///
/// # Errors
/// [`ServeError`].
pub fn serve(volume: &impl Observable, path: impl AsRef<Path>) -> Result<HostControl, ServeError> {
    let source = volume.source();
    check_process(&*source)?;
    if is_privileged() {
        return Err(ServeError::Privileged);
    }
    let control = HostControl::start(&own_name(), path.as_ref(), "", source.cpus())?;
    control.volumes.add(source);
    Ok(control)
}

/// Control socket of a program with a host or verbs. The socket is removed when this is dropped.
#[derive(Debug)]
pub struct HostControl {
    volumes: Arc<Volumes>,
    threads: SideThreads,
}

impl HostControl {
    /// Listens at the path in the variable `ISOLANE_CONTROL`, for a program with this name whose cores use these CPUs.
    /// Returns `None` without a path, and with a line in the log if the program is set-user-ID.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn from_variable(name: &str, cpus: Vec<u32>) -> Result<Option<HostControl>, ServeError> {
        match path_to_open(std::env::var_os(VARIABLE), is_privileged()) {
            Some(path) => HostControl::start(name, &path, VARIABLE, cpus).map(Some),
            None => Ok(None),
        }
    }

    fn start(
        name: &str,
        path: &Path,
        setting: &'static str,
        cpus: Vec<u32>,
    ) -> Result<HostControl, ServeError> {
        let volumes = Arc::new(Volumes::new(name));
        let program: Arc<dyn Program> = Arc::<Volumes>::clone(&volumes);
        let threads = SideThreads::start(program, cpus, OnSlow { log: false, ..OnSlow::default() });
        let mut threads =
            threads.map_err(|error| ServeError::Listen(format!("cannot start side threads: {error}")))?;
        let listeners = Listeners { socket: Some(path.to_owned()), metrics: None, setting };
        threads.listen(&listeners).map_err(ServeError::Listen)?;
        Ok(HostControl { volumes, threads })
    }

    /// Adds a volume, client, or queue pair, until it is closed.
    ///
    /// # Errors
    /// [`ServeError::Forked`].
    pub fn add(&self, volume: &impl Observable) -> Result<(), ServeError> {
        let source = volume.source();
        check_process(&*source)?;
        self.volumes.add(source);
        Ok(())
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        self.threads.socket().unwrap_or(Path::new(""))
    }
}

fn check_process(source: &dyn SnapshotSource) -> Result<(), ServeError> {
    let process = source.process();
    if process == std::process::id() { Ok(()) } else { Err(ServeError::Forked { process }) }
}

/// Returns the path in the variable, unless the program is privileged.
fn path_to_open(value: Option<OsString>, is_privileged: bool) -> Option<PathBuf> {
    let path = value.filter(|path| !path.is_empty())?;
    if is_privileged {
        log::warn!("{VARIABLE} ignored: the program runs with more rights than the user who started it");
        return None;
    }
    Some(path.into())
}

/// Returns the name by which the program was started.
pub fn own_name() -> String {
    let path = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The open volumes of a program.
struct Volumes {
    name: String,
    started: Instant,
    all: Mutex<Numbered>,
}

#[derive(Default)]
struct Numbered {
    open: Vec<Open>,
    next: Offsets,
}

struct Open {
    source: Arc<dyn SnapshotSource>,
    offsets: Offsets,
}

/// Distances from the numbers of a source to those in the document of the program.
#[derive(Clone, Copy, Default)]
struct Offsets {
    volume: u32,
    core: u32,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Volumes {
    fn new(name: &str) -> Volumes {
        Volumes { name: name.to_owned(), started: Instant::now(), all: Mutex::default() }
    }

    fn add(&self, source: Arc<dyn SnapshotSource>) {
        let Some(snapshot) = source.snapshot() else { return };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let offsets = all.next;
        all.next.volume += snapshot.volumes.len() as u32;
        all.next.core += snapshot.numbers.cores.len() as u32;
        all.open.push(Open { source, offsets });
    }
}

impl Program for Volumes {
    fn snapshot(&self) -> Snapshot {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut program = Snapshot {
            version: VERSION,
            program: Description {
                name: self.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_ms: self.started.elapsed().as_millis() as u64,
                machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                ..Description::default()
            },
            at_unix_ms: at.as_millis() as u64,
            ..Snapshot::default()
        };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.open.retain(|Open { source, offsets }| {
            let Some(snapshot) = source.snapshot() else { return false };
            append(&mut program, snapshot, *offsets);
            true
        });
        drop(all);
        program.slow.sort_by_key(|operation| operation.at_unix_us);
        program
    }
}

/// Adds the numbers of a source.
fn append(program: &mut Snapshot, mut source: Snapshot, offsets: Offsets) {
    for volume in &mut source.volumes {
        volume.id += offsets.volume;
        volume.parent = volume.parent.map(|parent| parent + offsets.volume);
    }
    for series in &mut source.numbers.series {
        series.volume += offsets.volume;
        series.core += offsets.core;
    }
    source.numbers.cores.iter_mut().for_each(|core| core.index += offsets.core);
    for operation in &mut source.slow {
        operation.volume += offsets.volume;
        operation.core += offsets.core;
    }
    for connection in &mut source.numbers.connections {
        connection.core += offsets.core;
        connection.queue_pair = connection.queue_pair.map(|volume| volume + offsets.volume);
    }
    program.program.clock = source.program.clock;
    program.volumes.append(&mut source.volumes);
    program.numbers.series.append(&mut source.numbers.series);
    program.numbers.cores.append(&mut source.numbers.cores);
    program.numbers.connections.append(&mut source.numbers.connections);
    program.slow.append(&mut source.slow);
}

#[cfg(test)]
mod tests;
