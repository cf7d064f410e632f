//! Namespaces of the data path: volume and initial geometry by namespace ID.
//!
//! Invariant: immutable while the target runs, so every core reads it without a lock.

use std::collections::HashMap;
use std::sync::Arc;

use isolane_proto::subsystem::{Generation, NamespaceConfig, NamespaceGeometry};
use isolane_volume::nested::address_of;
use isolane_volume::{Volume, VolumeTree};
use isolane_wire::log::RestartLoss;

/// One namespace.
pub(crate) struct Namespace {
    pub nsid: u32,
    /// As its volume opened; each core keeps the present one.
    pub geometry: NamespaceGeometry,
    pub volume: Arc<dyn Volume>,
}

impl Namespace {
    pub(crate) fn new(nsid: u32, volume: Arc<dyn Volume>) -> Namespace {
        let geometry = volume.info();
        let geometry = NamespaceGeometry {
            block_shift: geometry.block_size.trailing_zeros() as u8,
            blocks: geometry.blocks,
            read_only: geometry.read_only,
        };
        Namespace { nsid, geometry, volume }
    }

    /// Returns the description for the control path.
    pub(crate) fn to_config(&self) -> NamespaceConfig {
        let (geometry, identity) = (self.volume.info(), self.volume.identity());
        NamespaceConfig {
            nsid: self.nsid,
            geometry: self.geometry,
            uuid: *identity.uuid.as_bytes(),
            nguid: identity.nguid(),
            volatile_cache: geometry.volatile_cache,
            deallocate: geometry.deallocate,
            zeroes_after_deallocate: geometry.zeroes_after_deallocate,
            deallocate_blocks_preferred: 0,
            generation: self.volume.description().generation.map(generation),
        }
    }
}

fn generation(generation: isolane_volume::Generation) -> Generation {
    let loses = match generation.loses {
        isolane_volume::RestartLoss::Nothing => RestartLoss::Nothing,
        isolane_volume::RestartLoss::Cache => RestartLoss::Cache,
        isolane_volume::RestartLoss::Content => RestartLoss::Content,
    };
    Generation { id: *generation.id.as_bytes(), loses }
}

/// All namespaces, ordered by ID.
pub(crate) struct Namespaces {
    list: Vec<Namespace>,
    /// Position in `list` plus one, by namespace ID; 0 for an unused ID.
    positions: Vec<u16>,
    /// Number of each member in a snapshot, by its address. The numbers follow those of the namespaces.
    members: HashMap<usize, u32>,
}

impl Namespaces {
    pub(crate) fn new(mut list: Vec<Namespace>) -> Namespaces {
        list.sort_by_key(|namespace| namespace.nsid);
        let highest = list.last().map_or(0, |namespace| namespace.nsid as usize);
        let mut positions = vec![0; highest + 1];
        for (position, namespace) in list.iter().enumerate() {
            positions[namespace.nsid as usize] = position as u16 + 1;
        }
        let (mut members, mut next) = (HashMap::new(), list.len() as u32);
        list.iter().for_each(|namespace| number_members(&namespace.volume, &mut next, &mut members));
        Namespaces { list, positions, members }
    }

    /// Returns the position of the namespace with this ID.
    pub(crate) fn find(&self, nsid: u32) -> Option<usize> {
        let position = *self.positions.get(nsid as usize)?;
        usize::from(position).checked_sub(1)
    }

    pub(crate) fn at(&self, position: usize) -> &Namespace {
        &self.list[position]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.list.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of the member at this address.
    pub(crate) fn member(&self, address: usize) -> Option<u32> {
        self.members.get(&address).copied()
    }

    /// Returns the number of volumes, with all members.
    pub(crate) fn volumes(&self) -> usize {
        self.list.iter().map(|namespace| count(&namespace.volume.tree())).sum()
    }
}

/// Numbers the members of a volume, each followed by its own members.
fn number_members(volume: &Arc<dyn Volume>, next: &mut u32, members: &mut HashMap<usize, u32>) {
    for member in volume.members() {
        members.insert(address_of(&member), *next);
        *next += 1;
        number_members(&member, next, members);
    }
}

fn count(tree: &VolumeTree) -> usize {
    1 + tree.members.iter().map(count).sum::<usize>()
}
