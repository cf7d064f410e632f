//! Changes of a running target as a whole: subsystems, their hosts, and their namespaces.
//!
//! Invariant: a set of changes happens as a whole, or an error changes nothing.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use isolane_proto::subsystem::{ConfigError, NamespaceConfig, Port, SubsystemConfig, SubsystemId};
use isolane_wire::Nqn;

use crate::changes::{Changed, NamespaceChange, NamespaceControl};
use crate::config::Subsystem;
use crate::error::{ApplyError, NamespaceError};
use crate::namespace::Namespaces;
use crate::shared::Shared;

/// A change of a target.
#[derive(Clone)]
pub enum TargetChange {
    /// Serves another subsystem. Discovery controllers of its hosts get a notice.
    AddSubsystem(Subsystem),
    /// Ends the associations of a subsystem. Commands that have started complete, then its volumes are flushed and
    /// closed. Discovery controllers of its hosts get a notice.
    RemoveSubsystem(Nqn),
    /// Replaces the hosts that can connect to a subsystem. Ends the associations of the others.
    SetHosts {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// NQNs of the hosts; `None`: all.
        hosts: Option<Vec<Nqn>>,
    },
    /// Changes namespaces of a subsystem. Each of its hosts gets one notice.
    Namespaces {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// The changes, in their order.
        changes: Vec<NamespaceChange>,
    },
}

/// Changes a target, from any thread. It does not keep the target running.
#[derive(Clone)]
pub struct TargetControl {
    shared: Weak<Shared>,
}

impl TargetControl {
    pub(crate) fn new(shared: &Arc<Shared>) -> TargetControl {
        TargetControl { shared: Arc::downgrade(shared) }
    }

    /// Checks all changes, calls `commit`, and makes the changes. Removals are first. Waits up to 1 s for all cores.
    ///
    /// # Errors
    /// The first change that is not possible, or the error of `commit`; nothing has changed then. Or the target has ended.
    pub fn apply<E>(
        &self,
        changes: Vec<TargetChange>,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Changed, ApplyError<E>> {
        let shared = self.shared.upgrade().ok_or(NamespaceError::Ended)?;
        shared.apply(changes, commit)
    }

    /// Returns a handle for the namespaces of the subsystem with this name, if there is one.
    pub fn namespaces(&self, nqn: &Nqn) -> Option<NamespaceControl> {
        let shared = self.shared.upgrade()?;
        let subsystem = shared.control(|port| port.find_subsystem(nqn))?;
        Some(NamespaceControl::new(&shared, subsystem))
    }
}

/// Checked changes.
struct Plan {
    /// All namespaces after the changes.
    table: Namespaces,
    /// IDs of added namespaces.
    added: Vec<u32>,
    /// Positions whose volumes are no longer served.
    closing: Vec<usize>,
    removed: Vec<SubsystemId>,
    hosts: Vec<(SubsystemId, Option<Vec<Nqn>>)>,
    /// Namespaces of subsystems that stay.
    namespaces: Vec<(SubsystemId, Vec<NamespaceConfig>)>,
    new: Vec<SubsystemConfig>,
}

impl Shared {
    /// Makes all changes after `commit`, or none.
    pub(crate) fn apply<E>(
        self: &Arc<Self>,
        changes: Vec<TargetChange>,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Changed, ApplyError<E>> {
        let _changes = self.changes.lock();
        let plan = self.plan(changes)?;
        commit().map_err(ApplyError::Commit)?;
        Ok(self.execute(plan)?)
    }

    /// Makes one change.
    pub(crate) fn apply_one(self: &Arc<Self>, change: TargetChange) -> Result<Changed, NamespaceError> {
        self.apply(vec![change], || Ok::<(), Infallible>(())).map_err(|error| match error {
            ApplyError::Change(error) => error,
            ApplyError::Commit(never) => match never {},
        })
    }

    /// Makes all changes of namespaces of a subsystem, or none.
    pub(crate) fn change(
        self: &Arc<Self>,
        subsystem: SubsystemId,
        changes: Vec<NamespaceChange>,
    ) -> Result<Changed, NamespaceError> {
        let _changes = self.changes.lock();
        let mut plan = Plan::new(&self.namespaces());
        plan.change(subsystem, changes)?;
        self.execute(plan)
    }

    fn plan(&self, changes: Vec<TargetChange>) -> Result<Plan, NamespaceError> {
        let mut plan = Plan::new(&self.namespaces());
        let mut new = Vec::new();
        let is_removal = |change: &TargetChange| matches!(change, TargetChange::RemoveSubsystem(_));
        let (removals, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_removal);
        for change in removals.into_iter().chain(others) {
            match change {
                TargetChange::RemoveSubsystem(nqn) => plan.remove(self.find_subsystem(&nqn)?)?,
                TargetChange::SetHosts { subsystem, hosts } => {
                    plan.hosts.push((self.find_subsystem(&subsystem)?, hosts));
                }
                TargetChange::Namespaces { subsystem, changes } => {
                    plan.change(self.find_subsystem(&subsystem)?, changes)?;
                }
                TargetChange::AddSubsystem(subsystem) => new.push(subsystem),
            }
        }
        self.plan_new(&mut plan, &new)?;
        Ok(plan)
    }

    fn plan_new(&self, plan: &mut Plan, new: &[Subsystem]) -> Result<(), NamespaceError> {
        let config = |one: &Subsystem| one.to_config(&self.subsystem_template, Vec::new());
        let mut configs: Vec<SubsystemConfig> = new.iter().map(config).collect();
        let ids = self.control(|port| port.check_subsystems(&configs, &plan.removed))?;
        for ((id, subsystem), config) in ids.into_iter().zip(new).zip(&mut configs) {
            for (nsid, volume) in &subsystem.volumes {
                plan.table.add((id, *nsid), Arc::clone(volume))?;
            }
            config.namespaces = plan.table.to_configs(id);
            Port::check_namespaces(&config.namespaces)?;
        }
        plan.new = configs;
        Ok(())
    }

    /// No host sees a namespace of another state than its subsystem: what goes leaves the port before the table, and what
    /// comes enters the table first.
    fn execute(self: &Arc<Self>, plan: Plan) -> Result<Changed, NamespaceError> {
        let Plan { table, added, closing, removed, hosts, namespaces, new } = plan;
        self.control(|port| -> Result<(), ConfigError> {
            removed.into_iter().try_for_each(|id| port.remove_subsystem(id))?;
            hosts.into_iter().try_for_each(|(id, hosts)| port.set_allowed_hosts(id, hosts))
        })?;
        self.publish(table);
        self.control(|port| -> Result<(), ConfigError> {
            namespaces.into_iter().try_for_each(|(id, all)| port.set_namespaces(id, all))?;
            new.into_iter().try_for_each(|subsystem| port.add_subsystem(subsystem).map(drop))
        })?;
        Ok(Changed { added, closing: self.close(closing) })
    }

    fn find_subsystem(&self, nqn: &Nqn) -> Result<SubsystemId, NamespaceError> {
        let found = self.control(|port| port.find_subsystem(nqn));
        found.ok_or_else(|| NamespaceError::UnknownSubsystem(Box::new(*nqn)))
    }
}

impl Plan {
    fn new(table: &Namespaces) -> Plan {
        Plan {
            table: table.clone(),
            added: Vec::new(),
            closing: Vec::new(),
            removed: Vec::new(),
            hosts: Vec::new(),
            namespaces: Vec::new(),
            new: Vec::new(),
        }
    }

    fn remove(&mut self, id: SubsystemId) -> Result<(), NamespaceError> {
        for namespace in self.table.to_configs(id) {
            self.closing.extend(self.table.hide(id, namespace.nsid)?.0);
        }
        self.removed.push(id);
        Ok(())
    }

    fn change(&mut self, id: SubsystemId, changes: Vec<NamespaceChange>) -> Result<(), NamespaceError> {
        for change in changes {
            self.table.apply(id, change, &mut self.added, &mut self.closing)?;
        }
        let configs = self.table.to_configs(id);
        Port::check_namespaces(&configs)?;
        self.namespaces.retain(|(other, _)| *other != id);
        self.namespaces.push((id, configs));
        Ok(())
    }
}
