//! Devices as a user compares them: members of stripes and mirrors, and volumes without members.

use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::snapshot::{Snapshot, Volume};

/// A device, with all volumes on it.
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
}

/// Returns the devices of a snapshot, in the order of its volumes.
///
/// Peers are the members of one stripe or mirror, and otherwise volumes with the same `group`. Volumes on one disk are
/// one device. A filter counts as the volume beneath it.
pub fn devices(snapshot: &Snapshot) -> Vec<Peer> {
    let mut children: BTreeMap<u32, Vec<&Volume>> = BTreeMap::new();
    for volume in &snapshot.volumes {
        volume.parent.into_iter().for_each(|parent| children.entry(parent).or_default().push(volume));
    }
    let mut found: Vec<Peer> = Vec::new();
    let mut disks: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let tops = snapshot.volumes.iter().filter(|volume| volume.parent.is_none());
    let mut pending: Vec<(&Volume, Option<u32>)> = tops.rev().map(|volume| (volume, None)).collect();
    while let Some((volume, above)) = pending.pop() {
        if !seen.insert(volume.id) {
            continue;
        }
        let (members, disk) = beneath(volume, &children);
        pending.extend(members.iter().rev().map(|member| (*member, Some(volume.id))));
        if !members.is_empty() {
            continue;
        }
        if let Some((disk, device)) = disk.and_then(|disk| Some((disk, *disks.get(disk)?))) {
            disk.clone_into(&mut found[device].name);
            found[device].volumes.push(volume.id);
            continue;
        }
        disk.into_iter().for_each(|disk| _ = disks.insert(disk, found.len()));
        let group = volume.group.clone().or_else(|| above.map(|id| format!("members of {id}")));
        let (name, volumes) = (volume.name.clone(), vec![volume.id]);
        found.push(Peer { name, group: group.unwrap_or_default(), volumes, above });
    }
    found
}

/// Returns the members of the stripe or mirror beneath the filters of a volume, and otherwise the disk.
fn beneath<'a>(
    volume: &'a Volume,
    children: &BTreeMap<u32, Vec<&'a Volume>>,
) -> (Vec<&'a Volume>, Option<&'a str>) {
    let mut at = volume;
    for _ in 0..MAX_FILTERS {
        match children.get(&at.id).map(Vec::as_slice) {
            Some([only]) if at.device.is_none() => at = only,
            Some(members) if members.len() > 1 => return (members.to_vec(), None),
            _ => break,
        }
    }
    (Vec::new(), at.device.as_deref())
}

/// Limit for the number of filters of one volume.
const MAX_FILTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: u32, parent: Option<u32>, device: &str) -> Volume {
        let device = (!device.is_empty()).then(|| device.to_owned());
        Volume { id, parent, name: format!("v{id}"), device, ..Volume::default() }
    }

    fn shown(volumes: Vec<Volume>) -> Vec<(String, String, Vec<u32>)> {
        let peers = devices(&Snapshot { volumes, ..Snapshot::default() });
        peers.into_iter().map(|peer| (peer.name, peer.group, peer.volumes)).collect()
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
        let group = "members of 0".to_owned();
        assert_eq!(
            shown(delayed),
            [
                ("v2".to_owned(), group.clone(), vec![2]),
                ("v3".to_owned(), group, vec![3]),
                ("v4".to_owned(), String::new(), vec![4]),
            ]
        );
    }

    #[test]
    fn filter_is_one_device_with_its_volume() {
        let filtered = vec![volume(0, None, ""), volume(1, Some(0), "sda"), volume(2, None, "sda")];
        assert_eq!(shown(filtered), [("sda".to_owned(), String::new(), vec![0, 2])]);
    }

    #[test]
    fn volumes_in_a_cycle_end() {
        assert!(
            shown(vec![volume(1, Some(2), ""), volume(2, Some(1), ""), volume(3, Some(3), "")]).is_empty()
        );
    }
}
