//! One association: all state that a controller keeps for one host.
//!
//! Invariant: a queue stays in the table until its I/O has ended or the queue is abandoned. An
//! association stays until the I/O of all of its queues has ended.

mod freeze;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use isolane_wire::admin::{AsyncEvent, LogPage, Notice};
use isolane_wire::feature::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, NumberOfQueues, TemperatureThreshold, WriteAtomicity,
};
use isolane_wire::log::{ErrorEntry, Transport};
use isolane_wire::{Status, SubmissionEntry};

pub use self::freeze::AssociationState;
pub(super) use self::freeze::TotalsState;
use super::event::AsyncEvents;
use super::host_page::KeptPage;
use super::keep_alive::KeepAlive;
use super::namespace::SubsystemProfile;
use super::property::Registers;
use super::{
    AssociationId, AssociationInfo, CloseReason, ConnectionInfo, ControlEvent, ControllerStatus, Host,
    IoCounters, IoTotals, ListenerId,
};
use crate::completion::Completion;
use crate::failure::Failure;

/// The controller of one host.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) id: AssociationId,
    pub(super) host: Host,
    pub(super) connection: ConnectionInfo,
    pub(super) status: Arc<ControllerStatus>,
    pub(super) registers: Registers,
    pub(super) keep_alive: KeepAlive,
    pub(super) events: AsyncEvents,
    pub(super) features: Features,
    /// The values after a reset.
    initial_features: Features,
    pub(super) errors: ErrorLog,
    /// Namespaces that have changed since the host read log page 04h.
    changed_namespaces: BTreeSet<u32>,
    /// Whether the discovery log has changed since the host read it.
    is_discovery_log_changed: bool,
    /// Whether a notice of these changes was sent.
    is_notice_sent: bool,
    /// The stages of its host, while it reads them.
    pub(super) host_page: Option<KeptPage>,
    /// Whether its connections are being closed and it waits for its last I/O.
    pub(super) ending: bool,
    /// Whether its connections close once their commands are complete.
    pub(super) retiring: bool,
    queues: BTreeMap<u16, QueueState>,
    /// Number of abandoned queues: disconnected, with I/O that has not ended.
    stuck_queues: usize,
}

#[derive(Debug)]
struct QueueState {
    counters: Arc<IoCounters>,
    connected: bool,
    /// The listener that accepted its connection.
    listener: ListenerId,
}

impl Association {
    /// A disabled controller without queues.
    pub(super) fn new(
        id: AssociationId,
        host: Host,
        connection: ConnectionInfo,
        profile: &SubsystemProfile,
        kato_ms: u32,
        now: Instant,
    ) -> Association {
        let features = Features::new(profile, &host);
        Association {
            id,
            host,
            connection,
            status: Arc::new(ControllerStatus::new(features.has_volatile_cache)),
            registers: Registers::new(id.subsystem.is_discovery()),
            keep_alive: KeepAlive::new(kato_ms, id.subsystem.is_discovery(), now),
            events: AsyncEvents::default(),
            features,
            initial_features: features,
            errors: ErrorLog::default(),
            changed_namespaces: BTreeSet::new(),
            is_discovery_log_changed: false,
            is_notice_sent: false,
            host_page: None,
            ending: false,
            retiring: false,
            queues: BTreeMap::new(),
            stuck_queues: 0,
        }
    }

    /// Adds a queue; the caller has checked that the QID is free.
    pub(super) fn add_queue(&mut self, qid: u16, listener: ListenerId) -> Arc<IoCounters> {
        let counters = Arc::new(IoCounters::default());
        self.queues.insert(qid, QueueState { counters: counters.clone(), connected: true, listener });
        counters
    }

    /// Whether the QID is in use, by a connected queue or by one whose I/O has not ended.
    pub(super) fn has_queue(&self, qid: u16) -> bool {
        self.queues.contains_key(&qid)
    }

    /// Whether any I/O queue exists or still has I/O in flight.
    pub(super) fn has_io_queues(&self) -> bool {
        self.queues.keys().any(|&qid| qid != 0)
    }

    /// Whether all I/O of all queues has ended.
    pub(super) fn is_drained(&self) -> bool {
        self.queues.is_empty() && self.stuck_queues == 0
    }

    /// Handles the loss of a queue's connection.
    pub(super) fn disconnect_queue(&mut self, qid: u16) {
        if let Some(queue) = self.queues.get_mut(&qid) {
            queue.connected = false;
        }
    }

    /// Removes a disconnected queue whose I/O has ended, and returns its totals.
    pub(super) fn remove_queue(&mut self, qid: u16) -> IoTotals {
        match self.queues.get(&qid) {
            Some(queue) if !queue.connected => {}
            _ => return IoTotals::default(),
        }
        let totals = self.queues.remove(&qid).map(|queue| queue.counters.totals());
        if !self.has_io_queues() && self.registers.handle_io_queues_gone() {
            self.reset();
        }
        self.publish_ready();
        totals.unwrap_or_default()
    }

    /// Removes a disconnected queue whose I/O does not end, and returns its totals. The CNTLID
    /// stays in use until that I/O has ended, because a write of this controller may still reach
    /// its volume.
    pub(super) fn abandon_queue(&mut self, qid: u16) -> IoTotals {
        self.stuck_queues += usize::from(self.queues.get(&qid).is_some_and(|queue| !queue.connected));
        self.remove_queue(qid)
    }

    /// Handles the end of the I/O of an abandoned queue.
    pub(super) fn forget_abandoned_queue(&mut self) {
        self.stuck_queues = self.stuck_queues.saturating_sub(1);
    }

    /// The totals of the present queues.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = IoTotals::default();
        for queue in self.queues.values() {
            totals += queue.counters.totals();
        }
        totals
    }

    /// Publishes to the cores whether the controller accepts I/O.
    pub(super) fn publish_ready(&self) {
        if self.ending {
            self.status.set_ended();
        }
        self.status.set_ready(self.registers.is_ready() && !self.ending);
    }

    /// Deadline of the keep-alive timer.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.ending { None } else { self.keep_alive.deadline(self.registers.is_ready()) }
    }

    /// Ends the association if its host has been silent for too long.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<ControlEvent>) {
        let (is_ready, status) = (self.registers.is_ready(), &self.status);
        if !self.ending && self.keep_alive.is_expired(is_ready, now, || status.take_traffic()) {
            self.registers.fail();
            self.end(CloseReason::KeepAliveExpired, events);
        }
    }

    /// Requests that all of its connections close.
    pub(super) fn end(&mut self, reason: CloseReason, events: &mut VecDeque<ControlEvent>) {
        if self.ending {
            return;
        }
        self.ending = true;
        self.events.clear_requests();
        self.host_page = None;
        self.publish_ready();
        events.push_back(ControlEvent::Close { id: self.id, reason });
    }

    /// Requests that its connections close cleanly if a listener of one of them is lost.
    pub(super) fn retire_if(
        &mut self,
        is_lost: impl Fn(ListenerId) -> bool,
        events: &mut VecDeque<ControlEvent>,
    ) {
        let mut connected = self.queues.values().filter(|queue| queue.connected);
        if connected.any(|queue| is_lost(queue.listener)) {
            self.retire(CloseReason::PortRemoved, events);
        }
    }

    /// Requests that its connections close cleanly. Returns `false` if it ends already.
    pub(super) fn retire(&mut self, reason: CloseReason, events: &mut VecDeque<ControlEvent>) -> bool {
        if self.ending || self.retiring {
            return false;
        }
        self.retiring = true;
        events.push_back(ControlEvent::Retire { id: self.id, reason });
        true
    }

    /// Holds an Async Event Request, which completes immediately if a notice is due.
    pub(super) fn hold_async_event(
        &mut self,
        cid: u16,
        events: &mut VecDeque<ControlEvent>,
    ) -> Result<(), Status> {
        self.events.hold(cid)?;
        self.send_notice(events);
        Ok(())
    }

    /// Records changed namespaces, and sends one notice for all changes until the host reads their
    /// list. A controller that is not enabled has no need: its host reads all namespaces later.
    pub(super) fn handle_changed_namespaces(
        &mut self,
        nsids: &BTreeSet<u32>,
        events: &mut VecDeque<ControlEvent>,
    ) {
        if !self.ending && self.registers.is_enabled() {
            self.changed_namespaces.extend(nsids);
            self.send_notice(events);
        }
    }

    /// Changed namespaces for log page 04h.
    pub(super) fn changed_namespaces(&self) -> impl Iterator<Item = u32> {
        self.changed_namespaces.iter().copied()
    }

    /// Records a change of the discovery log as [`Association::handle_changed_namespaces`] does.
    pub(super) fn handle_changed_discovery_log(&mut self, events: &mut VecDeque<ControlEvent>) {
        if !self.ending && self.registers.is_enabled() {
            self.is_discovery_log_changed = true;
            self.send_notice(events);
        }
    }

    /// Clears the changes after the host has read their log: the next change sends a notice.
    pub(super) fn clear_changes(&mut self) {
        self.changed_namespaces.clear();
        self.is_discovery_log_changed = false;
        self.is_notice_sent = false;
    }

    fn send_notice(&mut self, events: &mut VecDeque<ControlEvent>) {
        let enabled = self.features.events_enabled;
        let event = if !self.changed_namespaces.is_empty() && enabled.namespace_attribute() {
            AsyncEvent::notice(Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces)
        } else if self.is_discovery_log_changed && enabled.discovery_log() {
            AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery)
        } else {
            return;
        };
        if !self.is_notice_sent {
            self.is_notice_sent = self.events.complete_oldest(Completion::with_dw0(event.0));
            self.announce_completions(events);
        }
    }

    /// Aborts all held Async Event Requests, as a reset does.
    pub(super) fn abort_async_events(&mut self, events: &mut VecDeque<ControlEvent>) {
        self.events.complete_all(Failure::QueueDeleted.into());
        self.announce_completions(events);
    }

    /// Aborts the held Async Event Request with this CID. Returns `false` if the CID is not held.
    pub(super) fn abort_async_event(&mut self, cid: u16, events: &mut VecDeque<ControlEvent>) -> bool {
        let is_aborted = self.events.complete(cid, Failure::Aborted.into());
        self.announce_completions(events);
        is_aborted
    }

    fn announce_completions(&self, events: &mut VecDeque<ControlEvent>) {
        if self.events.has_completions() {
            events.push_back(ControlEvent::AsyncEvents(self.id));
        }
    }

    /// Applies a Controller Level Reset (Base 1.4 §7.3.2). KATO and identity stay.
    pub(super) fn reset(&mut self) {
        self.features = self.initial_features;
        self.clear_changes();
        self.host_page = None;
        self.status.set_write_cache(self.features.has_volatile_cache);
        self.status.set_retry_delays(false);
    }

    /// Rejects admin commands before CC.EN, when only fabrics commands are allowed (Fabrics 1.1
    /// §3.1).
    pub(super) fn check_ready(&self) -> Result<(), Status> {
        if self.registers.is_enabled() { Ok(()) } else { Err(Failure::Sequence.status()) }
    }

    /// Summary for `info` and log lines.
    pub(super) fn info(&self) -> AssociationInfo {
        AssociationInfo {
            id: self.id,
            host: self.host,
            connection: self.connection,
            queues: self.queues.values().filter(|queue| queue.connected).count(),
            kato_ms: self.keep_alive.kato_ms(),
        }
    }
}

/// Values of the features that no other part of a controller keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    /// Whether a volatile cache existed when the host connected.
    pub(super) has_volatile_cache: bool,
    /// Async events that this controller can report.
    pub(super) events_offered: AsyncEventConfiguration,
    pub(super) events_enabled: AsyncEventConfiguration,
    max_queues: u16,
    granted_queues: u16,
    pub(super) arbitration: Arbitration,
    pub(super) error_recovery: ErrorRecovery,
    /// The host uses the retry delays of Identify Controller (feature 16h).
    pub(super) acre: bool,
    pub(super) atomicity: WriteAtomicity,
    over_temperature_kelvin: u16,
    under_temperature_kelvin: u16,
}

impl Features {
    fn new(profile: &SubsystemProfile, host: &Host) -> Features {
        Features {
            has_volatile_cache: profile.has_volatile_cache(host),
            events_offered: profile.events_offered(),
            events_enabled: profile.events_offered(),
            max_queues: profile.max_io_queues(),
            granted_queues: profile.max_io_queues(),
            arbitration: Arbitration(0).with_ab(NO_BURST_LIMIT),
            error_recovery: ErrorRecovery(0),
            acre: false,
            atomicity: WriteAtomicity(0),
            over_temperature_kelvin: WARNING_TEMPERATURE_KELVIN,
            under_temperature_kelvin: 0,
        }
    }

    /// Number of I/O queues that the host can connect.
    pub(super) fn granted_queues(&self) -> u16 {
        self.granted_queues
    }

    /// Grants as many pairs as the host requests, within the limit (Base 1.4 §5.21.1.7).
    pub(super) fn grant_queues(&mut self, requested: NumberOfQueues) -> Result<(), Status> {
        if requested.submission() == u16::MAX || requested.completion() == u16::MAX {
            return Err(Failure::Field.status());
        }
        let pairs = requested.submission().max(requested.completion()) + 1;
        self.granted_queues = pairs.min(self.max_queues);
        Ok(())
    }

    /// Feature 07h.
    pub(super) fn queues(&self) -> NumberOfQueues {
        let granted = self.granted_queues.saturating_sub(1);
        NumberOfQueues(0).with_submission(granted).with_completion(granted)
    }

    /// The temperature threshold that `selected` names; `ALL_SENSORS` is valid only in Set
    /// Features.
    pub(super) fn temperature(&mut self, selected: TemperatureThreshold) -> Result<&mut u16, Status> {
        match (selected.tmpsel(), selected.thsel()) {
            (COMPOSITE | ALL_SENSORS, OVER) => Ok(&mut self.over_temperature_kelvin),
            (COMPOSITE | ALL_SENSORS, UNDER) => Ok(&mut self.under_temperature_kelvin),
            _ => Err(Failure::Field.status()),
        }
    }
}

/// The last errors of one controller, newest first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    pub(super) count: u64,
}

impl ErrorLog {
    /// Records a failed command.
    pub(super) fn record(&mut self, qid: u16, entry: &SubmissionEntry, status: Status) {
        self.count += 1;
        self.entries.truncate(MAX_ERRORS - 1);
        self.entries.push_front(ErrorEntry {
            error_count: self.count,
            sqid: qid,
            cid: entry.cid,
            status,
            parameter_location: NO_PARAMETER,
            nsid: entry.nsid,
            trtype: Transport::Tcp.code(),
            ..ErrorEntry::default()
        });
    }

    /// Log page 01h.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.entries.iter().flat_map(|entry| entry.encode()).collect();
        page.resize(MAX_ERRORS * ErrorEntry::LEN, 0);
        page
    }
}

/// Length of the host identifier.
pub(super) const HOST_IDENTIFIER_BYTES: u64 = 16;
/// Entries of an error log: ELPE + 1.
pub(super) const MAX_ERRORS: usize = 64;
/// WCTEMP and default over temperature threshold. No sensor exists, but revision 1.2 and later
/// require a value and recommend this one.
pub(super) const WARNING_TEMPERATURE_KELVIN: u16 = 0x0157;
/// TMPSEL: the composite temperature, the only one.
const COMPOSITE: u8 = 0;
/// TMPSEL: all sensors.
pub(super) const ALL_SENSORS: u8 = 0xf;
/// THSEL: over temperature threshold.
const OVER: u8 = 0;
/// THSEL: under temperature threshold.
const UNDER: u8 = 1;
/// AB: no limit.
const NO_BURST_LIMIT: u8 = 0b111;
/// PEL of an error that concerns no particular field.
const NO_PARAMETER: u16 = 0xffff;
