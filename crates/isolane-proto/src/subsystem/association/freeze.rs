//! State of an association that another process continues.
//!
//! The page of a host is not part of it: a host that reads a part of it gets the error after which it reads it again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_wire::Nqn;
use isolane_wire::Status;
use isolane_wire::feature::{Arbitration, AsyncEventConfiguration, ErrorRecovery, WriteAtomicity};
use isolane_wire::log::ErrorEntry;
use serde::{Deserialize, Serialize};

use super::super::{
    AssociationId, ConnectionInfo, Host, IoCounters, IoTotals, ListenerId, MAX_NSID, SubsystemId,
};
use super::{Association, AsyncEvents, ErrorLog, Features, KeepAlive, MAX_ERRORS, QueueState, Registers};
use crate::completion::Completion;
use crate::subsystem::namespace::SubsystemProfile;

/// State of an association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationState {
    /// Its controller ID.
    pub cntlid: u16,
    /// Counts the associations of its subsystem.
    pub serial: u64,
    host: HostState,
    local: SocketAddr,
    remote: SocketAddr,
    listener: ListenerId,
    cc: u32,
    phase: u8,
    kato_ms: u32,
    silent_ms: u32,
    had_traffic: bool,
    write_cache: bool,
    features: FeaturesState,
    initial_features: FeaturesState,
    held: Vec<u16>,
    completions: Vec<(u16, CompletionState)>,
    errors: Vec<Vec<u8>>,
    error_count: u64,
    changed_namespaces: Vec<u32>,
    is_discovery_log_changed: bool,
    is_notice_sent: bool,
    queues: Vec<(u16, ListenerId, TotalsState)>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HostState {
    nqn: Option<String>,
    hostid: [u8; 16],
}

/// Counters of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::subsystem) struct TotalsState {
    reads: u64,
    bytes_read: u64,
    writes: u64,
    bytes_written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CompletionState {
    status: u16,
    dw0: u32,
    dw1: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FeaturesState {
    has_volatile_cache: bool,
    events_offered: u32,
    events_enabled: u32,
    max_queues: u16,
    granted_queues: u16,
    arbitration: u32,
    error_recovery: u32,
    acre: bool,
    atomicity: u32,
    over_temperature_kelvin: u16,
    under_temperature_kelvin: u16,
}

impl Association {
    /// Returns the state; `None` while queues or flushes must end first.
    pub(in crate::subsystem) fn freeze(&self, now: Instant) -> Option<AssociationState> {
        let (cc, phase) = self.registers.state()?;
        let is_closing = self.queues.values().any(|queue| !queue.connected);
        if self.ending || self.retiring || is_closing || self.stuck_queues > 0 {
            return None;
        }
        let (held, completions) = self.events.state();
        Some(AssociationState {
            cntlid: self.id.cntlid,
            serial: self.id.serial,
            host: HostState::from(self.host),
            local: self.connection.local,
            remote: self.connection.remote,
            listener: self.connection.listener,
            cc,
            phase,
            kato_ms: self.keep_alive.kato_ms(),
            silent_ms: u32::try_from(self.keep_alive.elapsed(now).as_millis()).unwrap_or(u32::MAX),
            had_traffic: self.status.had_traffic(),
            write_cache: self.status.is_write_cache_enabled(),
            features: FeaturesState::from(self.features),
            initial_features: FeaturesState::from(self.initial_features),
            held: held.to_vec(),
            completions: completions.iter().map(|&(cid, it)| (cid, CompletionState::from(it))).collect(),
            errors: self.errors.entries.iter().map(|entry| entry.encode().to_vec()).collect(),
            error_count: self.errors.count,
            changed_namespaces: self.changed_namespaces.iter().copied().collect(),
            is_discovery_log_changed: self.is_discovery_log_changed,
            is_notice_sent: self.is_notice_sent,
            queues: self
                .queues
                .iter()
                .map(|(qid, it)| (*qid, it.listener, it.counters.totals().into()))
                .collect(),
        })
    }

    /// Continues an association of a subsystem. Returns the name of the part that is not valid otherwise.
    pub(in crate::subsystem) fn resume(
        subsystem: SubsystemId,
        state: &AssociationState,
        profile: &SubsystemProfile,
        now: Instant,
    ) -> Result<Association, &'static str> {
        let id = AssociationId { subsystem, cntlid: state.cntlid, serial: state.serial };
        let host = state.host.to_host().ok_or("the name of a host")?;
        let connection =
            ConnectionInfo { local: state.local, remote: state.remote, listener: state.listener };
        let mut association = Association::new(id, host, connection, profile, state.kato_ms, now);
        let is_discovery = subsystem.is_discovery();
        let registers = Registers::from_state(is_discovery, (state.cc, state.phase));
        association.registers = registers.ok_or("the phase of a controller")?;
        let silent = Duration::from_millis(state.silent_ms.into());
        association.keep_alive = KeepAlive::resumed(state.kato_ms, is_discovery, silent, now);
        let completions: Vec<_> = state.completions.iter().map(|&(cid, it)| (cid, it.into())).collect();
        let events = AsyncEvents::from_state(&state.held, &completions);
        association.events = events.ok_or("the number of Async Event Requests")?;
        association.features = state.features.into();
        association.initial_features = state.initial_features.into();
        let entries: Option<VecDeque<_>> =
            state.errors.iter().map(|entry| ErrorEntry::decode_prefix(entry)).collect();
        let entries = entries.filter(|entries| entries.len() <= MAX_ERRORS).ok_or("an error log")?;
        association.errors = ErrorLog { entries, count: state.error_count };
        if state.changed_namespaces.iter().any(|nsid| !(1..=MAX_NSID).contains(nsid)) {
            return Err("a list of changed namespaces");
        }
        association.changed_namespaces = state.changed_namespaces.iter().copied().collect::<BTreeSet<_>>();
        association.is_discovery_log_changed = state.is_discovery_log_changed;
        association.is_notice_sent = state.is_notice_sent;
        association.queues = state.resumed_queues().ok_or("the queues of a controller")?;
        association.status.set_write_cache(state.write_cache);
        association.status.set_retry_delays(state.features.acre);
        if state.had_traffic {
            association.status.record_traffic();
        }
        association.publish_ready();
        Ok(association)
    }
}

impl AssociationState {
    /// IDs of its connected queues.
    pub fn queues(&self) -> impl Iterator<Item = u16> {
        self.queues.iter().map(|(qid, ..)| *qid)
    }

    /// Its host; `None` if the name is not valid.
    pub fn host(&self) -> Option<Host> {
        self.host.to_host()
    }

    /// Every association has an admin queue, and each queue once.
    fn resumed_queues(&self) -> Option<BTreeMap<u16, QueueState>> {
        let queue = |&(qid, listener, totals): &(u16, ListenerId, TotalsState)| {
            let counters = Arc::new(IoCounters::from_totals(totals.into()));
            (qid, QueueState { counters, connected: true, listener })
        };
        let queues: BTreeMap<u16, QueueState> = self.queues.iter().map(queue).collect();
        let is_valid = queues.len() == self.queues.len() && queues.contains_key(&0);
        is_valid.then_some(queues)
    }
}

impl Association {
    /// Replaces the listeners that have accepted its connections. Returns `false` if one has no replacement.
    pub(in crate::subsystem) fn move_listeners(
        &mut self,
        find: impl Fn(ListenerId) -> Option<ListenerId>,
    ) -> bool {
        let queues = self.queues.values_mut().map(|queue| &mut queue.listener);
        queues.chain([&mut self.connection.listener]).all(|listener| {
            let found = find(*listener);
            *listener = found.unwrap_or(*listener);
            found.is_some()
        })
    }

    /// Counters of a connected queue.
    pub(in crate::subsystem) fn counters(&self, qid: u16) -> Option<Arc<IoCounters>> {
        self.queues.get(&qid).map(|queue| Arc::clone(&queue.counters))
    }
}

impl From<Host> for HostState {
    fn from(Host { nqn, hostid }: Host) -> HostState {
        HostState { nqn: nqn.map(|nqn| nqn.to_string()), hostid }
    }
}

impl HostState {
    fn to_host(&self) -> Option<Host> {
        let nqn = self.nqn.as_deref().map(str::parse::<Nqn>).transpose().ok()?;
        Some(Host { nqn, hostid: self.hostid })
    }
}

impl From<IoTotals> for TotalsState {
    fn from(IoTotals { reads, bytes_read, writes, bytes_written }: IoTotals) -> TotalsState {
        TotalsState { reads, bytes_read, writes, bytes_written }
    }
}

impl From<TotalsState> for IoTotals {
    fn from(TotalsState { reads, bytes_read, writes, bytes_written }: TotalsState) -> IoTotals {
        IoTotals { reads, bytes_read, writes, bytes_written }
    }
}

impl From<Completion> for CompletionState {
    fn from(Completion { status, dw0, dw1 }: Completion) -> CompletionState {
        CompletionState { status: status.0, dw0, dw1 }
    }
}

impl From<CompletionState> for Completion {
    fn from(CompletionState { status, dw0, dw1 }: CompletionState) -> Completion {
        Completion { status: Status(status), dw0, dw1 }
    }
}

impl From<Features> for FeaturesState {
    fn from(it: Features) -> FeaturesState {
        FeaturesState {
            has_volatile_cache: it.has_volatile_cache,
            events_offered: it.events_offered.0,
            events_enabled: it.events_enabled.0,
            max_queues: it.max_queues,
            granted_queues: it.granted_queues,
            arbitration: it.arbitration.0,
            error_recovery: it.error_recovery.0,
            acre: it.acre,
            atomicity: it.atomicity.0,
            over_temperature_kelvin: it.over_temperature_kelvin,
            under_temperature_kelvin: it.under_temperature_kelvin,
        }
    }
}

impl From<FeaturesState> for Features {
    fn from(it: FeaturesState) -> Features {
        Features {
            has_volatile_cache: it.has_volatile_cache,
            events_offered: AsyncEventConfiguration(it.events_offered),
            events_enabled: AsyncEventConfiguration(it.events_enabled),
            max_queues: it.max_queues,
            granted_queues: it.granted_queues,
            arbitration: Arbitration(it.arbitration),
            error_recovery: ErrorRecovery(it.error_recovery),
            acre: it.acre,
            atomicity: WriteAtomicity(it.atomicity),
            over_temperature_kelvin: it.over_temperature_kelvin,
            under_temperature_kelvin: it.under_temperature_kelvin,
        }
    }
}
