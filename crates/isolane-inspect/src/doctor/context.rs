//! The system that is checked, and the counters of a first reading.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use isolane_observe::snapshot::Snapshot;

use super::devices::{self, Card};
use crate::source::{Parts, Source, SourceError, parse_document};
use crate::system::{
    Accesses, IrqLine, Malformed, ReadError, Reason, Root, SMALL, VolumeFile, decode_choice, decode_cpu_list,
    decode_status_field, devices_beneath, show_cpus,
};

/// Time between two readings of a counter.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Files of a copy with the numbers of the target, and with the cores of `--cores`.
const TARGET: &str = "/isolane/target.json";
const CORES: &str = "/isolane/cores";

/// Limit in bytes of [`TARGET`].
const MAX_TARGET_BYTES: usize = 64 << 20;

/// A running target.
#[derive(Debug)]
struct Target {
    /// Where its numbers are read again.
    source: Option<Source>,
    snapshot: Result<Snapshot, ReadError>,
}

impl Target {
    /// Records the numbers for a copy.
    fn new(root: &Root, source: Source, snapshot: Result<Snapshot, ReadError>) -> Target {
        if let Some(text) = snapshot.as_ref().ok().and_then(|snapshot| serde_json::to_string(snapshot).ok()) {
            root.record_text(TARGET, &text);
        }
        Target { source: Some(source), snapshot }
    }

    /// Returns the target of a copied system, if it has one.
    fn copied(root: &Root) -> Option<Target> {
        let decode = |text: String| {
            let failed = |error: String| ReadError { path: TARGET.into(), reason: Reason::Io(error) };
            parse_document(text.as_bytes()).map_err(failed)
        };
        match root.read(TARGET, MAX_TARGET_BYTES) {
            _ if root.is_system() => None,
            Err(error) if error.reason == Reason::Missing => None,
            text => Some(Target { source: None, snapshot: text.and_then(decode) }),
        }
    }
}

/// The system that is checked.
#[derive(Debug)]
pub struct Context {
    /// Where files are read.
    pub(super) root: Root,
    target: Option<Target>,
    cores: Option<Vec<u32>>,
    first: RefCell<BTreeMap<String, u64>>,
    has_two_readings: bool,
    irq_lines: OnceCell<Result<Vec<IrqLine>, ReadError>>,
    cards: OnceCell<Result<Vec<Card>, ReadError>>,
}

impl Context {
    /// Checks the system below a root, for reactors on some cores. By default, these are the cores of the target, or all
    /// that this process may use.
    pub fn new(root: Root, cores: Option<Vec<u32>>) -> Self {
        if let Some(cores) = &cores {
            root.record_text(CORES, &show_cpus(cores));
        }
        let copied = || root.parse(CORES, SMALL, decode_cpu_list).ok().filter(|_| !root.is_system());
        let cores = cores.or_else(copied);
        Context {
            target: Target::copied(&root),
            root,
            cores,
            first: RefCell::default(),
            has_two_readings: false,
            irq_lines: OnceCell::new(),
            cards: OnceCell::new(),
        }
    }

    /// Checks the system of a running target also, which a source reads.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn with_target(self, source: Source) -> Result<Self, SourceError> {
        let snapshot = source.read(Parts::Now)?;
        let target = Target::new(&self.root, source, Ok(snapshot));
        Ok(Context { target: Some(target), ..self })
    }

    /// Returns everything that was read, if the root is recorded.
    pub fn accesses(&self) -> Accesses {
        self.root.accesses()
    }

    #[cfg(test)]
    pub(super) fn with_snapshot(self, snapshot: Snapshot) -> Self {
        Context { target: Some(Target { source: None, snapshot: Ok(snapshot) }), ..self }
    }

    /// Returns the numbers of the running target, if there is one.
    ///
    /// # Errors
    /// The target has ended between the readings.
    pub(super) fn snapshot(&self) -> Result<Option<&Snapshot>, ReadError> {
        self.target.as_ref().map(|target| target.snapshot.as_ref().map_err(Clone::clone)).transpose()
    }

    /// Returns the ID of the running target, if there is one.
    ///
    /// # Errors
    /// The target has ended between the readings.
    pub(super) fn pid(&self) -> Result<Option<u32>, ReadError> {
        Ok(self.snapshot()?.map(|snapshot| snapshot.program.pid))
    }

    /// Returns the files and block devices of the target's volumes.
    ///
    /// # Errors
    /// The target has ended between the readings.
    pub(super) fn volumes(&self) -> Result<Vec<String>, ReadError> {
        let volumes = self.snapshot()?.map(|snapshot| &*snapshot.volumes).unwrap_or_default();
        let mut paths: Vec<String> = volumes.iter().filter_map(|volume| volume.path.clone()).collect();
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    /// Returns the name of the checked process in `/proc`.
    ///
    /// # Errors
    /// The target has ended between the readings.
    pub(super) fn process(&self) -> Result<String, ReadError> {
        Ok(self.pid()?.map_or("self".into(), |pid| pid.to_string()))
    }

    /// Returns the cores of the reactors, at least one.
    pub(super) fn cores(&self) -> Result<Vec<u32>, ReadError> {
        let snapshot = self.snapshot()?;
        let of_target =
            snapshot.map(|snapshot| snapshot.numbers.cores.iter().filter_map(|core| core.cpu).collect());
        let of_target = of_target.filter(|cores: &Vec<u32>| !cores.is_empty());
        self.cores.clone().or(of_target).map_or_else(|| self.allowed(), Ok)
    }

    /// Returns the cores that the process may use, at least one.
    pub(super) fn allowed(&self) -> Result<Vec<u32>, ReadError> {
        let path = format!("/proc/{}/status", self.process()?);
        self.root.parse(&path, SMALL, |text| {
            let cores = decode_cpu_list(decode_status_field(text, "Cpus_allowed_list")?)?;
            if cores.is_empty() { Err(Malformed { line: 1, expected: "an allowed CPU" }) } else { Ok(cores) }
        })
    }

    /// Returns the drives beneath the volumes of the target. Without a target, these are all drives.
    pub(super) fn drives(&self) -> Result<Vec<&Card>, ReadError> {
        let drives = self.cards()?.iter().filter(|card| card.is_drive);
        let volumes = self.volumes()?;
        if volumes.is_empty() {
            return Ok(drives.collect());
        }
        let mut names = Vec::new();
        for volume in &volumes {
            let devices = devices_beneath(&self.root, VolumeFile::read(&self.root, volume)?.device)?;
            names.extend(devices.into_iter().map(|device| device.name));
        }
        Ok(drives.filter(|card| names.contains(&card.name)).collect())
    }

    /// Returns the word in brackets of a list of choices.
    pub(super) fn chosen(&self, path: &str) -> Result<String, ReadError> {
        self.root.parse(path, SMALL, decode_choice)
    }

    /// Returns all interrupt lines.
    pub(super) fn irq_lines(&self) -> Result<&[IrqLine], ReadError> {
        let read = || IrqLine::all(&self.root)?.into_iter().collect();
        self.irq_lines.get_or_init(read).as_deref().map_err(Clone::clone)
    }

    /// Returns the drives and network cards.
    pub(super) fn cards(&self) -> Result<&[Card], ReadError> {
        self.cards.get_or_init(|| devices::cards(&self.root)).as_deref().map_err(Clone::clone)
    }

    /// Returns the increase of a counter between two readings, or its value if there is only one reading.
    pub(super) fn rise(&self, name: &str, value: u64) -> u64 {
        if self.has_two_readings {
            value.saturating_sub(self.first.borrow().get(name).copied().unwrap_or(value))
        } else {
            self.first.borrow_mut().insert(name.to_owned(), value);
            value
        }
    }

    /// Names the time of [`Context::rise`].
    pub(super) fn period(&self) -> &'static str {
        if self.has_two_readings { "in 1 s" } else { "since the start of the system" }
    }

    /// Returns `true` in the second reading.
    pub(super) fn has_two_readings(&self) -> bool {
        self.has_two_readings
    }

    /// Starts the second reading.
    pub(super) fn start_second_reading(&mut self) {
        self.has_two_readings = true;
        self.root.start_second_reading();
        let failed =
            |error: SourceError| ReadError { path: "target".into(), reason: Reason::Io(error.to_string()) };
        self.target = match self.target.take() {
            Some(Target { source: Some(source), .. }) => {
                let snapshot = source.read(Parts::Now).map_err(failed);
                Some(Target::new(&self.root, source, snapshot))
            }
            target => Target::copied(&self.root).or(target),
        };
    }
}

/// Returns the error of a file with an unexpected content.
pub(super) fn unexpected(path: &str, expected: &'static str) -> ReadError {
    ReadError { path: path.to_owned(), reason: Reason::Malformed(Malformed { line: 1, expected }) }
}
