//! Changes of the namespaces of a running target.
//!
//! A set of changes makes a new table, which all cores take before the port and the hosts know of it. The volume of
//! a removed namespace is closed by a thread of its own once no core uses it.
//!
//! Invariant: a set of changes happens as a whole, or an error changes nothing.

use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use isolane_proto::subsystem::SubsystemId;
use isolane_volume::Volume;
use isolane_wire::Nqn;

use crate::error::NamespaceError;
use crate::fault::Fault;
use crate::link::Link;
use crate::namespace::{Hidden, Namespace, Namespaces};
use crate::orphans::Orphan;
use crate::qos::QosConfig;
use crate::release::Release;
use crate::shared::{Message, Shared};

/// A change of one namespace.
#[derive(Clone)]
pub enum NamespaceChange {
    /// Serves a volume under an ID, or under the next one that no namespace has had.
    Add {
        /// The ID.
        nsid: Option<u32>,
        /// The volume.
        volume: Arc<dyn Volume>,
    },
    /// Ends a namespace. Commands that have started complete; those held by a limit or a fault are given back to their
    /// hosts, and new ones fail.
    Remove {
        /// The ID.
        nsid: u32,
    },
    /// Serves another volume under the ID. Commands that have started complete at the volume before; hosts repeat those
    /// held by a limit or a fault. A host sees another namespace unless both volumes have the same identity.
    Replace {
        /// The ID.
        nsid: u32,
        /// The volume.
        volume: Arc<dyn Volume>,
        /// It can be smaller than the volume before.
        may_shrink: bool,
    },
    /// Takes the volume of a namespace away; a [`NamespaceChange::Replace`] gives it one. Commands that have started
    /// complete; new ones fail with a status that lets the host repeat them.
    Offline {
        /// The ID.
        nsid: u32,
    },
    /// Replaces the hosts that see a namespace. A host that loses it gets a notice, and its later commands fail as for an ID
    /// without a namespace; commands that have started complete.
    Hosts {
        /// The ID.
        nsid: u32,
        /// Names of the hosts, of those of the subsystem; `None`: all of these.
        hosts: Option<Vec<Nqn>>,
    },
    /// Sets or ends the write protection.
    ReadOnly {
        /// The ID.
        nsid: u32,
        /// Writes are rejected.
        read_only: bool,
    },
    /// Sets or ends a fault, for tests by operators. It also ends when the namespace gets another volume, or none.
    Fault {
        /// The ID.
        nsid: u32,
        /// The fault; `None` ends it.
        fault: Option<Fault>,
    },
    /// Sets or ends the maximum speed, which stays until the namespace is removed.
    Qos {
        /// The ID.
        nsid: u32,
        /// The speed; `None` for no limit.
        qos: Option<QosConfig>,
    },
}

impl fmt::Debug for NamespaceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceChange::Add { nsid, volume } => write!(f, "Add({nsid:?}, {volume:?})"),
            NamespaceChange::Remove { nsid } => write!(f, "Remove({nsid})"),
            NamespaceChange::Replace { nsid, volume, .. } => write!(f, "Replace({nsid}, {volume:?})"),
            NamespaceChange::Offline { nsid } => write!(f, "Offline({nsid})"),
            NamespaceChange::Hosts { nsid, hosts } => write!(f, "Hosts({nsid}, {hosts:?})"),
            NamespaceChange::ReadOnly { nsid, read_only } => write!(f, "ReadOnly({nsid}, {read_only})"),
            NamespaceChange::Fault { nsid, fault } => write!(f, "Fault({nsid}, {fault:?})"),
            NamespaceChange::Qos { nsid, qos } => write!(f, "Qos({nsid}, {qos:?})"),
        }
    }
}

/// A set of changes that has happened.
#[derive(Debug)]
pub struct Changed {
    /// IDs of the added namespaces, in the order of the changes.
    pub added: Vec<u32>,
    /// Volumes that are no longer served.
    pub closing: Closing,
}

/// Volumes that are closed once their last commands have ended.
#[derive(Debug)]
pub struct Closing(Receiver<()>);

impl Closing {
    /// Waits until all are closed. Returns `false` after `timeout`; they are closed later then.
    pub fn wait(&self, timeout: Duration) -> bool {
        matches!(self.0.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected))
    }
}

/// Changes the namespaces of a target, from any thread. It does not keep the target running.
#[derive(Clone)]
pub struct NamespaceControl {
    link: Link,
    /// Its ID in the target with this number.
    subsystem: (u64, SubsystemId),
    nqn: Option<Nqn>,
}

/// A namespace, or a volume that is not closed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceStatus {
    /// The ID.
    pub nsid: u32,
    /// The state.
    pub state: NamespaceState,
    /// Name of the volume.
    pub volume: String,
    /// Size in bytes; 0 if no volume was open.
    pub bytes: u64,
    /// Block size in bytes; 0 if no volume was open.
    pub block_size: u32,
    /// Cause of the state of a namespace that has failed, or is offline since the start.
    pub reason: Option<String>,
    /// Writes are rejected.
    pub read_only: bool,
    /// Age of the oldest command that the volume has not completed; checked four times per second.
    pub oldest_command: Option<Duration>,
    /// Changes that were answered or have lost their connection, while their operations are still at the volume; the oldest
    /// first. Later commands on their blocks wait.
    pub orphans: Vec<Orphan>,
    /// Maximum speed; `None` without a limit.
    pub qos: Option<QosConfig>,
    /// Set by an operator.
    pub fault: Option<Fault>,
}

/// State of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// Its volume executes commands.
    Online,
    /// Its volume has not completed a command for [`TargetConfig::stall_after`](crate::TargetConfig::stall_after).
    Stalled,
    /// Its volume has an error that stays until it is opened again.
    Failed,
    /// It has no volume, and hosts repeat their commands.
    Offline,
    /// It was removed, replaced, or taken offline, and its volume is closed once the operations there end.
    Closing,
}

impl NamespaceControl {
    pub(crate) fn new(link: &Link, subsystem: SubsystemId) -> NamespaceControl {
        let linked = link.get();
        let shared = linked.shared().ok();
        let nqn = shared.and_then(|shared| shared.control(|port| port.name_of(subsystem)));
        NamespaceControl { link: link.clone(), subsystem: (linked.number, subsystem), nqn }
    }

    /// Returns the handle of the subsystem with this name, if there is one.
    pub(crate) fn find(link: &Link, nqn: &Nqn) -> Option<NamespaceControl> {
        let linked = link.get();
        let subsystem = linked.shared().ok()?.control(|port| port.find_subsystem(nqn))?;
        Some(NamespaceControl { link: link.clone(), subsystem: (linked.number, subsystem), nqn: Some(*nqn) })
    }

    /// Returns the target, and the ID of the subsystem in it.
    fn target(&self) -> Result<(Arc<Shared>, SubsystemId), NamespaceError> {
        let linked = self.link.get();
        let shared = linked.shared()?;
        let (number, subsystem) = self.subsystem;
        if number == linked.number {
            return Ok((shared, subsystem));
        }
        let find = |nqn: &Nqn| shared.control(|port| port.find_subsystem(nqn));
        let subsystem = self.nqn.as_ref().and_then(find).ok_or(NamespaceError::Ended)?;
        Ok((shared, subsystem))
    }

    /// Makes all changes, or none: see [`Target::change_namespaces`](crate::Target::change_namespaces).
    ///
    /// # Errors
    /// The first change that is not possible, or the target has ended.
    pub fn change(&self, changes: Vec<NamespaceChange>) -> Result<Changed, NamespaceError> {
        let (shared, subsystem) = self.target()?;
        shared.change(subsystem, changes)
    }

    /// Changes the size of a namespace: see [`Target::resize_namespace`](crate::Target::resize_namespace).
    ///
    /// # Errors
    /// If the volume cannot have this size, or the target has ended.
    pub fn resize(&self, nsid: u32, bytes: Option<u64>, may_shrink: bool) -> Result<u64, NamespaceError> {
        let (shared, subsystem) = self.target()?;
        shared.resize((subsystem, nsid), bytes, may_shrink)
    }

    /// Returns an ID that no namespace has had since the start, if there is one, else a free one.
    pub fn free_nsid(&self) -> Option<u32> {
        let (shared, subsystem) = self.target().ok()?;
        shared.namespaces().free_nsid(subsystem)
    }

    /// Returns the namespaces, ordered by ID, then the removed ones; none once the target has ended.
    pub fn list(&self) -> Vec<NamespaceStatus> {
        let Ok((shared, subsystem)) = self.target() else { return Vec::new() };
        let (table, stall_after) = (shared.namespaces(), shared.stall_times.present().stall_after);
        let visible: Vec<usize> = table.iter_of(subsystem).map(|(position, _)| position).collect();
        let is_own = |position: &usize| table.at(*position).subsystem == subsystem;
        let removed = table.occupied().filter(|position| is_own(position) && !visible.contains(position));
        let removed: Vec<usize> = removed.collect();
        let status = |position: usize, is_removed: bool| {
            let Namespace { nsid, geometry, volume, fault, .. } = table.at(position);
            let ages = shared.counters.iter().map(|core| core.oldest_commands[position].age());
            let oldest_command = ages.max().flatten();
            let failure = volume.failure().filter(|_| !is_removed);
            NamespaceStatus {
                nsid: *nsid,
                state: match failure {
                    _ if is_removed => NamespaceState::Closing,
                    Some(_) => NamespaceState::Failed,
                    _ if *fault == Some(Fault::Fail) => NamespaceState::Failed,
                    _ if *fault == Some(Fault::Stall) => NamespaceState::Stalled,
                    _ if oldest_command >= Some(stall_after) => NamespaceState::Stalled,
                    None => NamespaceState::Online,
                },
                volume: volume.name().to_owned(),
                bytes: geometry.blocks << geometry.block_shift,
                block_size: 1 << geometry.block_shift,
                reason: failure.map(|error| error.to_string()),
                read_only: geometry.read_only,
                oldest_command,
                orphans: shared.orphans.list(position),
                qos: table.qos(subsystem, *nsid).filter(|_| !is_removed),
                fault: *fault,
            }
        };
        let mut list: Vec<_> = visible.into_iter().map(|position| status(position, false)).collect();
        list.extend(table.offline(subsystem).map(|(nsid, offline)| {
            let geometry = offline.config.as_ref().map(|config| config.geometry);
            NamespaceStatus {
                nsid,
                state: NamespaceState::Offline,
                volume: offline.volume.clone(),
                bytes: geometry.map_or(0, |geometry| geometry.blocks << geometry.block_shift),
                block_size: geometry.map_or(0, |geometry| 1 << geometry.block_shift),
                reason: offline.reason.clone(),
                read_only: geometry.is_some_and(|geometry| geometry.read_only),
                oldest_command: None,
                orphans: Vec::new(),
                qos: table.qos(subsystem, nsid),
                fault: None,
            }
        }));
        list.sort_by_key(|status| status.nsid);
        list.extend(removed.into_iter().map(|position| status(position, true)));
        list
    }
}

impl Namespaces {
    /// Makes a change. Adds the ID of an added namespace, and the position of one whose volume is no longer served.
    pub(crate) fn apply(
        &mut self,
        subsystem: SubsystemId,
        change: NamespaceChange,
        added: &mut Vec<u32>,
        removed: &mut Vec<usize>,
    ) -> Result<(), NamespaceError> {
        match change {
            NamespaceChange::Add { nsid, volume } => {
                let nsid = nsid.or_else(|| self.free_nsid(subsystem)).ok_or(NamespaceError::Full)?;
                self.add((subsystem, nsid), volume)?;
                added.push(nsid);
            }
            NamespaceChange::Remove { nsid } => {
                self.set_qos((subsystem, nsid), None)?;
                removed.extend(self.hide(subsystem, nsid)?.position);
            }
            NamespaceChange::Fault { nsid, fault } => self.set_fault((subsystem, nsid), fault)?,
            NamespaceChange::Qos { nsid, qos } => self.set_qos((subsystem, nsid), qos)?,
            NamespaceChange::Offline { nsid } => removed.push(self.set_offline(subsystem, nsid)?),
            NamespaceChange::Replace { nsid, volume, may_shrink } => {
                let Hidden { position, config, hosts } = self.hide(subsystem, nsid)?;
                let old = config.map_or(0, |before| before.geometry.blocks << before.geometry.block_shift);
                let new = volume.blocks() * u64::from(volume.info().block_size);
                if new < old && !may_shrink {
                    let volume = volume.name().to_owned();
                    return Err(NamespaceError::Smaller { nsid, volume, bytes: new, before: old });
                }
                self.add((subsystem, nsid), volume)?;
                self.set_hosts((subsystem, nsid), hosts)?;
                removed.extend(position);
            }
            NamespaceChange::Hosts { nsid, hosts } => self.set_hosts((subsystem, nsid), hosts)?,
            NamespaceChange::ReadOnly { nsid, read_only } => {
                let volume = &self.at(self.locate(subsystem, nsid)?).volume;
                if volume.info().read_only && !read_only {
                    return Err(NamespaceError::ReadOnlyVolume { nsid, volume: volume.name().to_owned() });
                }
                self.update((subsystem, nsid), |namespace| namespace.geometry.read_only = read_only)?;
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Gives a table to the cores, and waits until they use it.
    pub(crate) fn publish(&self, next: Namespaces) {
        // The table before is dropped last, so that no core closes a volume.
        let (_before, ends) = self.post_table(next);
        // Disconnected once every core has seen it.
        let _ = ends.recv_timeout(MESSAGE_TIMEOUT);
    }

    /// Gives a table to the cores. Returns the one before, and a receiver that is disconnected once all cores use the new
    /// one.
    pub(crate) fn post_table(&self, mut next: Namespaces) -> (Arc<Namespaces>, Receiver<()>) {
        next.update_masks();
        next.update_faults();
        let next = Arc::new(next);
        let before = std::mem::replace(&mut *self.table.lock(), Arc::clone(&next));
        let (seen, ends) = mpsc::channel();
        self.post_to_all(|| Message::Namespaces { table: Arc::clone(&next), seen: seen.clone() });
        (before, ends)
    }

    /// Frees positions that no core uses, and returns what they had. Its volumes close when it is dropped, which can
    /// block.
    fn free(&self, positions: Vec<usize>) -> Vec<Namespace> {
        let _changes = self.changes.lock();
        let mut next = Namespaces::clone(&self.namespaces());
        let freed = positions.iter().filter_map(|position| next.get(*position).cloned()).collect();
        for position in positions {
            next.free(position);
            self.unflushed.forget(position);
        }
        self.publish(next);
        freed
    }

    /// Closes the volumes at these positions, in a thread.
    pub(crate) fn close(self: &Arc<Self>, positions: Vec<usize>) -> Closing {
        let (closed, ends) = mpsc::channel();
        if positions.is_empty() {
            return Closing(ends);
        }
        let (released, positions_left) = mpsc::channel();
        let releases: Vec<_> = positions
            .iter()
            .map(|&position| Arc::new(Release { position, is_flushed: false, released: released.clone() }))
            .collect();
        drop(released);
        let shared = Arc::downgrade(self);
        let thread = thread::Builder::new().name("isolane-close".to_owned());
        let spawned = thread.spawn(move || {
            free_released(&shared, &positions_left);
            drop(closed);
        });
        if let Err(error) = spawned {
            log::error!("cannot close removed volumes: {error}; they stay open until the target ends");
        }
        for release in &releases {
            self.post_to_all(|| Message::Release(Arc::clone(release)));
        }
        Closing(ends)
    }
}

/// Frees each position that all cores have released.
fn free_released(shared: &Weak<Shared>, released: &Receiver<usize>) {
    while let Ok(first) = released.recv() {
        let Some(shared) = shared.upgrade() else { return };
        let positions: Vec<usize> = std::iter::once(first).chain(released.try_iter()).collect();
        for Namespace { nsid, volume, .. } in shared.free(positions) {
            log::info!("{}: closed; it was namespace {nsid}", volume.name());
        }
    }
}

/// Time for the cores to take a table; each does in its next turn.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
