//! Differences of two configurations, as work for the target.

use std::collections::BTreeMap;

use isolane_config::{Config, Namespace, Subsystem};
use isolane_target::QosConfig;
use isolane_volume::spec::{Source, VolumeSpec};
use isolane_wire::Nqn;

use super::from_file::{allowed_hosts, plan};
use super::qos;
use super::subsystem::Planned;

/// All differences that a running target can make.
#[derive(Default)]
pub struct Differences {
    /// Subsystems that go.
    pub removed: Vec<Nqn>,
    /// Subsystems that come.
    pub added: Vec<Planned>,
    /// Subsystems with other hosts.
    pub hosts: Vec<(Nqn, Option<Vec<Nqn>>)>,
    /// Subsystems at other ports.
    pub ports: Vec<(Nqn, Option<Vec<String>>)>,
    /// Other namespaces of subsystems that stay.
    pub namespaces: Vec<(Nqn, u32, Difference)>,
}

/// A difference of one namespace.
pub enum Difference {
    /// It goes.
    Removed,
    /// It comes, with this volume.
    Added(VolumeSpec),
    /// It gets another volume.
    Replaced(VolumeSpec),
    /// Its file gets another size in bytes; `None` keeps it.
    Resized(VolumeSpec, Option<u64>),
    /// Writes are rejected, or accepted again.
    Protected(bool),
    /// Other hosts see it; `None`: all of its subsystem.
    Masked(Option<Vec<Nqn>>),
    /// It gets another maximum speed; `None`: it has no limit.
    Limited(Option<QosConfig>),
}

impl Differences {
    /// `opened` returns the specification with which the volume of a namespace was opened.
    pub fn new(old: &Config, new: &Config, opened: impl Fn(&Nqn, u32) -> Option<VolumeSpec>) -> Differences {
        let mut differences = Differences::default();
        let gone = old.subsystems.keys().filter(|nqn| !new.subsystems.contains_key(nqn));
        differences.removed = gone.map(|nqn| nqn.0).collect();
        for (nqn, subsystem) in &new.subsystems {
            match old.subsystems.get(nqn) {
                None => differences.added.push(plan(new, subsystem)),
                Some(before) => differences.compare((old, before), (new, subsystem), &opened),
            }
        }
        differences
    }

    fn compare(
        &mut self,
        (old_config, old): (&Config, &Subsystem),
        (new_config, new): (&Config, &Subsystem),
        opened: &impl Fn(&Nqn, u32) -> Option<VolumeSpec>,
    ) {
        let nqn = new.nqn.0;
        let hosts = allowed_hosts(new_config, new);
        if hosts != allowed_hosts(old_config, old) {
            self.hosts.push((nqn, hosts));
        }
        if new.ports != old.ports {
            self.ports.push((nqn, plan(new_config, new).ports));
        }
        let find = |subsystem: &'_ Subsystem, nsid| -> Option<Namespace> {
            subsystem.namespaces.as_ref()?.get(&nsid).cloned()
        };
        for nsid in old.namespaces.iter().flat_map(|all| all.keys()) {
            if find(new, *nsid).is_none() {
                self.namespaces.push((nqn, nsid.get(), Difference::Removed));
            }
        }
        for (nsid, namespace) in new.namespaces.iter().flatten() {
            let spec = namespace.volume.spec();
            let difference = match find(old, *nsid) {
                None => Some(Difference::Added(spec.clone())),
                Some(before) => difference(before.volume.spec(), spec, opened(&nqn, nsid.get())),
            };
            self.namespaces.extend(difference.map(|difference| (nqn, nsid.get(), difference)));
        }
        let masks = |config, subsystem| plan(config, subsystem).masks.into_iter().collect::<BTreeMap<_, _>>();
        let (before, after) = (masks(old_config, old), masks(new_config, new));
        for nsid in new.namespaces.iter().flat_map(|all| all.keys()).map(|nsid| nsid.get()) {
            if before.get(&nsid) != after.get(&nsid) {
                self.namespaces.push((nqn, nsid, Difference::Masked(after.get(&nsid).cloned())));
            }
        }
        let (before, after) = (qos::plan(old), qos::plan(new));
        for nsid in new.namespaces.iter().flat_map(|all| all.keys()).map(|nsid| nsid.get()) {
            if before.get(&nsid) != after.get(&nsid) {
                self.namespaces.push((nqn, nsid, Difference::Limited(after.get(&nsid).copied())));
            }
        }
    }

    /// Returns the specifications of the volumes that must be opened, in the order of [`Differences::added`] and then
    /// [`Differences::namespaces`].
    pub fn to_open(&self) -> Vec<VolumeSpec> {
        let of_added = self.added.iter().flat_map(|planned| planned.volumes.iter().map(|(_, spec)| spec));
        let others = self.namespaces.iter().filter_map(|(_, _, difference)| match difference {
            Difference::Added(spec) | Difference::Replaced(spec) => Some(spec),
            Difference::Removed
            | Difference::Resized(..)
            | Difference::Protected(_)
            | Difference::Masked(_)
            | Difference::Limited(_) => None,
        });
        of_added.chain(others).cloned().collect()
    }
}

fn difference(old: &VolumeSpec, new: &VolumeSpec, opened: Option<VolumeSpec>) -> Option<Difference> {
    if old == new {
        return None;
    }
    let writable = |spec: &VolumeSpec| VolumeSpec { read_only: false, ..spec.clone() };
    if writable(old) == writable(new) && opened.is_some_and(|opened| !opened.read_only) {
        return Some(Difference::Protected(new.read_only));
    }
    match (&old.source, &new.source) {
        (Source::Path { .. }, Source::Path { size, .. }) if without_size(old) == without_size(new) => {
            Some(Difference::Resized(new.clone(), *size))
        }
        _ => Some(Difference::Replaced(new.clone())),
    }
}

/// Returns the specification of a file with its present size, which can have changed.
pub fn without_size(spec: &VolumeSpec) -> VolumeSpec {
    let mut spec = spec.clone();
    if let Source::Path { size, .. } = &mut spec.source {
        *size = None;
    }
    spec
}
