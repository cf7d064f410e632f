//! Numbers of an observed queue pair, which any thread reads.

use std::array;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use isolane_observe::cells::{SeriesCells, StageTimes};
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::observable::SnapshotSource;
use isolane_observe::snapshot::{Connection, SeriesKey, Snapshot, VERSION, Volume};
use isolane_observe::stage::{Operation, Side, SizeClass};
use parking_lot::Mutex;
use rustix::net::{getpeername, getsockname};

use super::MAX_LANES;

/// Numbers of a queue pair.
pub(crate) struct Numbers {
    number: u32,
    process: u32,
    created: Instant,
    is_closed: AtomicBool,
    /// Time from the creation to the post of the oldest request without a completion, in nanoseconds; [`NONE`] without
    /// one.
    oldest: AtomicU64,
    /// Number of bytes sent on each lane.
    sent: [AtomicU64; MAX_LANES],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    peer: Option<IpAddr>,
    cells: BTreeMap<(Operation, SizeClass), Box<SeriesCells>>,
    lanes: BTreeMap<usize, Lane>,
}

/// A lane over TCP.
struct Lane {
    id: u64,
    local: SocketAddr,
    peer: SocketAddr,
    round_trips: Histogram,
}

impl Numbers {
    pub(crate) fn new(number: u32) -> Numbers {
        Numbers {
            number,
            process: std::process::id(),
            created: Instant::now(),
            is_closed: AtomicBool::new(false),
            oldest: AtomicU64::new(NONE),
            sent: array::from_fn(|_| AtomicU64::new(0)),
            state: Mutex::default(),
        }
    }

    /// Names the peer, once it is known.
    pub(crate) fn set_peer(&self, peer: IpAddr) {
        self.state.lock().peer = Some(peer);
    }

    /// Ends the snapshots.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn record(&self, kind: (Operation, SizeClass), bytes: u64, times: &StageTimes) {
        let mut state = self.state.lock();
        let cells = state.cells.entry(kind).or_default();
        cells.record(times, 1);
        cells.add_bytes(bytes);
    }

    pub(super) fn add_error(&self, kind: (Operation, SizeClass)) {
        self.state.lock().cells.entry(kind).or_default().add_error();
    }

    pub(super) fn set_oldest(&self, posted: Option<Instant>) {
        let since = posted.map(|posted| super::ns(posted.saturating_duration_since(self.created)));
        self.oldest.store(since.unwrap_or(NONE), Ordering::Relaxed);
    }

    pub(super) fn set_sent(&self, lane: usize, bytes: u64) {
        self.sent[lane].store(bytes, Ordering::Relaxed);
    }

    /// Adds a lane; one in the memory of this process has no addresses, and is left out.
    pub(super) fn open_lane(&self, index: usize, lane: BorrowedFd<'_>) {
        let address = |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).ok();
        let local = getsockname(lane).ok().and_then(address);
        let peer = getpeername(lane).ok().flatten().and_then(address);
        self.set_sent(index, 0);
        let mut state = self.state.lock();
        state.lanes.remove(&index);
        if let (Some(local), Some(peer)) = (local, peer) {
            let id = NEXT_LANE.fetch_add(1, Ordering::Relaxed);
            let round_trips = Histogram::new(Resolution::Four);
            state.lanes.insert(index, Lane { id, local, peer, round_trips });
        }
    }

    pub(super) fn add_round_trip(&self, lane: usize, ns: u64) {
        if let Some(lane) = self.state.lock().lanes.get_mut(&lane) {
            lane.round_trips.record(ns, 1);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let host = state.peer.map(|peer| peer.to_string()).unwrap_or_default();
        let name = match &*host {
            "" => format!("queue pair {}", self.number),
            host => format!("queue pair {} to {host}", self.number),
        };
        let oldest = Some(self.oldest.load(Ordering::Relaxed)).filter(|oldest| *oldest != NONE);
        let age = |oldest| super::ns(self.created.elapsed()).saturating_sub(oldest) / 1_000_000;
        let kind = "queue-pair".to_owned();
        let volume = Volume { name, kind, oldest_ms: oldest.map(age), ..Volume::default() };
        let series = state.cells.iter().filter_map(|((operation, size), cells)| {
            let (side, operation, size) = (Side::Verbs, *operation, *size);
            cells.copy(SeriesKey { side, volume: 0, core: 0, operation, size })
        });
        let lanes = state.lanes.iter().map(|(index, lane)| Connection {
            id: lane.id,
            host: host.clone(),
            queue: *index as u16,
            local: lane.local.to_string(),
            peer: lane.peer.to_string(),
            sent_bytes: self.sent[*index].load(Ordering::Relaxed),
            in_flight: u32::from(oldest.is_some()),
            queue_pair: Some(0),
            peer_times: Some(lane.round_trips.clone()).filter(|times| times.count() > 0),
            ..Connection::default()
        });
        let mut snapshot = Snapshot { version: VERSION, volumes: vec![volume], ..Snapshot::default() };
        snapshot.program.clock = "vdso".to_owned();
        snapshot.numbers.series = series.collect();
        snapshot.numbers.connections = lanes.collect();
        snapshot
    }
}

/// Source of the numbers of a queue pair; without any if its device is not observed.
pub(crate) struct Source(pub(crate) Option<Arc<Numbers>>);

impl SnapshotSource for Source {
    fn snapshot(&self) -> Option<Snapshot> {
        let numbers = self.0.as_ref().filter(|numbers| !numbers.is_closed.load(Ordering::Relaxed))?;
        Some(numbers.snapshot())
    }

    fn cpus(&self) -> Vec<u32> {
        Vec::new()
    }

    fn process(&self) -> u32 {
        self.0.as_ref().map_or_else(std::process::id, |numbers| numbers.process)
    }
}

/// Value of [`Numbers::oldest`] without a request.
const NONE: u64 = u64::MAX;
/// Number of the next lane of the process.
static NEXT_LANE: AtomicU64 = AtomicU64::new(1);
