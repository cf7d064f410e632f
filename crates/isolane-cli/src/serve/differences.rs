//! Differences of two configurations, as work for the target.

use std::collections::BTreeMap;

use isolane_config::{Config, Subsystem};
use isolane_target::QosConfig;
use isolane_volume::spec::{Source, VolumeSpec};
use isolane_wire::Nqn;

use super::from_file::plan;
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
        let (before, after) = (plan(old_config, old), plan(new_config, new));
        if before.allowed_hosts != after.allowed_hosts {
            self.hosts.push((nqn, after.allowed_hosts.clone()));
        }
        if before.ports != after.ports {
            self.ports.push((nqn, after.ports.clone()));
        }
        let (old_volumes, new_volumes) =
            (BTreeMap::from_iter(before.volumes), BTreeMap::from_iter(after.volumes));
        let gone = old_volumes.keys().filter(|nsid| !new_volumes.contains_key(nsid));
        self.namespaces.extend(gone.map(|nsid| (nqn, *nsid, Difference::Removed)));
        let (old_masks, new_masks) = (BTreeMap::from_iter(before.masks), BTreeMap::from_iter(after.masks));
        for (nsid, spec) in new_volumes {
            let of_volume = match old_volumes.get(&nsid) {
                None => Some(Difference::Added(spec)),
                Some(old) => difference(old, &spec, opened(&nqn, nsid)),
            };
            let (mask, qos) = (new_masks.get(&nsid), after.qos.get(&nsid));
            let of_mask = (old_masks.get(&nsid) != mask).then(|| Difference::Masked(mask.cloned()));
            let of_qos = (before.qos.get(&nsid) != qos).then(|| Difference::Limited(qos.copied()));
            let all = [of_volume, of_mask, of_qos].into_iter().flatten();
            self.namespaces.extend(all.map(|difference| (nqn, nsid, difference)));
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
