//! One subsystem with its associations.
//!
//! Invariant: the identifier of an association that has ended finds nothing, even if its CNTLID is
//! in use again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::association::Association;
use super::host_page::{KeptPage, MAX_KEPT_PAGES};
use super::namespace::SubsystemProfile;
use super::{AssociationId, CloseReason, ControlEvent, IoTotals, NamespaceConfig, SubsystemId};

/// One subsystem and its controllers.
#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) id: SubsystemId,
    pub(super) profile: SubsystemProfile,
    pub(super) associations: BTreeMap<u16, Association>,
    pub(super) next_cntlid: u16,
    /// Number of the last association.
    pub(super) serial: u64,
    /// Totals of the queues that no longer exist.
    pub(super) past: IoTotals,
    /// Whether a flush of a volume has failed.
    pub(super) degraded: bool,
}

impl Subsystem {
    /// A subsystem without controllers.
    pub(super) fn new(id: SubsystemId, profile: SubsystemProfile) -> Subsystem {
        Subsystem {
            id,
            next_cntlid: *profile.config.cntlids.start(),
            profile,
            associations: BTreeMap::new(),
            serial: 0,
            past: IoTotals::default(),
            degraded: false,
        }
    }

    /// The association with this identifier, unless it has ended.
    pub(super) fn association(&mut self, id: AssociationId) -> Option<&mut Association> {
        self.associations.get_mut(&id.cntlid).filter(|association| association.id == id)
    }

    /// Replaces all namespaces, and notifies the hosts that see a change.
    pub(super) fn set_namespaces(
        &mut self,
        namespaces: Vec<NamespaceConfig>,
        events: &mut VecDeque<ControlEvent>,
    ) {
        let next = namespaces.into_iter().map(|namespace| (namespace.nsid, namespace)).collect();
        let before = std::mem::replace(&mut self.profile.namespaces, next);
        let after = &self.profile.namespaces;
        let nsids: BTreeSet<u32> = before.keys().chain(after.keys()).copied().collect();
        let changed: Vec<_> = nsids
            .into_iter()
            .map(|nsid| (nsid, before.get(&nsid), after.get(&nsid)))
            .filter(|(_, before, after)| before != after)
            .collect();
        for association in self.associations.values_mut() {
            let sees_change = |before: Option<&NamespaceConfig>, after: Option<&NamespaceConfig>| {
                let visible = |it: Option<&NamespaceConfig>| {
                    let it = it.filter(|it| it.is_visible(&association.host))?;
                    Some(NamespaceConfig { hosts: None, ..it.clone() })
                };
                visible(before) != visible(after)
            };
            let changed = changed.iter().filter(|(_, before, after)| sees_change(*before, *after));
            let changed: BTreeSet<u32> = changed.map(|(nsid, ..)| *nsid).collect();
            association.handle_changed_namespaces(&changed, events);
        }
    }

    /// Ends the associations of hosts that can no longer connect.
    pub(super) fn end_refused(&mut self, reason: CloseReason, events: &mut VecDeque<ControlEvent>) {
        let profile = &self.profile;
        for association in self.associations.values_mut().filter(|it| !profile.is_allowed(&it.host)) {
            association.end(reason, events);
        }
    }

    /// The totals of all queues since the start of the subsystem.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = self.past;
        for association in self.associations.values() {
            totals += association.totals();
        }
        totals
    }

    /// Removes the association if it is ending and all of its I/O has ended.
    pub(super) fn remove_if_drained(&mut self, id: AssociationId, events: &mut VecDeque<ControlEvent>) {
        if self.association(id).is_some_and(|association| association.ending && association.is_drained()) {
            self.associations.remove(&id.cntlid);
            events.push_back(ControlEvent::Ended(id));
        }
    }

    /// Stores a page of an association, and drops the oldest page of another one if there are too many.
    pub(super) fn keep_host_page(&mut self, id: AssociationId, page: KeptPage) {
        let Some(association) = self.association(id).filter(|association| !association.ending) else {
            return;
        };
        association.host_page = Some(page);
        let kept = self.associations.values_mut().filter(|association| association.host_page.is_some());
        let mut kept: Vec<_> = kept.collect();
        if kept.len() > MAX_KEPT_PAGES {
            let age = |it: &&mut &mut Association| {
                (it.id == id, it.host_page.as_ref().map(|page| page.collected_at))
            };
            kept.iter_mut().min_by_key(age).into_iter().for_each(|oldest| oldest.host_page = None);
        }
    }

    /// Deadline of the first keep-alive timer.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.associations.values().filter_map(Association::deadline).min()
    }

    /// Ends the associations of silent hosts.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<ControlEvent>) {
        for association in self.associations.values_mut() {
            association.handle_timeout(now, events);
        }
    }
}
