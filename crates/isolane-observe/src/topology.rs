//! Volumes, their members, and groups of members that are expected to be alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{Device, Snapshot, Volume};

/// Longest chain of parents that is followed.
const MAX_DEPTH: usize = 16;
/// Kinds of filters that delay or fail requests on purpose.
const INJECTORS: [&str; 3] = ["delay", "fault", "stall"];

/// Lookup of volumes and devices.
#[derive(Debug)]
pub struct Topology<'a> {
    volumes: BTreeMap<u32, &'a Volume>,
    members: BTreeMap<u32, Vec<u32>>,
    devices: BTreeMap<&'a str, &'a Device>,
    /// Names of several volumes.
    repeated: BTreeSet<&'a str>,
}

/// A device as a user compares it, with all volumes on it. A filter counts as the volume beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of its volume, or of the disk of several volumes.
    pub name: String,
    /// Devices with the same text are compared with each other.
    pub group: String,
    /// Volumes of the device ([`Volume::id`]).
    pub volumes: Vec<u32>,
    /// Stripe or mirror that it is a member of.
    pub above: Option<u32>,
    /// Its disk.
    pub disk: Option<String>,
    /// Reason to leave it out of comparisons: `copying 40 %`.
    pub busy: Option<String>,
}

/// Members that are expected to be alike.
#[derive(Debug)]
pub(super) struct Group {
    pub members: Vec<Member>,
    /// Members of one stripe or mirror.
    pub parent: Option<u32>,
}

/// A volume, or all volumes on one disk.
#[derive(Debug)]
pub(super) struct Member {
    pub name: String,
    pub volumes: Vec<u32>,
    /// Reason for leaving it out: `copying 40 %`.
    pub busy: Option<String>,
}

impl<'a> Topology<'a> {
    /// Returns the lookup of a snapshot.
    pub fn new(snapshot: &'a Snapshot) -> Topology<'a> {
        let volumes: BTreeMap<u32, &Volume> = snapshot.volumes.iter().map(|at| (at.id, at)).collect();
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let (mut names, mut repeated) = (BTreeSet::new(), BTreeSet::new());
        for (id, volume) in &volumes {
            if let Some(parent) = volume.parent.filter(|parent| parent != id && volumes.contains_key(parent))
            {
                members.entry(parent).or_default().push(*id);
            } else if !names.insert(volume.name.as_str()) {
                repeated.insert(volume.name.as_str());
            }
        }
        let devices = snapshot.devices.iter().map(|at| (at.name.as_str(), at)).collect();
        Topology { volumes, members, devices, repeated }
    }

    pub(super) fn is_top(&self, id: u32) -> bool {
        self.volumes.get(&id).is_none_or(|volume| {
            volume.parent.is_none_or(|parent| parent == id || !self.volumes.contains_key(&parent))
        })
    }

    /// Returns the volume that a member belongs to.
    pub(super) fn top_of(&self, id: u32) -> u32 {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            if self.is_top(at) {
                break;
            }
            at = self.volumes[&at].parent.unwrap_or(at);
        }
        at
    }

    /// Returns the volume and its only member, and so on inward.
    pub(super) fn chain(&self, id: u32) -> Vec<u32> {
        let next = |at: &u32| match self.members.get(at).map(Vec::as_slice) {
            Some([only]) => Some(*only),
            _ => None,
        };
        std::iter::successors(Some(id), next).take(MAX_DEPTH).collect()
    }

    /// Returns the name of a volume for people.
    pub(super) fn name(&self, id: u32) -> String {
        let Some(volume) = self.volumes.get(&id) else { return format!("volume {id}") };
        match volume.nsid {
            Some(nsid) if self.repeated.contains(volume.name.as_str()) || volume.name.is_empty() => {
                format!("{} (namespace {nsid})", volume.name)
            }
            _ if volume.name.is_empty() => format!("volume {id}"),
            _ => volume.name.clone(),
        }
    }

    /// Returns the application that uses a volume through an engine.
    pub(super) fn application(&self, id: u32) -> Option<&'a str> {
        self.volumes.get(&id)?.application.as_deref()
    }

    /// Returns the volumes of an application.
    pub(super) fn volumes_of(&self, application: &str) -> impl Iterator<Item = u32> {
        let volumes = self.volumes.values();
        volumes.filter(move |at| at.application.as_deref() == Some(application)).map(|at| at.id)
    }

    /// Returns the filters around a volume that delay or fail its requests on purpose, as in a specification.
    pub(super) fn injected(&self, id: u32) -> Option<String> {
        let chain = self.chain(id);
        let filters = chain.iter().filter_map(|at| self.volumes.get(at));
        let filters = filters.filter(|volume| INJECTORS.contains(&volume.kind.as_str()));
        let texts: Vec<String> = filters
            .map(|volume| match &volume.parameters {
                Some(parameters) => format!("{}:{parameters}", volume.kind),
                None => volume.kind.clone(),
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join(" "))
    }

    /// Returns the disk beneath a volume.
    pub(super) fn device(&self, id: u32) -> Option<&'a Device> {
        self.disk_name(id).and_then(|name| self.devices.get(name).copied())
    }

    fn disk_name(&self, id: u32) -> Option<&'a str> {
        let chain = self.chain(id);
        chain.iter().rev().find_map(|at| self.volumes.get(at)?.device.as_deref())
    }

    /// Returns the names of the disk beneath a volume, and of all disks beneath that one.
    pub(super) fn disks(&self, id: u32) -> BTreeSet<String> {
        let Some(device) = self.device(id) else { return BTreeSet::new() };
        [device.name.clone()].into_iter().chain(device.beneath.iter().cloned()).collect()
    }

    /// Returns the file or device of a volume.
    pub(super) fn path(&self, id: u32) -> Option<String> {
        let chain = self.chain(id);
        chain.iter().rev().find_map(|at| self.volumes.get(at)?.path.clone())
    }

    /// Returns the members with work in the background, and that work.
    pub(super) fn background(&self) -> Vec<(u32, String)> {
        let busy = self.volumes.values().filter_map(|at| Some((at.id, self.busy(at.id)?)));
        busy.take(8).collect()
    }

    /// Returns the work in the background on a volume or on its disk.
    fn busy(&self, id: u32) -> Option<String> {
        let own = self.chain(id).iter().find_map(|at| self.volumes.get(at)?.background.clone());
        own.or_else(|| {
            let resync = self.device(id)?.resync.as_str();
            (!resync.is_empty() && resync != "idle").then(|| resync.to_owned())
        })
    }

    /// Returns the devices, in the order of their volumes. Volumes on one disk are one device.
    pub fn devices(&self) -> Vec<Peer> {
        let mut found: Vec<Peer> = Vec::new();
        let mut by_disk: BTreeMap<&str, usize> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let tops = self.volumes.keys().filter(|id| self.is_top(**id));
        let mut pending: Vec<(u32, Option<u32>)> = tops.rev().map(|id| (*id, None)).collect();
        while let Some((id, above)) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            let innermost = self.chain(id).pop().unwrap_or(id);
            if let Some(members) = self.members.get(&innermost).filter(|members| members.len() > 1) {
                pending.extend(members.iter().rev().map(|member| (*member, Some(id))));
                continue;
            }
            let disk = self.disk_name(id);
            if let Some((disk, at)) = disk.and_then(|disk| Some((disk, *by_disk.get(disk)?))) {
                let device = &mut found[at];
                disk.clone_into(&mut device.name);
                device.volumes.push(id);
                device.busy = device.busy.take().or_else(|| self.busy(id));
                continue;
            }
            disk.into_iter().for_each(|disk| _ = by_disk.insert(disk, found.len()));
            found.push(Peer {
                name: self.volumes[&id].name.clone(),
                group: self.group_name(id),
                volumes: vec![id],
                above,
                disk: disk.map(str::to_owned),
                busy: self.busy(id),
            });
        }
        found
    }

    /// Returns all groups with two or more members.
    pub(super) fn groups(&self, tops: &BTreeSet<u32>) -> Vec<Group> {
        let mut groups = Vec::new();
        for (parent, members) in self.members.iter().filter(|(_, members)| members.len() > 1) {
            groups.push(self.group(members, Some(*parent)));
        }
        let mut named: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for id in tops {
            named.entry(self.group_name(*id)).or_default().push(*id);
        }
        groups.extend(named.values().map(|volumes| self.group(volumes, None)));
        groups.retain(|group| group.members.len() > 1);
        groups
    }

    /// Returns the name that the peers of a volume share: the stripe or mirror of a member, else its group, the model of
    /// its disk, or the kind of its data.
    fn group_name(&self, id: u32) -> String {
        let parent = self.volumes.get(&id).and_then(|volume| volume.parent);
        if let Some(parent) =
            parent.filter(|parent| self.members.get(parent).is_some_and(|all| all.len() > 1))
        {
            return format!("members of {parent}");
        }
        let chain = self.chain(id);
        let volumes = || chain.iter().filter_map(|at| self.volumes.get(at));
        if let Some(group) = volumes().find_map(|volume| volume.group.as_ref()) {
            return format!("group {group}");
        }
        if let Some(device) = self.device(id).filter(|device| !device.model.is_empty()) {
            return format!("model {}", device.model);
        }
        format!("kind {}", volumes().next_back().map_or("", |volume| volume.kind.as_str()))
    }

    fn group(&self, volumes: &[u32], parent: Option<u32>) -> Group {
        let mut by_disk: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut members = Vec::new();
        for id in volumes {
            match self.device(*id) {
                Some(device) => by_disk.entry(device.name.clone()).or_default().push(*id),
                None => members.push(self.member(vec![*id], None)),
            }
        }
        members.extend(by_disk.into_iter().map(|(disk, volumes)| self.member(volumes, Some(disk))));
        Group { members, parent }
    }

    fn member(&self, volumes: Vec<u32>, disk: Option<String>) -> Member {
        let name = match (&disk, volumes.as_slice()) {
            (_, [only]) => self.name(*only),
            (disk, several) => {
                let names: Vec<String> = several.iter().take(8).map(|id| self.name(*id)).collect();
                format!("{} ({})", disk.as_deref().unwrap_or("volumes"), names.join(", "))
            }
        };
        let busy = volumes.iter().find_map(|id| self.busy(*id));
        Member { name, volumes, busy }
    }
}

/// Returns `true` for the handler of a queue of the disk: `nvme5q3` of `nvme5n1`.
pub(super) fn is_own(action: &str, devices: &BTreeMap<&str, &Device>) -> bool {
    let controller = |name: &str| {
        let number = name.strip_prefix("nvme")?;
        let digits = number.chars().take_while(char::is_ascii_digit).count();
        Some(name[..4 + digits].to_owned())
    };
    let own = controller(action);
    devices.keys().any(|name| action == *name || own.is_some() && controller(name) == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: u32, parent: Option<u32>, device: &str) -> Volume {
        let device = (!device.is_empty()).then(|| device.to_owned());
        Volume { id, parent, name: format!("v{id}"), device, ..Volume::default() }
    }

    fn shown(volumes: Vec<Volume>) -> Vec<(String, String, Vec<u32>)> {
        let snapshot = Snapshot { volumes, ..Snapshot::default() };
        Topology::new(&snapshot)
            .devices()
            .into_iter()
            .map(|peer| (peer.name, peer.group, peer.volumes))
            .collect()
    }

    #[test]
    fn members_are_peers() {
        let delayed = vec![
            volume(0, None, ""),
            volume(1, Some(0), ""),
            volume(2, Some(1), "sda"),
            volume(3, Some(1), "sdb"),
            volume(4, None, "sdc"),
        ];
        let group = "members of 1".to_owned();
        assert_eq!(
            shown(delayed),
            [
                ("v2".to_owned(), group.clone(), vec![2]),
                ("v3".to_owned(), group, vec![3]),
                ("v4".to_owned(), "kind ".to_owned(), vec![4]),
            ]
        );
    }

    #[test]
    fn filter_is_one_device_with_its_volume() {
        let filtered = vec![volume(0, None, ""), volume(1, Some(0), "sda"), volume(2, None, "sda")];
        assert_eq!(shown(filtered), [("sda".to_owned(), "kind ".to_owned(), vec![0, 2])]);
    }

    #[test]
    fn volumes_in_a_cycle_end() {
        let cycle = vec![volume(1, Some(2), ""), volume(2, Some(1), ""), volume(3, Some(3), "")];
        assert_eq!(shown(cycle), [("v3".to_owned(), "kind ".to_owned(), vec![3])]);
    }

    #[test]
    fn group_is_the_nearest_that_volumes_share() {
        let mut volumes = vec![volume(0, None, "sda"), volume(1, None, "sdb"), volume(2, None, "")];
        volumes.extend([volume(3, None, ""), volume(4, Some(3), ""), volume(5, Some(3), "")]);
        volumes[1].group = Some("fast".to_owned());
        volumes[2].kind = "memory".to_owned();
        volumes[4].group = Some("fast".to_owned());
        volumes[5].background = Some("copying 40 %".to_owned());
        let model = |name: &str| Device { name: name.to_owned(), model: "M".to_owned(), ..Device::default() };
        let snapshot = Snapshot { volumes, devices: vec![model("sda"), model("sdb")], ..Snapshot::default() };
        let devices = Topology::new(&snapshot).devices();
        let groups: Vec<&str> = devices.iter().map(|device| device.group.as_str()).collect();
        assert_eq!(groups, ["model M", "group fast", "kind memory", "members of 3", "members of 3"]);
        let busy: Vec<Option<&str>> = devices.iter().map(|device| device.busy.as_deref()).collect();
        assert_eq!(busy, [None, None, None, None, Some("copying 40 %")]);
    }
}
