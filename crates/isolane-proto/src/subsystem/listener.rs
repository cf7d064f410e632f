//! The listeners of a port. A subsystem is at all of them, or at those that it lists.
//!
//! Invariant: two listeners have different identifiers, also if one was removed before; a name has one PORTID.

use std::collections::{BTreeMap, HashMap};

use super::config::{ConfigError, Listener, SubsystemConfig};

/// Identifier of one listener of a port. It is unique, although its name can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ListenerId(u32);

impl ListenerId {
    /// The listener at this index of [`PortConfig::listeners`](super::PortConfig::listeners).
    pub fn at(index: usize) -> ListenerId {
        ListenerId(index as u32)
    }
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
}
