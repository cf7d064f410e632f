//! State of the namespaces of a target that another process continues: everything that its configuration does not say.
//!
//! Invariant: hosts see a namespace without a volume as before, so that they keep it, and an ID that was used is not free
//! again.

use std::collections::HashSet;

use isolane_proto::subsystem::{Generation, MAX_NSID, NamespaceConfig, NamespaceGeometry, SubsystemId};
use isolane_proto::target::StateError;
use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use serde::{Deserialize, Serialize};

use crate::config::Subsystem;
use crate::namespace::{Namespace, Namespaces, OfflineNamespace};

/// Namespaces of one subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableState {
    nqn: String,
    next_nsid: u32,
    namespaces: Vec<NamespaceState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamespaceState {
    nsid: u32,
    /// Writes are rejected, although its volume accepts them.
    is_protected: bool,
    /// `None` for a namespace with a volume.
    offline: Option<OfflineState>,
    /// `None`: no host has seen it.
    seen: Option<SeenState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OfflineState {
    volume: String,
    reason: Option<String>,
}

/// Description for hosts, without those that see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenState {
    block_shift: u8,
    blocks: u64,
    read_only: bool,
    uuid: [u8; 16],
    nguid: [u8; 16],
    volatile_cache: bool,
    deallocate: bool,
    zeroes_after_deallocate: bool,
    deallocate_blocks_preferred: u32,
    generation: Option<([u8; 16], u8)>,
}

impl TableState {
    /// Returns the state of a subsystem.
    pub(crate) fn of(table: &Namespaces, subsystem: SubsystemId, nqn: &Nqn) -> TableState {
        let online = table.iter_of(subsystem).map(|(_, namespace)| NamespaceState::of(namespace));
        let offline =
            table.offline(subsystem).map(|(nsid, offline)| NamespaceState::of_offline(nsid, offline));
        TableState {
            nqn: nqn.to_string(),
            next_nsid: table.next_nsid(subsystem),
            namespaces: online.chain(offline).collect(),
        }
    }

    /// # Errors
    /// If no target can have the state.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let mut nsids = HashSet::new();
        let is_valid = |one: &NamespaceState| {
            (1..=MAX_NSID).contains(&one.nsid)
                && one.seen.as_ref().is_none_or(|seen| seen.to_config(one.nsid).is_some())
        };
        let all = self.namespaces.iter();
        if self.next_nsid > MAX_NSID + 1
            || !all.clone().all(is_valid)
            || !all.map(|one| one.nsid).all(|nsid| nsids.insert(nsid))
        {
            return Err(StateError("a namespace"));
        }
        Ok(())
    }

    /// Finds the state of a subsystem.
    pub(crate) fn find<'a>(all: &'a [TableState], nqn: &Nqn) -> Option<&'a TableState> {
        all.iter().find(|one| one.nqn == nqn.as_str())
    }

    /// Completes the first table of a target, in which a subsystem has the volumes of its configuration.
    pub(crate) fn restore(&self, table: &mut Namespaces, id: SubsystemId, subsystem: &Subsystem) {
        table.reserve_nsids(id, self.next_nsid);
        for saved in &self.namespaces {
            let hosts = subsystem.hosts_of(saved.nsid);
            let config = saved.seen.as_ref().and_then(|seen| seen.to_config(saved.nsid));
            table.restore_offline((id, saved.nsid), |offline| {
                offline.config = config.map(|config| NamespaceConfig { hosts, ..config });
                if let Some(OfflineState { volume, reason }) = &saved.offline {
                    offline.volume.clone_from(volume);
                    offline.reason.clone_from(reason);
                }
            });
            if saved.is_protected {
                // It can be gone.
                let _ = table.update((id, saved.nsid), |namespace| namespace.geometry.read_only = true);
            }
        }
    }
}

impl NamespaceState {
    fn of(namespace: &Namespace) -> NamespaceState {
        let is_protected = namespace.geometry.read_only && !namespace.volume.info().read_only;
        let seen = Some(SeenState::from(&namespace.to_config()));
        NamespaceState { nsid: namespace.nsid, is_protected, offline: None, seen }
    }

    fn of_offline(
        nsid: u32,
        OfflineNamespace { volume, config, reason, hosts: _ }: &OfflineNamespace,
    ) -> NamespaceState {
        let offline = Some(OfflineState { volume: volume.clone(), reason: reason.clone() });
        NamespaceState { nsid, is_protected: false, offline, seen: config.as_ref().map(SeenState::from) }
    }
}

impl From<&NamespaceConfig> for SeenState {
    fn from(config: &NamespaceConfig) -> SeenState {
        let NamespaceGeometry { block_shift, blocks, read_only } = config.geometry;
        SeenState {
            block_shift,
            blocks,
            read_only,
            uuid: config.uuid,
            nguid: config.nguid,
            volatile_cache: config.volatile_cache,
            deallocate: config.deallocate,
            zeroes_after_deallocate: config.zeroes_after_deallocate,
            deallocate_blocks_preferred: config.deallocate_blocks_preferred,
            generation: config.generation.map(|Generation { id, loses }| (id, loses.code())),
        }
    }
}

impl SeenState {
    /// Returns the description; `None` if no namespace can have it.
    fn to_config(&self, nsid: u32) -> Option<NamespaceConfig> {
        let SeenState { block_shift, blocks, read_only, .. } = *self;
        let has_size = [9, 12].contains(&block_shift) && (1..=u64::MAX >> block_shift).contains(&blocks);
        let loses = |(id, loses): ([u8; 16], u8)| Some(Generation { id, loses: RestartLoss::decode(loses)? });
        let generation = match self.generation {
            Some(generation) => Some(loses(generation)?),
            None => None,
        };
        has_size.then_some(NamespaceConfig {
            nsid,
            hosts: None,
            geometry: NamespaceGeometry { block_shift, blocks, read_only },
            uuid: self.uuid,
            nguid: self.nguid,
            volatile_cache: self.volatile_cache,
            deallocate: self.deallocate,
            zeroes_after_deallocate: self.zeroes_after_deallocate,
            deallocate_blocks_preferred: self.deallocate_blocks_preferred,
            generation,
        })
    }
}
