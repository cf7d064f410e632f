//! One association: a host, its controller, its queues.
//!
//! What it is: all state that a controller keeps for one host. What it is not: a table of them (`Subsystem`).
//! Invariant: a queue stays in the table until its I/O has ended or is left behind, and an association until
//! the I/O of all of its queues has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use isolane_wire::{Nqn, Status};

use super::event::AsyncEvents;
use super::feature::Features;
use super::keep_alive::{KeepAlive, TimerState};
use super::log::ErrorLog;
use super::namespace::SubsystemProfile;
use super::property::Registers;
use super::{
    AssociationId, AssociationInfo, CloseReason, ConnectionInfo, ControlEvent, ControllerStatus, IoCounters,
    IoTotals,
};
use crate::completion::Completion;

/// A host, as its Connect names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// HOSTNQN; `None` if the host sent an empty one.
    pub nqn: Option<Nqn>,
    /// HOSTID.
    pub hostid: [u8; 16],
}

impl Host {
    /// Whether both may be one host: the names are equal, or, if either has none, the identifiers.
    pub fn matches(&self, other: &Host) -> bool {
        match (&self.nqn, &other.nqn) {
            (Some(name), Some(other)) => name == other,
            _ => self.hostid == other.hostid,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nqn {
            Some(nqn) => nqn.fmt(f),
            None => write!(f, "a host without a name (identifier {:032x})", u128::from_be_bytes(self.hostid)),
        }
    }
}

/// The controller that serves one host.
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
    pub(super) errors: ErrorLog,
    /// Namespaces that changed since the host read log page 04h.
    pub(super) changed_namespaces: BTreeSet<u32>,
    /// Its connections are being closed; it waits for its last I/O.
    pub(super) is_ending: bool,
    queues: BTreeMap<u16, QueueState>,
    /// Disconnected queues that it goes on without although their I/O has not ended.
    stuck_queues: usize,
}

#[derive(Debug)]
struct QueueState {
    counters: Arc<IoCounters>,
    is_connected: bool,
}

impl Association {
    /// A disabled controller with a connected admin queue.
    pub(super) fn new(
        id: AssociationId,
        host: Host,
        connection: ConnectionInfo,
        profile: &SubsystemProfile,
        kato_ms: u32,
        now: Instant,
    ) -> Association {
        let mut association = Association {
            id,
            host,
            connection,
            status: Arc::new(ControllerStatus::new(profile.has_volatile_cache())),
            registers: Registers::new(id.discovery),
            keep_alive: KeepAlive::new(kato_ms, id.discovery, now),
            events: AsyncEvents::new(profile.events_offered()),
            features: Features::new(profile),
            errors: ErrorLog::default(),
            changed_namespaces: BTreeSet::new(),
            is_ending: false,
            queues: BTreeMap::new(),
            stuck_queues: 0,
        };
        association.add_queue(0);
        association
    }

    /// What the admin queue counts; nothing as long as no I/O goes through it.
    pub(super) fn admin_counters(&self) -> Arc<IoCounters> {
        self.queues.get(&0).map(|queue| queue.counters.clone()).unwrap_or_default()
    }

    /// Makes a queue known; the caller has checked that there is none of this QID.
    pub(super) fn add_queue(&mut self, qid: u16) -> Arc<IoCounters> {
        let counters = Arc::new(IoCounters::default());
        self.queues.insert(qid, QueueState { counters: counters.clone(), is_connected: true });
        counters
    }

    /// Whether the QID is taken, by a connected queue or by one whose I/O has not ended.
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

    /// The connection of a queue is gone.
    pub(super) fn disconnect_queue(&mut self, qid: u16) {
        if let Some(queue) = self.queues.get_mut(&qid) {
            queue.is_connected = false;
        }
    }

    /// The I/O of a disconnected queue has ended; what it counted.
    pub(super) fn remove_queue(&mut self, qid: u16) -> IoTotals {
        match self.queues.get(&qid) {
            Some(queue) if !queue.is_connected => {}
            _ => return IoTotals::default(),
        }
        let totals = self.queues.remove(&qid).map(|queue| queue.counters.totals());
        if !self.has_io_queues() && self.registers.handle_io_queues_gone() {
            self.reset();
        }
        totals.unwrap_or_default()
    }

    /// Goes on without a disconnected queue whose I/O does not end; returns the queue's totals. The CNTLID stays
    /// taken until that I/O has ended: until then a change of this controller may still reach its volume.
    pub(super) fn leave_queue(&mut self, qid: u16) -> IoTotals {
        self.stuck_queues += usize::from(self.queues.get(&qid).is_some_and(|queue| !queue.is_connected));
        self.remove_queue(qid)
    }

    /// The I/O of a queue that was left has ended.
    pub(super) fn forget_left_queue(&mut self) {
        self.stuck_queues = self.stuck_queues.saturating_sub(1);
    }

    /// What the queues that are there have counted.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = IoTotals::default();
        for queue in self.queues.values() {
            totals += queue.counters.totals();
        }
        totals
    }

    /// What the keep-alive timer has to know.
    pub(super) fn watch(&self) -> TimerState {
        if self.registers.is_ready() { TimerState::Ready } else { TimerState::NotReady }
    }

    /// Tells the cores whether I/O is taken.
    pub(super) fn publish_ready(&self) {
        if self.is_ending {
            self.status.set_ended();
        }
        self.status.set_ready(self.registers.is_ready() && !self.is_ending);
    }

    /// When its keep-alive timer is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_ending { None } else { self.keep_alive.deadline(self.watch()) }
    }

    /// Ends the association if its host has been silent for too long.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<ControlEvent>) {
        let (watch, status) = (self.watch(), &self.status);
        if !self.is_ending && self.keep_alive.is_expired(watch, now, || status.take_traffic()) {
            self.registers.fail();
            self.end(CloseReason::KeepAliveExpired, events);
        }
    }

    /// All of its connections have to go.
    pub(super) fn end(&mut self, reason: CloseReason, events: &mut VecDeque<ControlEvent>) {
        if self.is_ending {
            return;
        }
        self.is_ending = true;
        self.events.clear_requests();
        self.publish_ready();
        events.push_back(ControlEvent::Close { id: self.id, reason });
    }

    /// Answers held Async Event Requests with what waits.
    pub(super) fn poll_events(&mut self, events: &mut VecDeque<ControlEvent>) {
        self.events.report();
        self.announce_answers(events);
    }

    /// Held Async Event Requests end with a reset.
    pub(super) fn abort_async_events(&mut self, events: &mut VecDeque<ControlEvent>) {
        self.events.answer_all(Completion::failed(Status::ABORTED_SQ_DELETION));
        self.announce_answers(events);
    }

    /// Answers the held Async Event Request of this CID as aborted. Returns `false` if none is held.
    pub(super) fn abort_async_event(&mut self, cid: u16, events: &mut VecDeque<ControlEvent>) -> bool {
        let is_aborted = self.events.answer(cid, Completion::failed(Status::ABORTED_BY_REQUEST));
        self.announce_answers(events);
        is_aborted
    }

    fn announce_answers(&self, events: &mut VecDeque<ControlEvent>) {
        if self.events.has_answers() {
            events.push_back(ControlEvent::AsyncEvents { id: self.id });
        }
    }

    /// The state after a Controller Level Reset (Base 1.4 §7.3.2). KATO and identity stay.
    pub(super) fn reset(&mut self) {
        self.features = self.features.at_reset();
        self.status.set_write_cache(self.features.has_volatile_cache);
        self.events.reset(self.features.events_offered);
        self.changed_namespaces.clear();
    }

    /// Whether an admin command may be executed: fabrics commands only before CC.EN (Fabrics 1.1 §3.1).
    pub(super) fn check_ready(&self) -> Result<(), Status> {
        if self.registers.is_enabled() { Ok(()) } else { Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr(true)) }
    }

    /// For `info` and log lines.
    pub(super) fn info(&self) -> AssociationInfo {
        AssociationInfo {
            id: self.id,
            host: self.host,
            connection: self.connection,
            queues: self.queues.values().filter(|queue| queue.is_connected).count(),
            kato_ms: self.keep_alive.kato_ms(),
        }
    }
}
