//! Changes of a running target as a whole: subsystems, their hosts, and their namespaces.
//!
//! Invariant: a set of changes happens as a whole, or an error changes nothing.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use isolane_proto::subsystem::{ConfigError, Port, SubsystemConfig, SubsystemId};
use isolane_volume::{OpenError, Volume};
use isolane_wire::Nqn;

use crate::changes::{Changed, NamespaceChange, NamespaceControl};
use crate::config::Subsystem;
use crate::error::{ApplyError, NamespaceError};
use crate::link::Link;
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
    /// Replaces the ports at which hosts reach a subsystem. Connections of hosts that have come by another port close
    /// after their commands, and discovery controllers are notified.
    SetPorts {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// Names of the ports; `None`: all.
        ports: Option<Vec<String>>,
    },
    /// Changes namespaces of a subsystem. Each of its hosts gets one notice.
    Namespaces {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// The changes, in their order.
        changes: Vec<NamespaceChange>,
    },
    /// Changes the size of a namespace: see [`Target::resize_namespace`](crate::Target::resize_namespace).
    Resize {
        /// Name of the subsystem.
        subsystem: Nqn,
        /// The namespace.
        nsid: u32,
        /// Size in bytes; `None`: the present one of the volume.
        bytes: Option<u64>,
        /// It can be smaller than before.
        may_shrink: bool,
    },
}

/// Changes a target, from any thread. It does not keep the target running.
#[derive(Clone)]
pub struct TargetControl {
    pub(crate) link: Link,
}

impl TargetControl {
    /// Checks all changes, calls `commit`, and makes the changes. Removals of subsystems are first. Waits up to 1 s for all
    /// cores.
    ///
    /// # Errors
    /// The first change that is not possible, or the error of `commit`; nothing has changed then. Or the target has ended.
    pub fn apply<E>(
        &self,
        changes: Vec<TargetChange>,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Changed, ApplyError<E>> {
        self.shared()?.apply(changes, commit)
    }

    pub(crate) fn shared(&self) -> Result<Arc<Shared>, NamespaceError> {
        self.link.shared()
    }

    /// Returns the generation counter of the discovery log (GENCTR). A change of a port, of the referrals, or of a
    /// subsystem, its hosts, or its ports increases it by 1.
    ///
    /// # Errors
    /// If the target has ended.
    pub fn discovery_generation(&self) -> Result<u64, NamespaceError> {
        Ok(self.shared()?.control(|port| port.discovery_generation()))
    }

    /// Returns a handle for the namespaces of the subsystem with this name, if there is one.
    pub fn namespaces(&self, nqn: &Nqn) -> Option<NamespaceControl> {
        NamespaceControl::find(&self.link, nqn)
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
    ports: Vec<(SubsystemId, Option<Vec<String>>)>,
    /// Subsystems that stay, with other namespaces.
    changed: BTreeSet<SubsystemId>,
    new: Vec<SubsystemConfig>,
    /// Volumes with another size, and the size before.
    resized: Resized,
}

/// Volumes with another size, and the one before in bytes. It returns on a drop.
#[derive(Default)]
struct Resized(Vec<(Arc<dyn Volume>, u64)>);

impl Drop for Resized {
    fn drop(&mut self) {
        for (volume, before) in self.0.drain(..).rev() {
            if let Err(OpenError { name, reason, remedy, .. }) = volume.resize(Some(before), true) {
                log::error!("{name}: cannot return to {before} bytes: {reason}; {remedy}");
            }
        }
    }
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

    /// Changes the size of the volume of a namespace, and returns it in bytes.
    pub(crate) fn resize(
        self: &Arc<Self>,
        id: (SubsystemId, u32),
        bytes: Option<u64>,
        may_shrink: bool,
    ) -> Result<u64, NamespaceError> {
        let _changes = self.changes.lock();
        let mut plan = Plan::new(&self.namespaces());
        let bytes = plan.resize(id, bytes, may_shrink)?;
        self.execute(plan)?;
        Ok(bytes)
    }

    fn plan(&self, mut changes: Vec<TargetChange>) -> Result<Plan, NamespaceError> {
        let mut plan = Plan::new(&self.namespaces());
        let mut new = Vec::new();
        // Removals free names and identities. Other sizes are last, after everything else was checked.
        changes.sort_by_key(|change| match change {
            TargetChange::RemoveSubsystem(_) => 0,
            TargetChange::Resize { .. } => 2,
            _ => 1,
        });
        let sizes = changes.partition_point(|change| !matches!(change, TargetChange::Resize { .. }));
        let sizes = changes.split_off(sizes);
        for change in changes {
            match change {
                TargetChange::RemoveSubsystem(nqn) => plan.remove(self.find_subsystem(&nqn)?)?,
                TargetChange::SetHosts { subsystem, hosts } => {
                    plan.hosts.push((self.find_subsystem(&subsystem)?, hosts));
                }
                TargetChange::SetPorts { subsystem, ports } => {
                    self.control(|port| port.check_ports(ports.as_deref()))?;
                    plan.ports.push((self.find_subsystem(&subsystem)?, ports));
                }
                TargetChange::Namespaces { subsystem, changes } => {
                    plan.change(self.find_subsystem(&subsystem)?, changes)?;
                }
                TargetChange::AddSubsystem(subsystem) => new.push(subsystem),
                TargetChange::Resize { .. } => {}
            }
        }
        self.plan_new(&mut plan, &new)?;
        for change in sizes {
            if let TargetChange::Resize { subsystem, nsid, bytes, may_shrink } = change {
                plan.resize((self.find_subsystem(&subsystem)?, nsid), bytes, may_shrink)?;
            }
        }
        Ok(plan)
    }

    fn plan_new(&self, plan: &mut Plan, new: &[Subsystem]) -> Result<(), NamespaceError> {
        let config = |one: &Subsystem| one.to_config(&self.subsystem_template, Vec::new());
        let mut configs: Vec<SubsystemConfig> = new.iter().map(config).collect();
        let ids = self.control(|port| port.check_subsystems(&configs, &plan.removed))?;
        for ((id, subsystem), config) in ids.into_iter().zip(new).zip(&mut configs) {
            plan.table.limit(id, &subsystem.qos);
            subsystem.check_offline()?;
            for (nsid, volume) in &subsystem.volumes {
                plan.table.add((id, *nsid), Arc::clone(volume))?;
                plan.table.set_hosts((id, *nsid), subsystem.hosts_of(*nsid))?;
            }
            for volume in &subsystem.offline {
                plan.table.insert_offline(id, volume, subsystem.hosts_of(volume.nsid));
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
        let Plan { table, added, closing, removed, hosts, ports, changed, new, mut resized } = plan;
        resized.0.clear();
        let namespaces: Vec<_> = changed.into_iter().map(|id| (id, table.to_configs(id))).collect();
        self.control(|port| -> Result<(), ConfigError> {
            removed.into_iter().try_for_each(|id| port.remove_subsystem(id))?;
            ports.into_iter().try_for_each(|(id, ports)| port.set_ports(id, ports))?;
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
            ports: Vec::new(),
            changed: BTreeSet::new(),
            new: Vec::new(),
            resized: Resized::default(),
        }
    }

    fn remove(&mut self, id: SubsystemId) -> Result<(), NamespaceError> {
        for nsid in self.table.nsids(id) {
            self.closing.extend(self.table.hide(id, nsid)?.position);
        }
        self.removed.push(id);
        Ok(())
    }

    fn change(&mut self, id: SubsystemId, changes: Vec<NamespaceChange>) -> Result<(), NamespaceError> {
        for change in changes {
            self.table.apply(id, change, &mut self.added, &mut self.closing)?;
        }
        self.changed.insert(id);
        Ok(Port::check_namespaces(&self.table.to_configs(id))?)
    }

    /// Changes the size of the volume of a namespace, and returns it in bytes.
    fn resize(
        &mut self,
        id: (SubsystemId, u32),
        bytes: Option<u64>,
        may_shrink: bool,
    ) -> Result<u64, NamespaceError> {
        let volume = Arc::clone(&self.table.at(self.table.locate(id.0, id.1)?).volume);
        let block_size = u64::from(volume.info().block_size);
        let before = volume.blocks() * block_size;
        let resized = volume.resize(bytes, may_shrink);
        let blocks = resized.map_err(|OpenError { name, reason, remedy, .. }| {
            NamespaceError::Volume(format!("{name}: {reason}; {remedy}"))
        })?;
        self.resized.0.push((volume, before));
        self.table.update(id, |namespace| namespace.geometry.blocks = blocks)?;
        self.changed.insert(id.0);
        Ok(blocks * block_size)
    }
}
