//! Namespaces of the data path: volume and geometry by namespace ID.
//!
//! A table is immutable: a change makes another one, which each core takes between two events (`changes.rs`).
//! A command keeps the position of its namespace, which stays with it until no core uses it, also if the
//! namespace is removed or gets another volume.
//!
//! Invariant: a core reads its table without a lock, and a position has one volume as long as a command can
//! have it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use isolane_proto::subsystem::{
    Generation, Host, MAX_NSID, NamespaceConfig, NamespaceGeometry, SubsystemId, is_listed,
};
use isolane_volume::Volume;
use isolane_volume::nested::address_of;
use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use uuid::Uuid;

use crate::config::{OfflineVolume, Subsystem};
use crate::error::NamespaceError;
use crate::fault::Fault;
use crate::masks::{MaskHost, Masks};
use crate::qos::{Limiter, QosConfig};

/// One namespace.
#[derive(Clone)]
pub(crate) struct Namespace {
    pub subsystem: SubsystemId,
    pub nsid: u32,
    /// Its number in snapshots, which no other volume gets.
    pub number: u32,
    /// The number of its first member; the others follow.
    pub first_member: u32,
    /// Hosts that see it, of those of its subsystem; `None`: all of these.
    pub hosts: Option<Vec<Nqn>>,
    pub geometry: NamespaceGeometry,
    /// A flush can make changes of its volume durable.
    pub has_cache: bool,
    pub volume: Arc<dyn Volume>,
    /// Its maximum speed, if it has one.
    pub limiter: Option<Arc<Limiter>>,
    /// Set by an operator.
    pub fault: Option<Fault>,
}

impl Namespace {
    /// Returns the namespace with the numbers of its volume.
    fn new(
        (subsystem, nsid): (SubsystemId, u32),
        volume: Arc<dyn Volume>,
        number: u32,
        first_member: u32,
    ) -> Namespace {
        let geometry = geometry_of(&*volume);
        let has_cache = volume.info().volatile_cache;
        Namespace {
            subsystem,
            nsid,
            number,
            first_member,
            hosts: None,
            geometry,
            has_cache,
            volume,
            limiter: None,
            fault: None,
        }
    }

    /// Returns the description for the control path.
    pub(crate) fn to_config(&self) -> NamespaceConfig {
        let (info, identity) = (self.volume.info(), self.volume.identity());
        NamespaceConfig {
            nsid: self.nsid,
            hosts: self.hosts.clone(),
            geometry: self.geometry,
            uuid: *identity.uuid.as_bytes(),
            nguid: identity.nguid(),
            volatile_cache: info.volatile_cache,
            deallocate: info.deallocate,
            zeroes_after_deallocate: info.zeroes_after_deallocate,
            deallocate_blocks_preferred: 0,
            generation: self.volume.description().generation.map(generation),
        }
    }
}

/// Returns the present geometry of a volume.
fn geometry_of(volume: &dyn Volume) -> NamespaceGeometry {
    let info = volume.info();
    NamespaceGeometry {
        block_shift: info.block_size.trailing_zeros() as u8,
        blocks: volume.blocks(),
        read_only: info.read_only,
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

/// A namespace without a volume.
#[derive(Clone)]
pub(crate) struct OfflineNamespace {
    /// Name of the volume.
    pub volume: String,
    /// Description for hosts; `None` as long as no volume was open, so that hosts do not see the namespace.
    pub config: Option<NamespaceConfig>,
    /// Cause, if an operator has not taken it offline.
    pub reason: Option<String>,
    /// Hosts that see it, of those of its subsystem; `None`: all of these.
    pub hosts: Option<Vec<Nqn>>,
}

/// A namespace that was removed for new commands.
pub(crate) struct Hidden {
    /// Its position, if it has a volume.
    pub position: Option<usize>,
    /// Its description, if hosts have seen it.
    pub config: Option<NamespaceConfig>,
    /// Hosts that see it, of those of its subsystem; `None`: all of these.
    pub hosts: Option<Vec<Nqn>>,
}

/// The namespace IDs of one subsystem.
#[derive(Clone)]
struct Ids {
    /// Position plus one, by namespace ID; 0 for an unused ID. [`MASKED`] is set if not all hosts see the namespace.
    positions: Vec<u16>,
    /// Namespaces without a volume until an operator gives them one.
    offline: BTreeMap<u32, OfflineNamespace>,
    /// Maximum speeds, which stay if the volume changes.
    limiters: BTreeMap<u32, Arc<Limiter>>,
    /// The lowest ID above all that were used since the start.
    next_nsid: u32,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { positions: Vec::new(), offline: BTreeMap::new(), limiters: BTreeMap::new(), next_nsid: 1 }
    }
}

/// All namespaces of all subsystems.
#[derive(Clone)]
pub(crate) struct Namespaces {
    /// By position. A removed namespace keeps its position until no core uses it.
    slots: Vec<Option<Arc<Namespace>>>,
    /// By number of the subsystem.
    ids: Vec<Ids>,
    /// Number of each member in a snapshot, by its address.
    members: HashMap<usize, u32>,
    /// The hosts of masked namespaces.
    masks: Arc<Masks>,
    /// Number of used positions.
    used: usize,
    /// A namespace has a fault.
    has_faults: bool,
    next_number: u32,
}

impl Namespaces {
    /// Returns the first table. The numbers of the members follow those of all namespaces.
    pub(crate) fn new(subsystems: &[Subsystem]) -> Namespaces {
        let list = subsystems.iter().enumerate().flat_map(|(index, subsystem)| {
            let volumes = subsystem.volumes.iter();
            volumes.map(move |(nsid, volume)| ((SubsystemId::at(index), *nsid), Arc::clone(volume)))
        });
        let mut list: Vec<_> = list.collect();
        list.sort_by_key(|(id, _)| *id);
        let mut table = Namespaces {
            slots: Vec::new(),
            ids: Vec::new(),
            members: HashMap::new(),
            masks: Arc::default(),
            used: 0,
            has_faults: false,
            next_number: list.len() as u32,
        };
        for (index, subsystem) in subsystems.iter().enumerate() {
            table.limit(SubsystemId::at(index), &subsystem.qos);
        }
        for (number, (id, volume)) in (0..).zip(list) {
            let mut namespace = Namespace::new(id, volume, number, table.next_number);
            let subsystem = &subsystems[id.0.number() - 1];
            namespace.hosts = subsystem.hosts_of(id.1);
            table.insert(table.slots.len(), namespace);
        }
        for (index, subsystem) in subsystems.iter().enumerate() {
            for volume in &subsystem.offline {
                table.insert_offline(SubsystemId::at(index), volume, subsystem.hosts_of(volume.nsid));
            }
        }
        table.update_masks();
        table
    }

    /// Returns the position of the namespace with this ID.
    #[inline]
    pub(crate) fn find(&self, subsystem: SubsystemId, nsid: u32) -> Option<usize> {
        let entry = *self.ids.get(subsystem.number())?.positions.get(nsid as usize)?;
        position_of(entry)
    }

    /// Returns the same for a new command of a host.
    #[inline]
    pub(crate) fn find_for(
        &self,
        subsystem: SubsystemId,
        nsid: u32,
        host: Option<MaskHost>,
    ) -> Option<usize> {
        let entry = *self.ids.get(subsystem.number())?.positions.get(nsid as usize)?;
        if entry < MASKED { usize::from(entry).checked_sub(1) } else { self.find_masked(entry, host) }
    }

    /// Masked namespaces cost a lookup more.
    #[inline(never)]
    fn find_masked(&self, entry: u16, host: Option<MaskHost>) -> Option<usize> {
        position_of(entry).filter(|position| self.masks.has(*position, host))
    }

    /// Returns the host in the masks of this table; `None` if none names it.
    pub(crate) fn mask_host(&self, host: &Host) -> Option<MaskHost> {
        if self.masks.hosts.is_empty() { None } else { self.masks.hosts.get(&host.nqn?).copied() }
    }

    /// Returns the namespace at a position that a command has.
    #[inline]
    pub(crate) fn at(&self, position: usize) -> &Namespace {
        match &self.slots[position] {
            Some(namespace) => namespace,
            None => unreachable!("a command has a position without a namespace"),
        }
    }

    /// Returns the namespace at a position, if there is one.
    pub(crate) fn get(&self, position: usize) -> Option<&Namespace> {
        self.slots.get(position)?.as_deref()
    }

    /// Returns the namespaces that hosts see, ordered by subsystem and ID, with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Namespace)> {
        self.ids.iter().flat_map(|ids| self.iter_ids(ids))
    }

    /// Returns those of one subsystem.
    pub(crate) fn iter_of(&self, subsystem: SubsystemId) -> impl Iterator<Item = (usize, &Namespace)> {
        self.ids.get(subsystem.number()).into_iter().flat_map(|ids| self.iter_ids(ids))
    }

    fn iter_ids<'a>(&'a self, ids: &'a Ids) -> impl Iterator<Item = (usize, &'a Namespace)> {
        let positions = ids.positions.iter().filter_map(|entry| position_of(*entry));
        positions.map(|position| (position, self.at(position)))
    }

    /// Whether a namespace that a host sees has no volume at present.
    pub(crate) fn is_offline_for(&self, subsystem: SubsystemId, nsid: u32, host: &Host) -> bool {
        let offline = self.ids.get(subsystem.number()).and_then(|ids| ids.offline.get(&nsid));
        offline.is_some_and(|offline| is_listed(offline.hosts.as_deref(), host))
    }

    /// Whether a namespace has no volume at present.
    pub(crate) fn is_offline(&self, subsystem: SubsystemId, nsid: u32) -> bool {
        self.ids.get(subsystem.number()).is_some_and(|ids| ids.offline.contains_key(&nsid))
    }

    /// Returns the namespaces of a subsystem without a volume, by ID.
    pub(crate) fn offline(&self, subsystem: SubsystemId) -> impl Iterator<Item = (u32, &OfflineNamespace)> {
        let ids = self.ids.get(subsystem.number()).into_iter();
        ids.flat_map(|ids| &ids.offline).map(|(nsid, offline)| (*nsid, offline))
    }

    /// Returns the IDs of all namespaces of a subsystem.
    pub(crate) fn nsids(&self, subsystem: SubsystemId) -> Vec<u32> {
        let online = self.iter_of(subsystem).map(|(_, namespace)| namespace.nsid);
        online.chain(self.offline(subsystem).map(|(nsid, _)| nsid)).collect()
    }

    /// Returns the maximum speed of a namespace, which it can have without a volume.
    pub(crate) fn qos(&self, subsystem: SubsystemId, nsid: u32) -> Option<QosConfig> {
        Some(self.ids.get(subsystem.number())?.limiters.get(&nsid)?.config())
    }

    /// Returns the descriptions of all namespaces of a subsystem for the control path.
    pub(crate) fn to_configs(&self, subsystem: SubsystemId) -> Vec<NamespaceConfig> {
        let online = self.iter_of(subsystem).map(|(_, namespace)| namespace.to_config());
        online.chain(self.offline(subsystem).filter_map(|(_, offline)| offline.config.clone())).collect()
    }

    /// Returns the positions with a namespace, including removed ones.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(position, slot)| slot.as_ref().map(|_| position))
    }

    /// Returns the number of namespaces, including removed ones.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns a number above all positions.
    pub(crate) fn end(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of the member at this address.
    pub(crate) fn member(&self, address: usize) -> Option<u32> {
        self.members.get(&address).copied()
    }

    /// Returns the number of volumes that have had a number, with all members.
    pub(crate) fn numbers(&self) -> usize {
        self.next_number as usize
    }
}

/// Changes of a table that no core has yet.
impl Namespaces {
    /// Returns an ID that no namespace has had since the start, if there is one, else a free one.
    pub(crate) fn free_nsid(&self, subsystem: SubsystemId) -> Option<u32> {
        (self.next_nsid(subsystem)..=MAX_NSID)
            .chain(1..=MAX_NSID)
            .find(|nsid| !self.is_used(subsystem, *nsid))
    }

    fn is_used(&self, subsystem: SubsystemId, nsid: u32) -> bool {
        self.find(subsystem, nsid).is_some() || self.is_offline(subsystem, nsid)
    }

    /// Adds a namespace.
    ///
    /// # Errors
    /// If the ID is in use, another namespace has the identity, or too many volumes are being closed.
    pub(crate) fn add(
        &mut self,
        id: (SubsystemId, u32),
        volume: Arc<dyn Volume>,
    ) -> Result<(), NamespaceError> {
        if self.is_used(id.0, id.1) {
            return Err(NamespaceError::Exists(id.1));
        }
        let uuid = volume.identity().uuid;
        let online = self.iter().map(|(_, other)| (other.nsid, other.volume.identity().uuid));
        let offline = self.ids.iter().flat_map(|ids| ids.offline.values());
        let offline = offline.filter_map(|offline| offline.config.as_ref());
        let offline = offline.map(|config| (config.nsid, Uuid::from_bytes(config.uuid)));
        if let Some((nsid, _)) = online.chain(offline).find(|(_, other)| *other == uuid) {
            return Err(NamespaceError::SameIdentity { nsid, volume: volume.name().to_owned() });
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= MAX_POSITIONS {
            return Err(NamespaceError::Closing);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.insert(free, Namespace::new(id, volume, number, number + 1));
        Ok(())
    }

    fn insert(&mut self, position: usize, mut namespace: Namespace) {
        number_members(&namespace.volume, &mut self.next_number, &mut self.members);
        let nsid = namespace.nsid;
        if self.slots.len() <= position {
            self.slots.resize(position + 1, None);
        }
        let ids = self.ids_of(namespace.subsystem);
        if ids.positions.len() <= nsid as usize {
            ids.positions.resize(nsid as usize + 1, 0);
        }
        let mask = if namespace.hosts.is_some() { MASKED } else { 0 };
        ids.positions[nsid as usize] = (position as u16 + 1) | mask;
        ids.next_nsid = ids.next_nsid.max(nsid + 1);
        namespace.limiter = ids.limiters.get(&nsid).cloned();
        self.slots[position] = Some(Arc::new(namespace));
        self.used += 1;
    }

    fn ids_of(&mut self, subsystem: SubsystemId) -> &mut Ids {
        if self.ids.len() <= subsystem.number() {
            self.ids.resize_with(subsystem.number() + 1, Ids::default);
        }
        &mut self.ids[subsystem.number()]
    }

    /// Sets the maximum speeds of namespaces that are added later.
    pub(crate) fn limit(&mut self, subsystem: SubsystemId, qos: &BTreeMap<u32, QosConfig>) {
        let limiters = qos.iter().map(|(nsid, config)| (*nsid, Arc::new(Limiter::new(*config))));
        self.ids_of(subsystem).limiters = limiters.collect();
    }

    /// Sets or ends the maximum speed of a namespace.
    pub(crate) fn set_qos(
        &mut self,
        (subsystem, nsid): (SubsystemId, u32),
        qos: Option<QosConfig>,
    ) -> Result<(), NamespaceError> {
        if !self.is_used(subsystem, nsid) {
            return Err(NamespaceError::Unknown(nsid));
        }
        let limiter = qos.map(|config| Arc::new(Limiter::new(config)));
        let limiters = &mut self.ids_of(subsystem).limiters;
        match &limiter {
            Some(limiter) => _ = limiters.insert(nsid, Arc::clone(limiter)),
            None => _ = limiters.remove(&nsid),
        }
        if let Some(position) = self.find(subsystem, nsid) {
            self.set_limiter(position, limiter);
        }
        Ok(())
    }

    fn set_limiter(&mut self, position: usize, limiter: Option<Arc<Limiter>>) {
        let namespace = self.at(position).clone();
        self.slots[position] = Some(Arc::new(Namespace { limiter, ..namespace }));
    }

    /// Sets or ends a fault.
    pub(crate) fn set_fault(
        &mut self,
        id: (SubsystemId, u32),
        fault: Option<Fault>,
    ) -> Result<(), NamespaceError> {
        self.update(id, |namespace| namespace.fault = fault)
    }

    /// Finds out whether a namespace has a fault. Called after all changes of a table.
    pub(crate) fn update_faults(&mut self) {
        let has_faults = self.iter().any(|(_, namespace)| namespace.fault.is_some());
        self.has_faults = has_faults;
    }

    /// Returns `true` if a namespace has a fault.
    pub(crate) fn has_faults(&self) -> bool {
        self.has_faults
    }

    /// Adds a namespace whose volume could not be opened.
    pub(crate) fn insert_offline(
        &mut self,
        subsystem: SubsystemId,
        volume: &OfflineVolume,
        hosts: Option<Vec<Nqn>>,
    ) {
        let OfflineVolume { nsid, name, reason } = volume.clone();
        let ids = self.ids_of(subsystem);
        ids.next_nsid = ids.next_nsid.max(nsid + 1);
        let offline = OfflineNamespace { volume: name, config: None, reason: Some(reason), hosts };
        ids.offline.insert(nsid, offline);
    }

    /// Removes a namespace for new commands. Those that were held before they started are given back to their hosts.
    pub(crate) fn hide(&mut self, subsystem: SubsystemId, nsid: u32) -> Result<Hidden, NamespaceError> {
        let offline = self.ids.get_mut(subsystem.number()).and_then(|ids| ids.offline.remove(&nsid));
        if let Some(OfflineNamespace { config, hosts, .. }) = offline {
            return Ok(Hidden { position: None, config, hosts });
        }
        let position = self.find(subsystem, nsid).ok_or(NamespaceError::Unknown(nsid))?;
        self.ids[subsystem.number()].positions[nsid as usize] = 0;
        let namespace = self.at(position).clone();
        self.slots[position] = Some(Arc::new(Namespace { limiter: None, fault: None, ..namespace }));
        let config = self.at(position).to_config();
        let hosts = self.at(position).hosts.clone();
        Ok(Hidden { position: Some(position), config: Some(config), hosts })
    }

    /// Takes the volume of a namespace away, and returns its position.
    pub(crate) fn set_offline(&mut self, subsystem: SubsystemId, nsid: u32) -> Result<usize, NamespaceError> {
        if self.is_offline(subsystem, nsid) {
            return Err(NamespaceError::Offline(nsid));
        }
        let position = self.locate(subsystem, nsid)?;
        let Hidden { config, hosts, .. } = self.hide(subsystem, nsid)?;
        let volume = self.at(position).volume.name().to_owned();
        let offline = OfflineNamespace { volume, config, reason: None, hosts };
        self.ids[subsystem.number()].offline.insert(nsid, offline);
        Ok(position)
    }

    /// Returns the lowest ID above all that were used since the start.
    pub(crate) fn next_nsid(&self, subsystem: SubsystemId) -> u32 {
        self.ids.get(subsystem.number()).map_or(1, |ids| ids.next_nsid)
    }

    /// IDs below this one were used.
    pub(crate) fn reserve_nsids(&mut self, subsystem: SubsystemId, next: u32) {
        let ids = self.ids_of(subsystem);
        ids.next_nsid = ids.next_nsid.max(next);
    }

    /// Changes a namespace without a volume, if there is one with this ID.
    pub(crate) fn restore_offline(
        &mut self,
        (subsystem, nsid): (SubsystemId, u32),
        change: impl FnOnce(&mut OfflineNamespace),
    ) {
        self.ids_of(subsystem).offline.get_mut(&nsid).map(change);
    }

    /// Returns the position of a namespace that must have a volume.
    pub(crate) fn locate(&self, subsystem: SubsystemId, nsid: u32) -> Result<usize, NamespaceError> {
        let is_offline = self.is_offline(subsystem, nsid);
        let missing = if is_offline { NamespaceError::Offline } else { NamespaceError::Unknown };
        self.find(subsystem, nsid).ok_or(missing(nsid))
    }

    /// Replaces the properties of a namespace that keeps its volume.
    pub(crate) fn update(
        &mut self,
        (subsystem, nsid): (SubsystemId, u32),
        change: impl FnOnce(&mut Namespace),
    ) -> Result<(), NamespaceError> {
        let position = self.locate(subsystem, nsid)?;
        let mut namespace = self.at(position).clone();
        change(&mut namespace);
        self.slots[position] = Some(Arc::new(namespace));
        Ok(())
    }

    /// Replaces the hosts that see a namespace; `None`: all of its subsystem.
    pub(crate) fn set_hosts(
        &mut self,
        (subsystem, nsid): (SubsystemId, u32),
        hosts: Option<Vec<Nqn>>,
    ) -> Result<(), NamespaceError> {
        let offline = self.ids.get_mut(subsystem.number()).and_then(|ids| ids.offline.get_mut(&nsid));
        if let Some(offline) = offline {
            offline.config.iter_mut().for_each(|config| config.hosts.clone_from(&hosts));
            offline.hosts = hosts;
            return Ok(());
        }
        let mask = if hosts.is_some() { MASKED } else { 0 };
        self.update((subsystem, nsid), |namespace| namespace.hosts = hosts)?;
        let entry = &mut self.ids[subsystem.number()].positions[nsid as usize];
        *entry = (*entry & !MASKED) | mask;
        Ok(())
    }

    /// Makes the masks those of the namespaces. Called after all changes of a table.
    pub(crate) fn update_masks(&mut self) {
        let masked = self.iter().filter_map(|(position, it)| Some((position, it.hosts.as_deref()?)));
        let masks = Masks::new(masked);
        if *self.masks != masks {
            self.masks = Arc::new(masks);
        }
    }

    /// Removes a namespace that no core uses.
    pub(crate) fn free(&mut self, position: usize) {
        if let Some(namespace) = self.slots[position].take() {
            self.used -= 1;
            for_each_member(&namespace.volume, &mut |member| {
                self.members.remove(&address_of(member));
            });
        }
    }
}

/// Numbers the members of a volume, each followed by its own members.
fn number_members(volume: &Arc<dyn Volume>, next: &mut u32, members: &mut HashMap<usize, u32>) {
    for_each_member(volume, &mut |member| {
        members.insert(address_of(member), *next);
        *next += 1;
    });
}

fn for_each_member(volume: &Arc<dyn Volume>, f: &mut impl FnMut(&Arc<dyn Volume>)) {
    for member in volume.members() {
        f(&member);
        for_each_member(&member, f);
    }
}

fn position_of(entry: u16) -> Option<usize> {
    usize::from(entry & !MASKED).checked_sub(1)
}

/// Bit of an entry above all positions.
const MASKED: u16 = 1 << 15;
const _: () = assert!(MAX_POSITIONS < MASKED as usize);
/// Maximum number of namespaces of all subsystems, with those whose volumes are being closed.
pub(crate) const MAX_POSITIONS: usize = 16 * MAX_NSID as usize;
