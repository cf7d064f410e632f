//! What a subsystem is: its kind, limits and namespaces, apart from who is connected to it.
//!
//! What it is: plain data that every command may look at while one association is changed. What it is not:
//! the volumes. Invariant: the namespaces are those of [`NamespaceConfig`] that were checked.

use std::collections::BTreeMap;

use isolane_wire::Nqn;
use isolane_wire::feature::AsyncEventConfiguration;

use super::association::Host;
use super::{ConfigError, NamespaceConfig, SubsystemConfig};

/// Kind of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Controllers of it have I/O queues and namespaces.
    Nvm,
    /// Controllers of it have the discovery log.
    Discovery,
}

/// What a subsystem is.
#[derive(Debug)]
pub(super) struct SubsystemProfile {
    pub(super) kind: Kind,
    pub(super) config: SubsystemConfig,
    pub(super) namespaces: BTreeMap<u32, NamespaceConfig>,
}

impl SubsystemProfile {
    /// The subsystem of this configuration.
    pub(super) fn nvm(mut config: SubsystemConfig) -> SubsystemProfile {
        let namespaces = std::mem::take(&mut config.namespaces);
        let namespaces = namespaces.into_iter().map(|namespace| (namespace.nsid, namespace)).collect();
        SubsystemProfile { kind: Kind::Nvm, config, namespaces }
    }

    /// The discovery subsystem beside it: same texts and limits, open to all, without namespaces.
    pub(super) fn discovery(nvm: &SubsystemConfig) -> SubsystemProfile {
        let config = SubsystemConfig {
            nqn: Nqn::discovery(),
            namespaces: Vec::new(),
            allowed_hosts: None,
            ..nvm.clone()
        };
        SubsystemProfile { kind: Kind::Discovery, config, namespaces: BTreeMap::new() }
    }

    /// Whether a host may connect.
    pub(super) fn is_allowed(&self, host: &Host) -> bool {
        let is_listed = |hosts: &Vec<Nqn>| host.nqn.is_some_and(|nqn| hosts.contains(&nqn));
        self.config.allowed_hosts.as_ref().is_none_or(is_listed)
    }

    /// Whether any namespace has a volatile write cache.
    pub(super) fn has_volatile_cache(&self) -> bool {
        self.namespaces.values().any(|namespace| namespace.volatile_cache)
    }

    /// The kinds of async events that its controllers can report; all are on until the host says otherwise.
    pub(super) fn events_offered(&self) -> AsyncEventConfiguration {
        match self.kind {
            Kind::Nvm => AsyncEventConfiguration(0).with_namespace_attribute(true),
            Kind::Discovery => AsyncEventConfiguration(0).with_discovery_log(true),
        }
    }

    /// Adds a namespace that is not there.
    pub(super) fn add(&mut self, namespace: NamespaceConfig) -> Result<(), ConfigError> {
        namespace.check()?;
        if self.namespaces.contains_key(&namespace.nsid) {
            return Err(ConfigError::NsidTwice(namespace.nsid));
        }
        self.namespaces.insert(namespace.nsid, namespace);
        Ok(())
    }

    /// Removes one that is there.
    pub(super) fn remove(&mut self, nsid: u32) -> Result<(), ConfigError> {
        self.namespaces.remove(&nsid).map(drop).ok_or(ConfigError::NoNamespace(nsid))
    }

    /// Replaces one that is there.
    pub(super) fn change(&mut self, namespace: NamespaceConfig) -> Result<(), ConfigError> {
        namespace.check()?;
        let place =
            self.namespaces.get_mut(&namespace.nsid).ok_or(ConfigError::NoNamespace(namespace.nsid))?;
        *place = namespace;
        Ok(())
    }
}
