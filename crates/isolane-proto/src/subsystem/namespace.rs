//! The kind, limits, and namespaces of a subsystem, without its associations.
//!
//! Invariant: every namespace has passed [`NamespaceConfig::check`].

use std::collections::BTreeMap;

use isolane_wire::Nqn;
use isolane_wire::feature::AsyncEventConfiguration;

use super::{Host, NamespaceConfig, SubsystemConfig};

/// Kind of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubsystemKind {
    /// Controllers with I/O queues and namespaces.
    Nvm,
    /// Controllers with the discovery log.
    Discovery,
}

/// Kind, limits, and namespaces of a subsystem.
#[derive(Debug)]
pub(super) struct SubsystemProfile {
    pub(super) kind: SubsystemKind,
    pub(super) config: SubsystemConfig,
    pub(super) namespaces: BTreeMap<u32, NamespaceConfig>,
}

impl SubsystemProfile {
    /// The subsystem of this configuration.
    pub(super) fn nvm(mut config: SubsystemConfig) -> SubsystemProfile {
        let namespaces = std::mem::take(&mut config.namespaces);
        let namespaces = namespaces.into_iter().map(|namespace| (namespace.nsid, namespace)).collect();
        SubsystemProfile { kind: SubsystemKind::Nvm, config, namespaces }
    }

    /// The discovery subsystem next to an NVM subsystem: same texts and limits, all hosts allowed, no
    /// namespaces.
    pub(super) fn discovery(nvm: &SubsystemConfig) -> SubsystemProfile {
        let config = SubsystemConfig {
            nqn: Nqn::discovery(),
            namespaces: Vec::new(),
            allowed_hosts: None,
            ports: None,
            cntlids: SubsystemConfig::default().cntlids,
            ..nvm.clone()
        };
        SubsystemProfile { kind: SubsystemKind::Discovery, config, namespaces: BTreeMap::new() }
    }

    /// Whether a host can connect.
    pub(super) fn is_allowed(&self, host: &Host) -> bool {
        is_listed(self.config.allowed_hosts.as_deref(), host)
    }

    /// The namespaces that a host sees, from an ID, ordered by ID.
    pub(super) fn visible_from<'a>(
        &'a self,
        first: u32,
        host: &'a Host,
    ) -> impl Iterator<Item = &'a NamespaceConfig> {
        self.namespaces.range(first..).map(|(_, namespace)| namespace).filter(|it| it.is_visible(host))
    }

    /// The namespace with this ID, if a host sees it.
    pub(super) fn visible(&self, nsid: u32, host: &Host) -> Option<&NamespaceConfig> {
        self.namespaces.get(&nsid).filter(|namespace| namespace.is_visible(host))
    }

    /// Whether any namespace that a host sees has a volatile write cache.
    pub(super) fn has_volatile_cache(&self, host: &Host) -> bool {
        self.visible_from(0, host).any(|namespace| namespace.volatile_cache)
    }

    /// The async events of OAES; all are enabled initially.
    pub(super) fn events_offered(&self) -> AsyncEventConfiguration {
        match self.kind {
            SubsystemKind::Nvm => AsyncEventConfiguration(0).with_namespace_attribute(true),
            SubsystemKind::Discovery => AsyncEventConfiguration(0).with_discovery_log(true),
        }
    }

    /// Maximum number of I/O queues of one association.
    pub(super) fn max_io_queues(&self) -> u16 {
        if self.kind == SubsystemKind::Nvm { self.config.max_io_queues } else { 0 }
    }
}

impl NamespaceConfig {
    /// Whether a host of the subsystem sees the namespace.
    pub fn is_visible(&self, host: &Host) -> bool {
        is_listed(self.hosts.as_deref(), host)
    }
}

/// Whether a list names a host; `None` names all.
pub fn is_listed(hosts: Option<&[Nqn]>, host: &Host) -> bool {
    hosts.is_none_or(|hosts| host.nqn.is_some_and(|nqn| hosts.contains(&nqn)))
}
