//! The NVM subsystem and the discovery subsystem behind one set of listeners.
//!
//! Invariant: every call for an association that has ended is ignored or fails its command.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use isolane_wire::SubmissionEntry;
use isolane_wire::fabrics::ConnectData;
use isolane_wire::opcode::AdminOpcode;

use super::associations::Subsystem;
use super::command::CommandContext;
use super::host_page::{HostPage, KeptPage};
use super::namespace::SubsystemProfile;
use super::{
    Action, AssociationId, AssociationInfo, CloseReason, ConfigError, ConnectRefusal, Connected,
    ConnectionInfo, ControlEvent, Host, IoTotals, NamespaceConfig, PortConfig, admin, connect,
};
use crate::completion::Completion;
use crate::failure::Failure;

/// The NVM subsystem and the discovery subsystem of a target, with all associations.
#[derive(Debug)]
pub struct Port {
    pub(super) nvm: Subsystem,
    discovery: Subsystem,
    listeners: Vec<SocketAddr>,
    advertise: Vec<SocketAddr>,
    max_associations: usize,
    generation: u64,
    started: Option<Instant>,
    /// Whether a flush of a volume has failed.
    degraded: bool,
    events: VecDeque<ControlEvent>,
}

impl Port {
    /// A port without associations.
    pub fn new(config: PortConfig) -> Result<Port, ConfigError> {
        config.check()?;
        let PortConfig { subsystem, listeners, advertise, max_associations, generation_start } = config;
        Ok(Port {
            discovery: Subsystem::new(SubsystemProfile::discovery(&subsystem)),
            nvm: Subsystem::new(SubsystemProfile::nvm(subsystem)),
            listeners,
            advertise,
            max_associations,
            generation: generation_start,
            started: None,
            degraded: false,
            events: VecDeque::new(),
        })
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
        let is_full =
            self.nvm.associations.len() + self.discovery.associations.len() >= self.max_associations;
        let subsystem = match connect.subnqn {
            nqn if nqn.is_discovery() => &mut self.discovery,
            nqn if nqn == self.nvm.profile.config.nqn => &mut self.nvm,
            _ => return Err(connect::bad_data(ConnectData::SUBNQN)),
        };
        subsystem.connect(&connect, from, is_full, now)
    }

    /// Returns the host whose older associations with the NVM subsystem must drain before this
    /// Connect; `None` if the Connect cannot create a controller of that subsystem. See the
    /// driver's fence.
    pub fn host_to_drain(&self, entry: &SubmissionEntry, data: &[u8]) -> Option<Host> {
        let connect = connect::parse(entry, data).ok()?;
        let profile = &self.nvm.profile;
        let is_admitted = connect.command.qid == 0
            && connect.subnqn == profile.config.nqn
            && profile.is_allowed(&connect.host);
        is_admitted.then_some(connect.host)
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
        let totals = if reads_log { self.nvm.totals() } else { IoTotals::default() };
        let uptime = self.started.map(|started| now.saturating_duration_since(started)).unwrap_or_default();
        let (associations, profile) = if id.discovery {
            (&mut self.discovery.associations, &self.discovery.profile)
        } else {
            (&mut self.nvm.associations, &self.nvm.profile)
        };
        let association = associations.get_mut(&id.cntlid).filter(|found| found.id == id && !found.ending);
        let Some(association) = association else {
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
            nvm: &self.nvm.profile,
            listeners: &self.listeners,
            advertise: &self.advertise,
            generation: self.generation,
            totals,
            uptime,
            degraded: self.degraded,
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
        self.nvm.keep_host_page(id, KeptPage::new(page, now));
        self.handle_command(id, 0, entry, data_bytes, now)
    }

    /// The namespaces of the NVM subsystem, ordered by ID.
    pub fn namespaces(&self) -> impl Iterator<Item = &NamespaceConfig> {
        self.nvm.profile.namespaces.values()
    }

    /// Replaces the namespaces of the NVM subsystem. Each controller that sees changes sends one
    /// notice for all of them, and lists them in log page 04h. Writes of a host that connected while
    /// no namespace had a volatile cache stay durable on completion, because it never flushes.
    ///
    /// # Errors
    /// That of [`Port::check_namespaces`]. No namespace changes in that case.
    pub fn set_namespaces(&mut self, namespaces: Vec<NamespaceConfig>) -> Result<(), ConfigError> {
        Port::check_namespaces(&namespaces)?;
        self.nvm.set_namespaces(namespaces, &mut self.events);
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
        self.subsystem(id).0.association(id)?.events.poll()
    }

    /// Drops an Async Event Request, because a new command has the same CID: the host has abandoned
    /// the request. Returns the completion of the request if it has one, which must be sent before
    /// the command's.
    pub fn replace_async_event(&mut self, id: AssociationId, cid: u16) -> Option<Completion> {
        self.subsystem(id).0.association(id)?.events.replace(cid)
    }

    /// Handles the loss of a connection. The loss of an admin queue ends its association.
    pub fn handle_disconnected(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, events) = self.subsystem(id);
        let Some(association) = subsystem.association(id) else { return };
        association.disconnect_queue(qid);
        if qid == 0 {
            association.end(CloseReason::AdminQueueLost, events);
        }
    }

    /// Handles the end of the last I/O of a disconnected queue.
    pub fn handle_drained(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, events) = self.subsystem(id);
        let Some(association) = subsystem.association(id) else { return };
        let totals = association.remove_queue(qid);
        subsystem.past += totals;
        subsystem.remove_if_drained(id, events);
    }

    /// Abandons a disconnected queue whose I/O does not end: a reset completes without it, and its
    /// QID is free. The CNTLID stays in use until [`Port::handle_unstuck`].
    pub fn handle_stuck(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, _) = self.subsystem(id);
        let Some(association) = subsystem.association(id) else { return };
        let totals = association.abandon_queue(qid);
        subsystem.past += totals;
    }

    /// Handles the end of the I/O of a queue that was passed to [`Port::handle_stuck`].
    pub fn handle_unstuck(&mut self, id: AssociationId) {
        let (subsystem, events) = self.subsystem(id);
        let Some(association) = subsystem.association(id) else { return };
        association.forget_abandoned_queue();
        subsystem.remove_if_drained(id, events);
    }

    /// Handles the end of the flush that a [`ControlEvent::Shutdown`] requested; `durable` is
    /// `false` after an error. After the first error, the SMART log reports degraded reliability.
    pub fn handle_flushed(&mut self, id: AssociationId, durable: bool) {
        self.degraded |= !durable;
        if let Some(association) = self.subsystem(id).0.association(id) {
            association.registers.handle_flushed();
        }
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }

    /// Deadline for [`Port::handle_timeout`]; `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.nvm.poll_timeout().into_iter().chain(self.discovery.poll_timeout()).min()
    }

    /// Ends the associations whose host has been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.nvm.handle_timeout(now, &mut self.events);
        self.discovery.handle_timeout(now, &mut self.events);
    }

    /// All associations that hold a CNTLID.
    pub fn associations(&self) -> Vec<AssociationInfo> {
        let all = self.nvm.associations.values().chain(self.discovery.associations.values());
        all.map(|association| association.info()).collect()
    }

    fn subsystem(&mut self, id: AssociationId) -> (&mut Subsystem, &mut VecDeque<ControlEvent>) {
        let subsystem = if id.discovery { &mut self.discovery } else { &mut self.nvm };
        (subsystem, &mut self.events)
    }
}
