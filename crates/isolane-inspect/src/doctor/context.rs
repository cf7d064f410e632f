//! The system that is checked, and the counters of a first reading.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use isolane_observe::snapshot::Snapshot;

use super::devices::{self, Card};
use crate::source::{Parts, Source, SourceError};
use crate::system::{IrqLine, ReadError, Root, SMALL, decode_cpu_list, decode_status_field};
use crate::system::{Malformed, Reason, device_of, devices_beneath};

/// Time between two readings of a counter.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// A running target.
#[derive(Debug)]
struct Target {
    /// Where its numbers are read again.
    source: Option<Source>,
    snapshot: Result<Snapshot, ReadError>,
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
    /// Checks the system below a root, for reactors on some cores. By default, these are all cores that this process
    /// may use.
    pub fn new(root: Root, cores: Option<Vec<u32>>) -> Self {
        Context {
            root,
            target: None,
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
        Ok(Context { target: Some(Target { source: Some(source), snapshot: Ok(snapshot) }), ..self })
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
    pub(super) fn volumes(&self) -> Result<Vec<PathBuf>, ReadError> {
        let volumes = self.snapshot()?.map(|snapshot| &*snapshot.volumes).unwrap_or_default();
        let mut paths: Vec<PathBuf> =
            volumes.iter().filter_map(|volume| volume.path.clone().map(PathBuf::from)).collect();
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
            let devices = devices_beneath(&self.root, device_of(volume)?)?;
            names.extend(devices.into_iter().map(|device| device.name));
        }
        Ok(drives.filter(|card| names.contains(&card.name)).collect())
    }

    /// Returns the word in brackets of a list of choices.
    pub(super) fn chosen(&self, path: &str) -> Result<String, ReadError> {
        let text = self.root.word(path)?;
        let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        word.map(|(word, _)| word.to_owned()).ok_or(unexpected(path, "a word in brackets"))
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
        if let Some(Target { source: Some(source), snapshot }) = &mut self.target {
            *snapshot = source
                .read(Parts::Now)
                .map_err(|error| ReadError { path: "target".into(), reason: Reason::Io(error.to_string()) });
        }
    }
}

/// Returns the error of a file with an unexpected content.
pub(super) fn unexpected(path: &str, expected: &'static str) -> ReadError {
    ReadError { path: path.to_owned(), reason: Reason::Malformed(Malformed { line: 1, expected }) }
}
