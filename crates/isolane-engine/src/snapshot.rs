//! The numbers of a running engine as one document.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use isolane_observe::snapshot::{Numbers, Program, Snapshot, VERSION, Volume};
use isolane_reactor::clock;

use crate::observed::{CurrentTurn, Observed, side_of};

/// Source of snapshots of an engine, for any thread. It does not keep the engine running.
#[derive(Clone, Debug)]
pub struct SnapshotSource(Weak<Observed>);

impl SnapshotSource {
    pub(crate) fn new(observed: &Arc<Observed>) -> SnapshotSource {
        SnapshotSource(Arc::downgrade(observed))
    }

    /// Returns what [`Engine::snapshot`](crate::Engine::snapshot) returns, or `None` once the engine has ended.
    pub fn snapshot(&self) -> Option<Snapshot> {
        Some(take(&*self.0.upgrade()?))
    }

    /// Returns the current turn of each core; none once the engine has ended.
    pub fn turns(&self) -> Vec<CurrentTurn> {
        let observed = self.0.upgrade();
        let cores = observed.iter().flat_map(|observed| (0..).zip(&observed.cores));
        cores.map(|(index, cells)| cells.turn(index)).collect()
    }
}

/// Returns all numbers since the start of the engine. Asks no core.
pub(crate) fn take(observed: &Observed) -> Snapshot {
    let now_ns = clock::now();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_offset_ns = since_1970.as_nanos() as i128 - i128::from(now_ns);
    let (volumes, unobserved) = observed.volumes.all();
    let mut slow = Vec::new();
    let mut numbers = Numbers::default();
    for (index, cells) in (0..).zip(&observed.cores) {
        let records = cells.slow.copy().into_iter();
        slow.extend(records.map(|record| record.to_operation(side_of(record.volume), index, unix_offset_ns)));
        numbers.cores.push(cells.describe(index));
    }
    slow.sort_by_key(|operation| operation.at_unix_us);
    // Streams of a session have numbers on each core.
    let described: BTreeMap<u32, Volume> =
        volumes.iter().map(|cells| cells.describe()).map(|it| (it.id, it)).collect();
    numbers.series = volumes.iter().flat_map(|cells| cells.copy()).collect();
    numbers.counters = [("unobserved-volumes".to_owned(), unobserved)].into();
    numbers.counters.insert("log-lines-lost".to_owned(), log::lost_lines());
    Snapshot {
        version: VERSION,
        program: program(now_ns.saturating_sub(observed.started_ns)),
        at_unix_ms: since_1970.as_millis() as u64,
        volumes: described.into_values().collect(),
        numbers,
        slow,
        ..Snapshot::default()
    }
}

fn program(uptime_ns: u64) -> Program {
    Program {
        name: String::from("engine"),
        version: String::from(env!("CARGO_PKG_VERSION")),
        pid: std::process::id(),
        uptime_ms: uptime_ns / 1_000_000,
        clock: clock::source().to_owned(),
        machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        ..Program::default()
    }
}
