//! Changes of listeners while hosts are connected.
//!
//! Invariant: a change that fails changes nothing; each discovery controller whose log changes gets a notice.

use std::net::SocketAddr;

use super::discovery::Record;
use super::{ConfigError, Listener, ListenerId, Port, SubsystemId};

impl Port {
    /// The listeners.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.listeners.iter().map(|(id, listener, _)| (id, listener))
    }

    /// Returns the listener with this name.
    pub fn find_listener(&self, name: &str) -> Option<ListenerId> {
        self.listeners().find(|(_, listener)| listener.name.as_deref() == Some(name)).map(|(id, _)| id)
    }

    /// Adds a listener. A name gets the PORTID that it had before.
    ///
    /// # Errors
    /// Another listener has its name, or every PORTID has been used.
    pub fn add_listener(&mut self, listener: Listener) -> Result<ListenerId, ConfigError> {
        self.change_log(|port| port.listeners.add(listener))
    }

    /// Removes a listener: associations with a connection that it has accepted close cleanly. Subsystems keep its name
    /// in their lists.
    pub fn remove_listener(&mut self, removed: ListenerId) {
        let _: Result<(), ConfigError> = self.change_log(|port| {
            port.listeners.remove(removed);
            Ok(())
        });
        self.retire_lost();
    }

    /// Replaces listeners by others with the same names, which keep their PORTIDs: associations with a connection that
    /// one of the old ones has accepted close cleanly. Returns the new identifiers.
    ///
    /// # Errors
    /// A listener does not exist, or those of [`Port::add_listener`].
    pub fn replace_listeners(
        &mut self,
        replaced: Vec<(ListenerId, Listener)>,
    ) -> Result<Vec<ListenerId>, ConfigError> {
        let ids = self.change_log(|port| port.listeners.replace(replaced))?;
        self.retire_lost();
        Ok(ids)
    }

    /// Ends the associations with a connection whose listener is gone.
    fn retire_lost(&mut self) {
        let listeners = &self.listeners;
        for subsystem in self.nvm.values_mut().chain([&mut self.discovery]) {
            for association in subsystem.associations.values_mut() {
                association.retire_if(|id| listeners.get(id).is_none(), &mut self.events);
            }
        }
    }

    /// Checks names of listeners.
    ///
    /// # Errors
    /// No listener has one of the names.
    pub fn check_ports(&self, ports: Option<&[String]>) -> Result<(), ConfigError> {
        self.listeners.check_names(ports)
    }

    /// Replaces the names of the listeners at which hosts reach a subsystem; `None`: all. Associations with a connection
    /// of another listener close cleanly.
    ///
    /// # Errors
    /// The subsystem was removed, or no listener has one of the names.
    pub fn set_ports(&mut self, id: SubsystemId, ports: Option<Vec<String>>) -> Result<(), ConfigError> {
        self.listeners.check_names(ports.as_deref())?;
        self.change_log(|port| {
            let subsystem = port.nvm.get_mut(&id).ok_or(ConfigError::UnknownSubsystem)?;
            if port.names.get(&subsystem.profile.config.nqn) != Some(&id) {
                return Err(ConfigError::UnknownSubsystem);
            }
            subsystem.profile.config.ports = ports;
            let config = &subsystem.profile.config;
            for association in subsystem.associations.values_mut() {
                let is_lost = |listener| !port.listeners.has(listener, config);
                association.retire_if(is_lost, &mut port.events);
            }
            Ok(())
        })
    }

    /// Replaces the addresses of other discovery services.
    pub fn set_referrals(&mut self, referrals: Vec<SocketAddr>) {
        let _: Result<(), ConfigError> = self.change_log(|port| {
            port.referrals = referrals;
            Ok(())
        });
    }

    /// Makes a change, and notifies the discovery controllers whose log it changes.
    fn change_log<R>(
        &mut self,
        change: impl FnOnce(&mut Port) -> Result<R, ConfigError>,
    ) -> Result<R, ConfigError> {
        let before = self.logs();
        let result = change(self)?;
        let after = self.logs();
        self.generation += 1;
        let associations = self.discovery.associations.values_mut().zip(before.into_iter().zip(after));
        for (association, (before, after)) in associations {
            if before != after {
                association.handle_changed_discovery_log(&mut self.events);
            }
        }
        Ok(result)
    }

    /// The records for each discovery controller.
    fn logs(&self) -> Vec<Vec<Record>> {
        self.discovery.associations.values().map(|association| self.records(association)).collect()
    }
}
