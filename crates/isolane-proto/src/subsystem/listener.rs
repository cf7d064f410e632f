//! The listeners of a port. A subsystem is at all of them, or at those that it lists.
//!
//! Invariant: two listeners have different identifiers, also if one was removed before; a name has one PORTID.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::config::{ConfigError, Listener, SubsystemConfig};

/// Identifier of one listener of a port. It is unique, although its name can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListenerId(u32);

impl ListenerId {
    /// Of no listener: a port refuses every Connect of its connections.
    pub const NONE: ListenerId = ListenerId(u32::MAX);

    /// The listener at this index of [`PortConfig::listeners`](super::PortConfig::listeners).
    pub fn at(index: usize) -> ListenerId {
        ListenerId(index as u32)
    }
}

/// A listener of a port that another process continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerState {
    /// Its identifier in the port that was frozen.
    pub id: ListenerId,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The address that it has.
    pub address: SocketAddr,
}

/// State of all listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListenersState {
    pub(super) present: Vec<ListenerState>,
    port_ids: Vec<(String, u16)>,
    last_port_id: u16,
}

/// All listeners, ordered by identifier.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    present: BTreeMap<ListenerId, (Listener, u16)>,
    /// PORTID of each name, also of removed listeners.
    port_ids: HashMap<String, u16>,
    next: u32,
    last_port_id: u16,
}

impl Listeners {
    /// Adds a listener.
    ///
    /// # Errors
    /// Another one has its name or its PORTID, or every PORTID has been used.
    pub(super) fn add(&mut self, listener: Listener) -> Result<ListenerId, ConfigError> {
        if let Some(name) = listener.name.as_ref().filter(|name| self.is_known(name)) {
            return Err(ConfigError::SamePort(name.clone()));
        }
        let known = listener.name.as_ref().and_then(|name| self.port_ids.get(name).copied());
        let known = listener.port_id.or(known);
        let port_id = known.or_else(|| self.last_port_id.checked_add(1)).ok_or(ConfigError::TooManyPorts)?;
        if self.present.values().any(|(_, other)| *other == port_id) {
            return Err(ConfigError::SamePortId(port_id));
        }
        self.last_port_id = self.last_port_id.max(port_id);
        if let Some(name) = &listener.name {
            self.port_ids.insert(name.clone(), port_id);
        }
        let id = ListenerId(self.next);
        self.next += 1;
        self.present.insert(id, (listener, port_id));
        Ok(id)
    }

    /// Removes a listener.
    pub(super) fn remove(&mut self, id: ListenerId) {
        self.present.remove(&id);
    }

    /// Replaces listeners by others with the same names. Returns the new identifiers.
    ///
    /// # Errors
    /// A listener does not exist, or those of [`Listeners::add`]; nothing has changed then.
    pub(super) fn replace(
        &mut self,
        replaced: Vec<(ListenerId, Listener)>,
    ) -> Result<Vec<ListenerId>, ConfigError> {
        let before = self.present.clone();
        let mut listeners = Vec::new();
        for (id, listener) in replaced {
            let gone = self.present.remove(&id);
            listeners.push((gone.is_some(), listener));
        }
        let mut add = |(is_known, listener): (bool, Listener)| {
            let name = listener.name.clone().unwrap_or_default();
            if is_known { self.add(listener) } else { Err(ConfigError::UnknownPort(name)) }
        };
        let added: Result<Vec<ListenerId>, ConfigError> = listeners.into_iter().map(&mut add).collect();
        if added.is_err() {
            self.present = before;
        }
        added
    }

    /// The listener with this identifier.
    pub(super) fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.present.get(&id).map(|(listener, _)| listener)
    }

    /// Whether hosts reach this NVM subsystem at this listener.
    pub(super) fn has(&self, id: ListenerId, subsystem: &SubsystemConfig) -> bool {
        self.get(id).is_some_and(|listener| listener.has(subsystem))
    }

    /// All listeners, with their PORTIDs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ListenerId, &Listener, u16)> {
        self.present.iter().map(|(id, (listener, port_id))| (*id, listener, *port_id))
    }

    /// Checks that a subsystem lists names of listeners only.
    ///
    /// # Errors
    /// An unknown name.
    pub(super) fn check_names(&self, ports: Option<&[String]>) -> Result<(), ConfigError> {
        let unknown = ports.unwrap_or_default().iter().find(|name| !self.is_known(name));
        unknown.map_or(Ok(()), |name| Err(ConfigError::UnknownPort(name.clone())))
    }

    fn is_known(&self, name: &str) -> bool {
        self.present.values().any(|(listener, _)| listener.name.as_deref() == Some(name))
    }

    /// Returns the state.
    pub(super) fn freeze(&self) -> ListenersState {
        let state = |(id, listener, _): (ListenerId, &Listener, u16)| ListenerState {
            id,
            name: listener.name.clone(),
            address: listener.address,
        };
        let mut port_ids: Vec<_> = self.port_ids.iter().map(|(name, id)| (name.clone(), *id)).collect();
        port_ids.sort_unstable();
        ListenersState {
            present: self.iter().map(state).collect(),
            port_ids,
            last_port_id: self.last_port_id,
        }
    }

    /// Gives each name the PORTID that it had before, and the others new ones.
    pub(super) fn resume(&mut self, saved: &ListenersState) {
        let known = |name: &str| saved.port_ids.iter().find(|(other, _)| other == name).map(|(_, id)| *id);
        let mut last = saved.last_port_id;
        for (listener, port_id) in self.present.values_mut() {
            let Some(name) = &listener.name else { continue };
            *port_id = known(name).unwrap_or_else(|| {
                last = last.saturating_add(1);
                last
            });
            self.port_ids.insert(name.clone(), *port_id);
        }
        for (name, port_id) in &saved.port_ids {
            self.port_ids.entry(name.clone()).or_insert(*port_id);
        }
        self.last_port_id = self.last_port_id.max(last);
    }

    /// Returns the listener that continues one of the port that was frozen.
    pub(super) fn find_resumed(&self, saved: &ListenersState, id: ListenerId) -> Option<ListenerId> {
        let before = saved.present.iter().find(|listener| listener.id == id)?;
        let is_same = |listener: &Listener| match (&before.name, &listener.name) {
            (None, None) => listener.address == before.address,
            (before, now) => before == now,
        };
        self.iter().find(|(_, listener, _)| is_same(listener)).map(|(id, ..)| id)
    }
}
