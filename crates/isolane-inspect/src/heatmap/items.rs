//! Items of a heat map: their names, their peers, and the numbers that belong to each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::histogram::Histogram;
use isolane_observe::snapshot::{Numbers, Snapshot};
use isolane_observe::topology::{Peer, Topology};

use super::{By, MAX_STRIPS};
use crate::text::shown_name;

/// Maximum characters of a name.
const MAX_NAME: usize = 100;

/// An item.
#[derive(Clone, Debug)]
pub struct Item {
    pub name: String,
    /// Items with the same text are compared with each other.
    pub peers: String,
}

/// Items, and the numbers that belong to each.
#[derive(Clone, Debug)]
pub struct Items {
    pub list: Vec<Item>,
    owner: Owner,
}

/// Positions in the list.
#[derive(Clone, Debug)]
enum Owner {
    Volumes(BTreeMap<u32, usize>),
    /// By core; the numbers of members are left out, because the volume above has them also.
    Cores(BTreeMap<u32, usize>, BTreeSet<u32>),
    Hosts(BTreeMap<String, usize>),
}

impl Items {
    /// Calls `add` with the position of an item and its latencies.
    pub fn for_each(&self, numbers: &Numbers, mut add: impl FnMut(usize, &Histogram)) {
        if let Owner::Hosts(hosts) = &self.owner {
            for connection in &numbers.connections {
                let Some(item) = hosts.get(&connection.host) else { continue };
                connection.totals.iter().for_each(|(_, total)| add(*item, total));
            }
            return;
        }
        for series in &numbers.series {
            let item = match &self.owner {
                Owner::Volumes(volumes) => volumes.get(&series.volume),
                Owner::Cores(cores, members) if !members.contains(&series.volume) => cores.get(&series.core),
                _ => None,
            };
            item.into_iter().for_each(|item| add(*item, &series.total));
        }
    }

    /// Keeps the items for which `keep` is above 0.
    fn retain(&mut self, keep: &[bool]) {
        let mut kept = 0;
        let moved: Vec<Option<usize>> = keep
            .iter()
            .map(|keep| {
                kept += usize::from(*keep);
                keep.then(|| kept - 1)
            })
            .collect();
        let mut position = 0;
        self.list.retain(|_| {
            position += 1;
            keep[position - 1]
        });
        match &mut self.owner {
            Owner::Volumes(items) | Owner::Cores(items, _) => rename(items, &moved),
            Owner::Hosts(items) => rename(items, &moved),
        }
    }
}

fn rename<K: Ord>(items: &mut BTreeMap<K, usize>, moved: &[Option<usize>]) {
    items.retain(|_, item| match moved[*item] {
        Some(position) => {
            *item = position;
            true
        }
        None => false,
    });
}

/// Returns the items with operations in the steps, at most [`MAX_STRIPS`], and the number of those left out.
pub fn busiest(snapshot: &Snapshot, by: By) -> (Items, usize) {
    let mut items = match by {
        By::Device => devices(snapshot),
        By::Volume => volumes(snapshot),
        By::Core => cores(snapshot),
        By::Host => hosts(snapshot),
    };
    let mut counts = vec![0u64; items.list.len()];
    for step in &snapshot.steps {
        items.for_each(&step.numbers, |item, total| {
            counts[item] = counts[item].saturating_add(total.count());
        });
    }
    let mut order: Vec<usize> = (0..counts.len()).filter(|item| counts[*item] > 0).collect();
    order.sort_by_key(|item| Reverse(counts[*item]));
    let left_out = order.len().saturating_sub(MAX_STRIPS);
    let mut keep = vec![false; counts.len()];
    order.iter().take(MAX_STRIPS).for_each(|item| keep[*item] = true);
    items.retain(&keep);
    (items, left_out)
}

fn volumes(snapshot: &Snapshot) -> Items {
    let mut items = Items { list: Vec::new(), owner: Owner::Volumes(BTreeMap::new()) };
    for volume in snapshot.volumes.iter().filter(|volume| volume.parent.is_none()) {
        let peers = volume.group.clone().unwrap_or_default();
        items.add_volume(volume.id, Item { name: shown_name(&volume.name, MAX_NAME), peers });
    }
    items.add_unlisted(snapshot);
    items.number_equal_names();
    items
}

impl Items {
    fn add_volume(&mut self, id: u32, item: Item) {
        let Owner::Volumes(volumes) = &mut self.owner else { return };
        volumes.insert(id, self.list.len());
        self.list.push(item);
    }

    fn number_equal_names(&mut self) {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for item in &mut self.list {
            let times = seen.entry(item.name.clone()).or_default();
            *times += 1;
            if *times > 1 {
                item.name += &format!(" ({times})");
            }
        }
    }

    /// Adds volumes that were removed before the snapshot was taken.
    fn add_unlisted(&mut self, snapshot: &Snapshot) {
        let listed: BTreeSet<u32> = snapshot.volumes.iter().map(|volume| volume.id).collect();
        let series = snapshot.steps.iter().flat_map(|step| &step.numbers.series);
        let unlisted: BTreeSet<u32> =
            series.map(|series| series.volume).filter(|volume| !listed.contains(volume)).collect();
        for volume in unlisted {
            self.add_volume(volume, Item { name: format!("volume {volume}"), peers: String::new() });
        }
    }
}

fn devices(snapshot: &Snapshot) -> Items {
    let mut items = Items { list: Vec::new(), owner: Owner::Volumes(BTreeMap::new()) };
    for Peer { name, group, volumes, .. } in Topology::new(snapshot).devices() {
        let Owner::Volumes(owner) = &mut items.owner else { continue };
        owner.extend(volumes.iter().map(|volume| (*volume, items.list.len())));
        items.list.push(Item { name: shown_name(&name, MAX_NAME), peers: group });
    }
    items.add_unlisted(snapshot);
    items.number_equal_names();
    items
}

fn cores(snapshot: &Snapshot) -> Items {
    let mut names = BTreeMap::new();
    for core in &snapshot.numbers.cores {
        let cpu = core.cpu.map_or_else(String::new, |cpu| format!(" (CPU {cpu})"));
        names.insert(core.index, format!("core {}{cpu}", core.index));
    }
    for series in snapshot.steps.iter().flat_map(|step| &step.numbers.series) {
        names.entry(series.core).or_insert_with(|| format!("core {}", series.core));
    }
    let members = snapshot.volumes.iter().filter(|volume| volume.parent.is_some()).map(|volume| volume.id);
    let owner = names.keys().enumerate().map(|(position, core)| (*core, position)).collect();
    let list = names.into_values().map(|name| Item { name, peers: String::new() }).collect();
    Items { list, owner: Owner::Cores(owner, members.collect()) }
}

fn hosts(snapshot: &Snapshot) -> Items {
    let connections = snapshot.steps.iter().flat_map(|step| &step.numbers.connections);
    let hosts: BTreeSet<&str> = connections.map(|connection| connection.host.as_str()).collect();
    let list =
        hosts.iter().map(|host| Item { name: shown_name(host, MAX_NAME), peers: String::new() }).collect();
    let owner = hosts.iter().enumerate().map(|(position, host)| ((*host).to_owned(), position)).collect();
    Items { list, owner: Owner::Hosts(owner) }
}
