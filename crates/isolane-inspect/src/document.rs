//! The snapshot of the program, as readers get it: its numbers, with readings of the system and the recorded steps.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use hyper::body::Bytes;
use isolane_observe::snapshot::{Snapshot, StuckTurn};

use crate::metrics::{Exposition, Extra, Totals};
use crate::program::{SharedProgram, Turn};
use crate::recorder::{Connections, Devices, SlowDevices, Steps};
use crate::source::Parts;
use crate::system::{CpuTimes, Root, SMALL, decode_schedstat};

/// Source of the document for all readers.
pub struct Document {
    /// `None` after the program has stopped.
    program: RwLock<Option<SharedProgram>>,
    cpus: Vec<u32>,
    root: Root,
    connections: Mutex<Connections>,
    devices: Mutex<Devices>,
    steps: Mutex<Steps>,
    stuck: Mutex<VecDeque<StuckTurn>>,
    totals: Mutex<Totals>,
    slow_devices: Mutex<SlowDevices>,
    /// Metrics have the states of devices.
    shows_slow_devices: bool,
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Document").finish_non_exhaustive()
    }
}

impl Document {
    /// Returns the source for a program whose cores use these CPUs.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(program: SharedProgram, cpus: Vec<u32>) -> io::Result<Document> {
        Ok(Document {
            program: RwLock::new(Some(program)),
            cpus,
            root: Root::system()?,
            connections: Mutex::new(Connections::new()),
            devices: Mutex::default(),
            steps: Mutex::default(),
            stuck: Mutex::default(),
            totals: Mutex::default(),
            slow_devices: Mutex::default(),
            shows_slow_devices: true,
        })
    }

    /// Whether metrics have the states of devices.
    pub fn shows_slow_devices(&mut self, are_shown: bool) {
        self.shows_slow_devices = are_shown;
    }

    /// Returns the current numbers, without steps.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.program_snapshot();
        self.complete(&mut snapshot);
        snapshot
    }

    /// Adds the readings of the system to a snapshot of the program.
    pub(crate) fn complete(&self, snapshot: &mut Snapshot) {
        for core in &mut snapshot.numbers.cores {
            let path = format!("/proc/self/task/{}/schedstat", core.thread);
            if let Ok(stat) = self.root.parse(&path, SMALL, decode_schedstat) {
                (core.ran_ns, core.waited_ns) = (stat.ran_ns, stat.waited_ns);
            }
        }
        lock(&self.devices).fill(&self.root, snapshot);
        lock(&self.connections).fill(snapshot);
        snapshot.stuck = lock(&self.stuck).iter().cloned().collect();
        let recorder_bytes = lock(&self.steps).bytes() as u64;
        snapshot.numbers.counters.insert("recorder-bytes".to_owned(), recorder_bytes);
    }

    /// Returns the document as JSON, in parts.
    pub fn json(&self, parts: Parts) -> Vec<Bytes> {
        // Numbers and texts always have a representation.
        let mut head = serde_json::to_vec(&self.snapshot()).unwrap_or_default();
        if parts == Parts::Now || !head.ends_with(b"\"steps\":[]}") {
            return vec![head.into()];
        }
        head.truncate(head.len() - END.len());
        let mut document = vec![Bytes::from(head)];
        for step in lock(&self.steps).texts() {
            if document.len() > 1 {
                document.push(Bytes::from_static(b","));
            }
            document.push(step);
        }
        document.push(Bytes::from_static(END));
        document
    }

    /// Returns the metrics in a format.
    pub fn metrics(&self, exposition: Exposition) -> Vec<u8> {
        let snapshot = self.snapshot();
        let cpus = CpuTimes::read(&self.root).unwrap_or_default();
        let hz = rustix::param::clock_ticks_per_second().max(1);
        let stolen = cpus.iter().map(|times| (times.cpu, times.steal.saturating_mul(1000) / hz));
        let devices = lock(&self.slow_devices).states().filter(|_| self.shows_slow_devices).collect();
        let extra = Extra { stolen_ms: stolen.collect(), devices };
        exposition.write(&snapshot, &lock(&self.totals), &extra)
    }

    /// Releases the program, after the calls in progress. Readers get empty documents from now on.
    pub fn detach(&self) {
        *self.program.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the program, unless it has stopped.
    pub(crate) fn program(&self) -> Option<SharedProgram> {
        self.program.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the CPUs of the program's cores, which side threads avoid.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn avoid(&self, volume: u32, is_avoided: bool) -> bool {
        self.with_program(|program| program.avoid(volume, is_avoided))
    }

    pub(crate) fn turns(&self) -> Vec<Turn> {
        self.with_program(|program| program.turns())
    }

    /// Returns the snapshot as the program makes it.
    pub(crate) fn program_snapshot(&self) -> Snapshot {
        self.with_program(|program| program.snapshot())
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, Connections> {
        lock(&self.connections)
    }

    pub(crate) fn totals(&self) -> MutexGuard<'_, Totals> {
        lock(&self.totals)
    }

    pub(crate) fn slow_devices(&self) -> MutexGuard<'_, SlowDevices> {
        lock(&self.slow_devices)
    }

    pub(crate) fn steps(&self) -> MutexGuard<'_, Steps> {
        lock(&self.steps)
    }

    pub(crate) fn stuck(&self) -> MutexGuard<'_, VecDeque<StuckTurn>> {
        lock(&self.stuck)
    }

    fn with_program<T: Default>(&self, f: impl FnOnce(&SharedProgram) -> T) -> T {
        self.program.read().unwrap_or_else(PoisonError::into_inner).as_ref().map_or_else(T::default, f)
    }
}

/// End of the list of steps and of the document.
const END: &[u8] = b"]}";

/// A panic of another side thread leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
