//! The NVM subsystems and the discovery subsystem behind one set of listeners.
//!
//! Invariant: every call for an association that has ended is ignored or fails its command.

mod freeze;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use isolane_wire::fabrics::ConnectData;
use isolane_wire::opcode::AdminOpcode;
use isolane_wire::{Nqn, SubmissionEntry};

pub use self::freeze::{PortState, ResumedQueue, SubsystemState};
use super::association::Association;
use super::associations::Subsystem;
use super::command::CommandContext;
use super::discovery::{self, Record};
use super::host_page::{HostPage, KeptPage};
use super::listener::Listeners;
use super::namespace::{SubsystemProfile, is_listed};
use super::{
    Action, AssociationId, AssociationInfo, CloseReason, ConfigError, ConnectRefusal, Connected,
    ConnectionInfo, ControlEvent, Host, IoTotals, NamespaceConfig, PortConfig, SubsystemConfig, SubsystemId,
    admin, connect,
};
use crate::completion::Completion;
use crate::failure::Failure;

/// The NVM subsystems and the discovery subsystem of a target, with all associations.
#[derive(Debug)]
pub struct Port {
    /// The NVM subsystems, and removed ones that still have I/O.
    pub(super) nvm: BTreeMap<SubsystemId, Subsystem>,
    /// The NVM subsystems that hosts can connect to.
    pub(super) names: BTreeMap<Nqn, SubsystemId>,
    last_subsystem: SubsystemId,
    pub(super) discovery: Subsystem,
    pub(super) listeners: Listeners,
    advertise: Vec<SocketAddr>,
    pub(super) referrals: Vec<SocketAddr>,
    max_associations: usize,
    pub(super) generation: u64,
    started: Option<Instant>,
    pub(super) events: VecDeque<ControlEvent>,
}

impl Port {
    /// A port without associations.
    pub fn new(config: PortConfig) -> Result<Port, ConfigError> {
        config.check()?;
        let PortConfig { subsystems, listeners, advertise, referrals, max_associations, generation_start } =
            config;
        let texts = subsystems.first().cloned().unwrap_or_default();
        let mut port = Port {
            nvm: BTreeMap::new(),
            names: BTreeMap::new(),
            last_subsystem: SubsystemId::DISCOVERY,
            discovery: Subsystem::new(SubsystemId::DISCOVERY, SubsystemProfile::discovery(&texts)),
            listeners: Listeners::default(),
            advertise,
            referrals,
            max_associations,
            generation: generation_start,
            started: None,
            events: VecDeque::new(),
        };
        for listener in listeners {
            port.listeners.add(listener)?;
        }
        for subsystem in subsystems {
            port.listeners.check_names(subsystem.ports.as_deref())?;
            port.insert_subsystem(subsystem);
        }
        Ok(port)
    }

    /// Returns the generation counter of the discovery log (GENCTR).
    pub fn discovery_generation(&self) -> u64 {
        self.generation
    }

    /// Returns the subsystem with this name.
    pub fn find_subsystem(&self, nqn: &Nqn) -> Option<SubsystemId> {
        self.names.get(nqn).copied()
    }

    /// Adds an NVM subsystem, and notifies the discovery controllers of its hosts.
    ///
    /// # Errors
    /// A value that [`PortConfig::check`] rejects, or a name in use.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<SubsystemId, ConfigError> {
        self.check_subsystems(std::slice::from_ref(&config), &[])?;
        let id = self.insert_subsystem(config);
        let profile = self.nvm.get(&id).map(|subsystem| &subsystem.profile);
        let hosts = profile.and_then(|profile| profile.config.allowed_hosts.clone());
        self.notify_discovery(|host| is_listed(hosts.as_deref(), host));
        Ok(id)
    }

    /// Checks subsystems that are added after others are removed, and returns the identifiers that they get.
    ///
    /// # Errors
    /// Those of [`Port::add_subsystem`].
    pub fn check_subsystems(
        &self,
        added: &[SubsystemConfig],
        removed: &[SubsystemId],
    ) -> Result<Vec<SubsystemId>, ConfigError> {
        let mut used: BTreeSet<&Nqn> =
            self.names.iter().filter(|(_, id)| !removed.contains(id)).map(|(nqn, _)| nqn).collect();
        for config in added {
            config.check()?;
            self.listeners.check_names(config.ports.as_deref())?;
            if !used.insert(&config.nqn) {
                return Err(ConfigError::SameNqn(Box::new(config.nqn)));
            }
        }
        Ok((1..).zip(added).map(|(next, _)| SubsystemId(self.last_subsystem.0 + next)).collect())
    }

    /// Removes an NVM subsystem: ends its associations, and notifies the discovery controllers of its
    /// hosts. Its namespaces stay until its I/O has ended.
    ///
    /// # Errors
    /// The subsystem was removed before.
    pub fn remove_subsystem(&mut self, id: SubsystemId) -> Result<(), ConfigError> {
        let subsystem = self.nvm.get_mut(&id).ok_or(ConfigError::UnknownSubsystem)?;
        let nqn = subsystem.profile.config.nqn;
        if self.names.get(&nqn) != Some(&id) {
            return Err(ConfigError::UnknownSubsystem);
        }
        self.names.remove(&nqn);
        let hosts = subsystem.profile.config.allowed_hosts.replace(Vec::new());
        subsystem.end_refused(CloseReason::SubsystemRemoved, &mut self.events);
        self.remove_subsystem_if_drained(id);
        self.notify_discovery(|host| is_listed(hosts.as_deref(), host));
        Ok(())
    }

    /// Replaces the hosts that can connect to a subsystem; `None`: all. Ends the associations of the
    /// others, and notifies the discovery controllers of hosts that have gained or lost it.
    ///
    /// # Errors
    /// The subsystem was removed.
    pub fn set_allowed_hosts(&mut self, id: SubsystemId, hosts: Option<Vec<Nqn>>) -> Result<(), ConfigError> {
        let subsystem = self.nvm.get_mut(&id).ok_or(ConfigError::UnknownSubsystem)?;
        if self.names.get(&subsystem.profile.config.nqn) != Some(&id) {
            return Err(ConfigError::UnknownSubsystem);
        }
        let before = std::mem::replace(&mut subsystem.profile.config.allowed_hosts, hosts.clone());
        subsystem.end_refused(CloseReason::HostRemoved, &mut self.events);
        self.notify_discovery(|host| is_listed(before.as_deref(), host) != is_listed(hosts.as_deref(), host));
        Ok(())
    }

    fn insert_subsystem(&mut self, config: SubsystemConfig) -> SubsystemId {
        let id = SubsystemId(self.last_subsystem.0 + 1);
        self.last_subsystem = id;
        self.names.insert(config.nqn, id);
        self.nvm.insert(id, Subsystem::new(id, SubsystemProfile::nvm(config)));
        id
    }

    /// Forgets a removed subsystem after its last association.
    fn remove_subsystem_if_drained(&mut self, id: SubsystemId) {
        let is_removed = |it: &Subsystem| self.names.get(&it.profile.config.nqn) != Some(&id);
        if self.nvm.get(&id).is_some_and(|it| is_removed(it) && it.associations.is_empty()) {
            self.nvm.remove(&id);
        }
    }

    /// Records a change of the discovery log of these hosts.
    fn notify_discovery(&mut self, is_affected: impl Fn(&Host) -> bool) {
        self.generation += 1;
        for association in self.discovery.associations.values_mut() {
            if is_affected(&association.host) {
                association.handle_changed_discovery_log(&mut self.events);
            }
        }
    }

    /// Handles Fabrics Connect, the first command of a connection (Fabrics 1.1 §3.3). `data` is
    /// empty if the host described a length other than [`data_expected`](super::data_expected).
    pub fn connect(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        from: ConnectionInfo,
        now: Instant,
    ) -> Result<Connected, ConnectRefusal> {
        self.started.get_or_insert(now);
        let connect = connect::parse(entry, data)?;
        let is_full = self.all().map(|it| it.associations.len()).sum::<usize>() >= self.max_associations;
        let named = self.names.get(&connect.subnqn);
        let subsystem = match connect.subnqn {
            nqn if nqn.is_discovery() => self.listeners.get(from.listener).map(|_| &mut self.discovery),
            _ => {
                let found = named.and_then(|id| self.nvm.get_mut(id));
                found.filter(|it| self.listeners.has(from.listener, &it.profile.config))
            }
        };
        let subsystem = subsystem.ok_or_else(|| connect::bad_data(ConnectData::SUBNQN))?;
        subsystem.connect(&connect, from, is_full, now)
    }

    /// Returns the host whose older associations with this NVM subsystem must drain before this
    /// Connect; `None` if the Connect cannot create a controller of an NVM subsystem. See the
    /// driver's fence.
    pub fn host_to_drain(
        &self,
        entry: &SubmissionEntry,
        data: &[u8],
        from: ConnectionInfo,
    ) -> Option<(SubsystemId, Host)> {
        let connect = connect::parse(entry, data).ok()?;
        let id = self.find_subsystem(&connect.subnqn)?;
        let profile = &self.nvm.get(&id)?.profile;
        let is_there = self.listeners.has(from.listener, &profile.config);
        let is_admitted = connect.command.qid == 0 && is_there && profile.is_allowed(&connect.host);
        is_admitted.then_some((id, connect.host))
    }

    /// Executes a command of the admin queue, or a fabrics command of an I/O queue. `data_bytes` is
    /// the length that its SGL describes, in either direction. A command that
    /// [`takes_data`](super::takes_data) goes to [`Port::handle_data`]; other data is discarded.
    pub fn handle_command(
        &mut self,
        id: AssociationId,
        qid: u16,
        entry: &SubmissionEntry,
        data_bytes: u32,
        now: Instant,
    ) -> Action {
        self.execute(id, qid, entry, (data_bytes, &[]), now)
    }

    /// Executes a command of the admin queue with its data from the host: see
    /// [`takes_data`](super::takes_data).
    pub fn handle_data(
        &mut self,
        id: AssociationId,
        entry: &SubmissionEntry,
        data: &[u8],
        now: Instant,
    ) -> Action {
        self.execute(id, 0, entry, (data.len() as u32, data), now)
    }

    fn execute(
        &mut self,
        id: AssociationId,
        qid: u16,
        entry: &SubmissionEntry,
        (data_bytes, data): (u32, &[u8]),
        now: Instant,
    ) -> Action {
        let reads_log = entry.opcode == AdminOpcode::GetLogPage.code();
        let uptime = self.started.map(|started| now.saturating_duration_since(started)).unwrap_or_default();
        let records = match self.discovery.associations.get(&id.cntlid) {
            Some(association) if reads_log && id.subsystem.is_discovery() => self.records(association),
            _ => Vec::new(),
        };
        let subsystem = match id.subsystem {
            SubsystemId::DISCOVERY => Some(&mut self.discovery),
            id => self.nvm.get_mut(&id),
        };
        let totals = match &subsystem {
            Some(subsystem) if reads_log => subsystem.totals(),
            _ => IoTotals::default(),
        };
        let found = subsystem.and_then(|it| {
            let association = it.associations.get_mut(&id.cntlid);
            let association = association.filter(|found| found.id == id && !found.ending)?;
            Some((association, &it.profile, it.degraded))
        });
        let Some((association, profile, degraded)) = found else {
            return Action::Complete(Failure::QueueDeleted.into());
        };
        admin::execute(&mut CommandContext {
            association,
            events: &mut self.events,
            qid,
            entry,
            data_bytes,
            data,
            now,
            profile,
            records: &records,
            generation: self.generation,
            totals,
            uptime,
            degraded,
        })
    }

    /// Handles the text that [`Action::CollectHostPage`] requires, and executes the command with it.
    pub fn handle_host_page(
        &mut self,
        id: AssociationId,
        entry: &SubmissionEntry,
        data_bytes: u32,
        page: &HostPage,
        now: Instant,
    ) -> Action {
        if let Some(subsystem) = self.subsystem(id).0 {
            subsystem.keep_host_page(id, KeptPage::new(page, now));
        }
        self.handle_command(id, 0, entry, data_bytes, now)
    }

    /// The namespaces of an NVM subsystem, ordered by ID.
    pub fn namespaces(&self, id: SubsystemId) -> impl Iterator<Item = &NamespaceConfig> {
        self.nvm.get(&id).into_iter().flat_map(|subsystem| subsystem.profile.namespaces.values())
    }

    /// Replaces the namespaces of an NVM subsystem. Each controller that sees changes sends one
    /// notice for all of them, and lists them in log page 04h. Writes of a host that connected while
    /// no namespace had a volatile cache stay durable on completion, because it never flushes.
    ///
    /// # Errors
    /// That of [`Port::check_namespaces`], or a removed subsystem. No namespace changes in that case.
    pub fn set_namespaces(
        &mut self,
        id: SubsystemId,
        namespaces: Vec<NamespaceConfig>,
    ) -> Result<(), ConfigError> {
        Port::check_namespaces(&namespaces)?;
        let subsystem = self.nvm.get_mut(&id).ok_or(ConfigError::UnknownSubsystem)?;
        subsystem.set_namespaces(namespaces, &mut self.events);
        Ok(())
    }

    /// Checks a list of namespaces.
    ///
    /// # Errors
    /// A namespace that [`PortConfig::check`] rejects.
    pub fn check_namespaces(namespaces: &[NamespaceConfig]) -> Result<(), ConfigError> {
        NamespaceConfig::check_all(namespaces)
    }

    /// Takes the completion of an Async Event Request, with its CID.
    pub fn poll_async_event(&mut self, id: AssociationId) -> Option<(u16, Completion)> {
        self.subsystem(id).0?.association(id)?.events.poll()
    }

    /// Drops an Async Event Request, because a new command has the same CID: the host has abandoned
    /// the request. Returns the completion of the request if it has one, which must be sent before
    /// the command's.
    pub fn replace_async_event(&mut self, id: AssociationId, cid: u16) -> Option<Completion> {
        self.subsystem(id).0?.association(id)?.events.replace(cid)
    }

    /// Handles the loss of a connection. The loss of an admin queue ends its association.
    pub fn handle_disconnected(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, events) = self.subsystem(id);
        let Some(association) = subsystem.and_then(|it| it.association(id)) else { return };
        association.disconnect_queue(qid);
        if qid == 0 {
            association.end(CloseReason::AdminQueueLost, events);
        }
    }

    /// Handles the end of the last I/O of a disconnected queue.
    pub fn handle_drained(&mut self, id: AssociationId, qid: u16) {
        let (Some(subsystem), events) = self.subsystem(id) else { return };
        let Some(association) = subsystem.association(id) else { return };
        let totals = association.remove_queue(qid);
        subsystem.past += totals;
        subsystem.remove_if_drained(id, events);
        self.remove_subsystem_if_drained(id.subsystem);
    }

    /// Abandons a disconnected queue whose I/O does not end: a reset completes without it, and its
    /// QID is free. The CNTLID stays in use until [`Port::handle_unstuck`].
    pub fn handle_stuck(&mut self, id: AssociationId, qid: u16) {
        let Some(subsystem) = self.subsystem(id).0 else { return };
        let Some(association) = subsystem.association(id) else { return };
        let totals = association.abandon_queue(qid);
        subsystem.past += totals;
    }

    /// Handles the end of the I/O of a queue that was passed to [`Port::handle_stuck`].
    pub fn handle_unstuck(&mut self, id: AssociationId) {
        let (Some(subsystem), events) = self.subsystem(id) else { return };
        let Some(association) = subsystem.association(id) else { return };
        association.forget_abandoned_queue();
        subsystem.remove_if_drained(id, events);
        self.remove_subsystem_if_drained(id.subsystem);
    }

    /// Handles the end of the flush that a [`ControlEvent::Shutdown`] requested; `durable` is
    /// `false` after an error. After the first error, the SMART log reports degraded reliability.
    pub fn handle_flushed(&mut self, id: AssociationId, durable: bool) {
        let Some(subsystem) = self.subsystem(id).0 else { return };
        subsystem.degraded |= !durable;
        if let Some(association) = subsystem.association(id) {
            association.registers.handle_flushed();
        }
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }

    /// Deadline for [`Port::handle_timeout`]; `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.all().filter_map(Subsystem::poll_timeout).min()
    }

    /// Ends the associations whose host has been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        for subsystem in self.nvm.values_mut().chain([&mut self.discovery]) {
            subsystem.handle_timeout(now, &mut self.events);
        }
    }

    /// All associations that hold a CNTLID.
    pub fn associations(&self) -> Vec<AssociationInfo> {
        self.all().flat_map(|it| it.associations.values()).map(Association::info).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Subsystem> {
        self.nvm.values().chain([&self.discovery])
    }

    /// The records of the discovery log for the host of a discovery controller.
    pub(super) fn records(&self, association: &Association) -> Vec<Record> {
        let subsystems = self.names.values().filter_map(|id| self.nvm.get(id));
        let allowed = subsystems.filter(|it| it.profile.is_allowed(&association.host));
        let allowed = allowed.map(|it| &it.profile.config);
        let mut records =
            discovery::records(allowed, &self.listeners, &self.advertise, association.connection);
        records.extend(discovery::referrals(&self.referrals));
        records
    }

    fn subsystem(&mut self, id: AssociationId) -> (Option<&mut Subsystem>, &mut VecDeque<ControlEvent>) {
        let subsystem = match id.subsystem {
            SubsystemId::DISCOVERY => Some(&mut self.discovery),
            id => self.nvm.get_mut(&id),
        };
        (subsystem, &mut self.events)
    }
}
