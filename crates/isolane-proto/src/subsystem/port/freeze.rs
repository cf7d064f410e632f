//! State of a port that another process continues.
//!
//! Subsystems are found by their names, because the configuration of the other process can have others, in another
//! order. Associations of a subsystem that it does not have, or that no longer admits their host, do not continue.
//!
//! Invariant: a host gets a notice of each namespace that differs from the one that it knows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_wire::fabrics::MAX_CNTLID;
use isolane_wire::{Nqn, digest};
use serde::{Deserialize, Serialize};

use super::super::association::{Association, AssociationState, TotalsState};
use super::super::associations::Subsystem;
use super::super::listener::{ListenerState, ListenersState};
use super::super::{
    AssociationId, ControllerStatus, Host, IoCounters, ListenerId, NamespaceConfig, SubsystemConfig,
    SubsystemId,
};
use super::Port;
use crate::target::StateError;

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// The subsystems; the discovery subsystem comes first.
    pub subsystems: Vec<SubsystemState>,
    listeners: ListenersState,
    generation: u64,
    uptime_ms: Option<u64>,
}

impl PortState {
    /// Returns the listeners that the port had, ordered by identifier.
    pub fn listeners(&self) -> &[ListenerState] {
        &self.listeners.present
    }
}

/// State of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemState {
    /// Its number in the port that was frozen.
    pub number: u32,
    /// Its name.
    pub nqn: String,
    /// Its associations.
    pub associations: Vec<AssociationState>,
    next_cntlid: u16,
    serial: u64,
    past: TotalsState,
    degraded: bool,
    /// IDs and checksums of the namespaces.
    namespaces: Vec<(u32, u32)>,
}

/// A queue of a resumed association.
#[derive(Clone, Debug)]
pub struct ResumedQueue {
    /// The host.
    pub host: Host,
    /// State of the controller for the I/O path.
    pub status: Arc<ControllerStatus>,
    /// Counters of this queue for the SMART log.
    pub counters: Arc<IoCounters>,
}

impl Port {
    /// Returns the state. `None` while an association ends, resets, or shuts down.
    pub fn freeze(&self, now: Instant) -> Option<PortState> {
        let started = self.started.map(|started| now.saturating_duration_since(started).as_millis() as u64);
        let nvm = self.names.values().filter_map(|id| self.nvm.get(id));
        let subsystems = [&self.discovery].into_iter().chain(nvm).map(|it| it.freeze(now));
        let removed = self.nvm.len() > self.names.len();
        if removed || !self.events.is_empty() {
            return None;
        }
        let subsystems = subsystems.collect::<Option<Vec<_>>>()?;
        let listeners = self.listeners.freeze();
        Some(PortState { subsystems, listeners, generation: self.generation, uptime_ms: started })
    }

    /// Continues the associations of a port on this one, which has none. Returns the names of those that cannot: their
    /// subsystem, their listener, or the permission of their host is gone. Listeners continue by their names, or by their
    /// addresses without names.
    ///
    /// # Errors
    /// If no port can have the state.
    pub fn resume(&mut self, state: &PortState, now: Instant) -> Result<Vec<String>, StateError> {
        let mut lost = Vec::new();
        self.generation = self.generation.max(state.generation);
        self.listeners.resume(&state.listeners);
        self.started = state.uptime_ms.map(|ms| now.checked_sub(Duration::from_millis(ms)).unwrap_or(now));
        for saved in &state.subsystems {
            let nqn: Nqn = saved.nqn.parse().map_err(|_| StateError("the name of a subsystem"))?;
            let subsystem = match self.names.get(&nqn) {
                _ if nqn.is_discovery() => Some(&mut self.discovery),
                Some(id) => self.nvm.get_mut(id),
                None => None,
            };
            let listeners = &self.listeners;
            let find = |listener, config: &SubsystemConfig| {
                let found = listeners.find_resumed(&state.listeners, listener)?;
                (nqn.is_discovery() || listeners.has(found, config)).then_some(found)
            };
            match subsystem {
                Some(subsystem) => subsystem.resume(saved, find, &mut lost, now)?,
                None => lost
                    .extend(saved.associations.iter().map(|it| format!("{nqn}, controller {}", it.cntlid))),
            }
        }
        for subsystem in self.nvm.values_mut() {
            let saved = state.subsystems.iter().find(|it| it.nqn == subsystem.profile.config.nqn.as_str());
            let changed = saved.map(|saved| saved.changed_namespaces(subsystem)).unwrap_or_default();
            for association in subsystem.associations.values_mut().filter(|_| !changed.is_empty()) {
                association.handle_changed_namespaces(&changed, &mut self.events);
            }
        }
        let is_known = |nqn: &Nqn| state.subsystems.iter().any(|it| it.nqn == nqn.as_str());
        if state.subsystems.len() != self.names.len() + 1 || !self.names.keys().all(is_known) {
            self.notify_discovery(|_| true);
        }
        // Each is delivered when its admin queue continues.
        self.events.clear();
        Ok(lost)
    }

    /// Returns a queue of a resumed association.
    pub fn resumed_queue(&self, id: AssociationId, qid: u16) -> Option<ResumedQueue> {
        let subsystem = match id.subsystem {
            SubsystemId::DISCOVERY => &self.discovery,
            id => self.nvm.get(&id)?,
        };
        let association = subsystem.associations.get(&id.cntlid).filter(|found| found.id == id)?;
        let counters = association.counters(qid)?;
        Some(ResumedQueue { host: association.host, status: Arc::clone(&association.status), counters })
    }

    /// Returns the listener that continues one of the port that was frozen.
    pub fn resumed_listener(&self, state: &PortState, listener: ListenerId) -> Option<ListenerId> {
        self.listeners.find_resumed(&state.listeners, listener)
    }

    /// Returns the name of a subsystem, which can be the discovery subsystem.
    pub fn name_of(&self, id: SubsystemId) -> Option<Nqn> {
        if id.is_discovery() {
            return Some(Nqn::discovery());
        }
        self.nvm.get(&id).map(|subsystem| subsystem.profile.config.nqn)
    }

    /// Returns all NVM subsystems with their names.
    pub fn subsystem_names(&self) -> Vec<(SubsystemId, Nqn)> {
        self.names.iter().map(|(nqn, id)| (*id, *nqn)).collect()
    }

    /// Returns the subsystem with this name, which can be the discovery subsystem.
    pub fn find_any_subsystem(&self, nqn: &Nqn) -> Option<SubsystemId> {
        if nqn.is_discovery() { Some(SubsystemId::DISCOVERY) } else { self.find_subsystem(nqn) }
    }
}

impl Subsystem {
    fn freeze(&self, now: Instant) -> Option<SubsystemState> {
        let associations = self.associations.values().map(|association| association.freeze(now));
        Some(SubsystemState {
            number: self.id.number() as u32,
            nqn: self.profile.config.nqn.to_string(),
            associations: associations.collect::<Option<Vec<_>>>()?,
            next_cntlid: self.next_cntlid,
            serial: self.serial,
            past: self.past.into(),
            degraded: self.degraded,
            namespaces: self.profile.namespaces.values().map(|it| (it.nsid, checksum(it))).collect(),
        })
    }

    fn resume(
        &mut self,
        saved: &SubsystemState,
        find: impl Fn(ListenerId, &SubsystemConfig) -> Option<ListenerId>,
        lost: &mut Vec<String>,
        now: Instant,
    ) -> Result<(), StateError> {
        if !(1..=MAX_CNTLID).contains(&saved.next_cntlid) {
            return Err(StateError("the next controller ID of a subsystem"));
        }
        self.next_cntlid = saved.next_cntlid;
        self.serial = saved.serial;
        self.past = saved.past.into();
        self.degraded = saved.degraded;
        for state in &saved.associations {
            let resumed = Association::resume(self.id, state, &self.profile, now);
            let mut association = resumed.map_err(StateError)?;
            let is_valid =
                (1..=MAX_CNTLID).contains(&state.cntlid) && (1..=saved.serial).contains(&state.serial);
            if !is_valid || self.associations.contains_key(&state.cntlid) {
                return Err(StateError("a controller ID"));
            }
            if !association.move_listeners(|listener| find(listener, &self.profile.config)) {
                lost.push(format!("{}, controller {}: its port is gone", saved.nqn, state.cntlid));
            } else if self.profile.is_allowed(&association.host) {
                self.associations.insert(state.cntlid, association);
            } else {
                lost.push(format!(
                    "{}, controller {}: {} is not allowed",
                    saved.nqn, state.cntlid, association.host
                ));
            }
        }
        Ok(())
    }
}

impl SubsystemState {
    /// IDs of the namespaces that differ, or that only one of both has.
    fn changed_namespaces(&self, subsystem: &Subsystem) -> BTreeSet<u32> {
        let current = |nsid: &u32| subsystem.profile.namespaces.get(nsid).map(checksum);
        let saved = |nsid: &u32| self.namespaces.iter().find(|(id, _)| id == nsid).map(|(_, sum)| *sum);
        let nsids = self.namespaces.iter().map(|(nsid, _)| nsid).chain(subsystem.profile.namespaces.keys());
        nsids.filter(|nsid| current(nsid) != saved(nsid)).copied().collect()
    }
}

/// Checksum of everything that a host sees of a namespace.
fn checksum(namespace: &NamespaceConfig) -> u32 {
    digest::crc32c(format!("{namespace:?}").as_bytes())
}
