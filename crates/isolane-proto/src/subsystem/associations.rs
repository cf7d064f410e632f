//! The associations of one subsystem, and what every call needs to find one.
//!
//! What it is: the table of controllers. What it is not: the door; that is [`Port`](super::Port).
//! Invariant: an identifier of an association that has ended finds nothing, whoever has its CNTLID now.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::association::Association;
use super::event::Notice;
use super::namespace::SubsystemProfile;
use super::{AssociationId, CloseReason, ControlEvent, IoTotals};

/// One subsystem and its controllers.
#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) profile: SubsystemProfile,
    pub(super) associations: BTreeMap<u16, Association>,
    pub(super) next_cntlid: u16,
    serial: u64,
    past: IoTotals,
}

impl Subsystem {
    /// A subsystem without controllers.
    pub(super) fn new(profile: SubsystemProfile) -> Subsystem {
        Subsystem {
            profile,
            associations: BTreeMap::new(),
            next_cntlid: 1,
            serial: 0,
            past: IoTotals::default(),
        }
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// The association of this identifier, if it is still there.
    pub(super) fn association(&mut self, id: AssociationId) -> Option<&mut Association> {
        self.associations.get_mut(&id.cntlid).filter(|association| association.id == id)
    }

    /// What all queues of the subsystem have done since it began.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = self.past;
        for association in self.associations.values() {
            totals += association.totals();
        }
        totals
    }

    /// A connection is gone.
    pub(super) fn handle_disconnected(
        &mut self,
        id: AssociationId,
        qid: u16,
        events: &mut VecDeque<ControlEvent>,
    ) {
        let Some(association) = self.association(id) else { return };
        association.disconnect_queue(qid);
        if qid == 0 {
            association.end(CloseReason::AdminQueueLost, events);
        }
    }

    /// The I/O of a queue has ended; the association goes with its last one.
    pub(super) fn handle_drained(
        &mut self,
        id: AssociationId,
        qid: u16,
        events: &mut VecDeque<ControlEvent>,
    ) {
        let Some(association) = self.association(id) else { return };
        let totals = association.remove_queue(qid);
        association.publish_ready();
        self.past += totals;
        self.end_if_over(id, events);
    }

    /// The I/O of a queue does not end, and the association goes on without it.
    pub(super) fn handle_stuck(&mut self, id: AssociationId, qid: u16) {
        let Some(association) = self.association(id) else { return };
        let totals = association.leave_queue(qid);
        association.publish_ready();
        self.past += totals;
    }

    /// The I/O of a queue that an association goes on without has ended.
    pub(super) fn handle_unstuck(&mut self, id: AssociationId, events: &mut VecDeque<ControlEvent>) {
        let Some(association) = self.association(id) else { return };
        association.forget_left_queue();
        self.end_if_over(id, events);
    }

    fn end_if_over(&mut self, id: AssociationId, events: &mut VecDeque<ControlEvent>) {
        if self.association(id).is_some_and(|association| association.is_ending && association.is_drained()) {
            self.associations.remove(&id.cntlid);
            events.push_back(ControlEvent::Ended { id });
        }
    }

    /// The flush of a shutdown has ended.
    pub(super) fn handle_flushed(&mut self, id: AssociationId) {
        if let Some(association) = self.association(id) {
            association.registers.handle_flushed();
        }
    }

    /// When the first keep-alive timer is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.associations.values().filter_map(Association::deadline).min()
    }

    /// Ends the associations of silent hosts.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<ControlEvent>) {
        for association in self.associations.values_mut() {
            association.handle_timeout(now, events);
        }
    }

    /// Tells every host of this subsystem.
    pub(super) fn raise(&mut self, notice: Notice, nsid: Option<u32>, events: &mut VecDeque<ControlEvent>) {
        for association in self.associations.values_mut() {
            association.changed_namespaces.extend(nsid);
            association.events.raise(notice);
            association.poll_events(events);
        }
    }
}
