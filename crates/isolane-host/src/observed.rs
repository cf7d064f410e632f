//! Numbers of a volume or client, which any thread can read.
//!
//! The leader of each client writes into its [`ClientCells`]; [`Observed`] has those of all clients of a volume, with
//! the description of the volume.
//!
//! Invariant: a [`Source`] keeps nothing open.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use isolane_observe::cells::KindCells;
use isolane_observe::observable::SnapshotSource;
use isolane_observe::slow::SlowRing;
use isolane_observe::snapshot::{Core, Numbers, Program, SlowOperation, Snapshot, VERSION, Volume};
use isolane_observe::stage::Side;
use isolane_reactor::clock;

use crate::info::{Info, NamespaceInfo};

/// Numbers of one client, by operation and size class. Its leader writes, any thread reads.
#[derive(Debug, Default)]
pub(crate) struct ClientCells {
    pub kinds: KindCells,
    slow: OnceLock<SlowRing>,
}

/// Slow operations that a client keeps: at least those of two minutes.
const SLOW_SLOTS: usize = 512;

impl ClientCells {
    pub(crate) fn slow(&self) -> &SlowRing {
        self.slow.get_or_init(|| SlowRing::with_slots(SLOW_SLOTS))
    }

    /// Returns the slow operations.
    fn copy_slow(&self, core: u32, unix_offset_ns: i128) -> impl Iterator<Item = SlowOperation> {
        let records = self.slow.get().map(SlowRing::copy).unwrap_or_default().into_iter();
        records.map(move |record| record.to_operation(Side::Host, core, unix_offset_ns))
    }
}

/// A client of a volume, as readers see it.
#[derive(Debug)]
pub(crate) struct ObservedClient {
    /// The core that its thread is pinned to.
    pub core: Option<usize>,
    /// `None` if it records nothing.
    pub cells: Option<Arc<ClientCells>>,
}

/// A volume, as readers see it.
#[derive(Debug)]
pub(crate) struct Observed {
    volume: Volume,
    clients: Vec<ObservedClient>,
    /// Process that connected.
    process: u32,
}

impl Observed {
    pub(crate) fn new(info: &Info, namespace: &NamespaceInfo, clients: Vec<ObservedClient>) -> Arc<Observed> {
        let volume = Volume {
            nsid: Some(namespace.nsid),
            name: format!("{}/{}", info.address, info.nqn.as_str()),
            kind: "remote".to_owned(),
            bytes: namespace.len_bytes(),
            ..Volume::default()
        };
        Arc::new(Observed { volume, clients, process: std::process::id() })
    }

    /// Returns the numbers so far.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_offset_ns = at.as_nanos() as i128 - i128::from(clock::now());
        let (mut numbers, mut slow) = (Numbers::default(), Vec::new());
        for (index, client) in (0..).zip(&self.clients) {
            let (cpu, cells) = (client.core.map(|core| core as u32), client.cells.as_ref());
            numbers.cores.push(Core { index, cpu, ..Core::default() });
            numbers.series.extend(cells.into_iter().flat_map(|cells| cells.kinds.copy(Side::Host, 0, index)));
            slow.extend(cells.into_iter().flat_map(|cells| cells.copy_slow(index, unix_offset_ns)));
        }
        slow.sort_by_key(|slow| slow.at_unix_us);
        let clock = clock::source().to_owned();
        Snapshot {
            version: VERSION,
            program: Program { pid: self.process, clock, ..Program::default() },
            at_unix_ms: at.as_millis() as u64,
            volumes: vec![self.volume.clone()],
            numbers,
            slow,
            ..Snapshot::default()
        }
    }

    /// Returns a source for other threads.
    pub(crate) fn source(self: &Arc<Observed>) -> Arc<dyn SnapshotSource> {
        let cpus = self.clients.iter().filter_map(|client| client.core.map(|core| core as u32)).collect();
        Arc::new(Source { observed: Arc::downgrade(self), cpus, process: self.process })
    }
}

/// Source of the numbers of a volume or client.
#[derive(Debug)]
struct Source {
    observed: Weak<Observed>,
    cpus: Vec<u32>,
    process: u32,
}

impl SnapshotSource for Source {
    fn snapshot(&self) -> Option<Snapshot> {
        Some(self.observed.upgrade()?.snapshot())
    }

    fn cpus(&self) -> Vec<u32> {
        self.cpus.clone()
    }

    fn process(&self) -> u32 {
        self.process
    }
}
