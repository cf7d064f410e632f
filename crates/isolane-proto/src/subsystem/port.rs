//! The subsystems behind one set of listeners, and the only door to them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use isolane_wire::opcode::AdminOpcode;
use isolane_wire::{Status, SubmissionEntry};

use super::admin::{self, Command, CommandContext};
use super::associations::Subsystem;
use super::event::Notice;
use super::namespace::SubsystemProfile;
use super::{
    Action, AssociationId, AssociationInfo, ConfigError, ConnectRefusal, Connected, ConnectionInfo,
    ControlEvent, Host, IoTotals, NamespaceConfig, PortConfig, connect,
};
use crate::completion::Completion;

/// The NVM subsystem and the discovery subsystem of a target, with all associations.
#[derive(Debug)]
pub struct Port {
    pub(super) nvm: Subsystem,
    discovery: Subsystem,
    advertise: Vec<SocketAddr>,
    max_associations: usize,
    generation: u64,
    started: Option<Instant>,
    /// A volume could not be flushed.
    is_degraded: bool,
    events: VecDeque<ControlEvent>,
}

impl Port {
    /// A port without associations.
    pub fn new(config: PortConfig) -> Result<Port, ConfigError> {
        config.check()?;
        let PortConfig { subsystem, advertise, max_associations, generation_start } = config;
        Ok(Port {
            discovery: Subsystem::new(SubsystemProfile::discovery(&subsystem)),
            nvm: Subsystem::new(SubsystemProfile::nvm(subsystem)),
            advertise,
            max_associations,
            generation: generation_start,
            started: None,
            is_degraded: false,
            events: VecDeque::new(),
        })
    }

    /// A Fabrics Connect arrived on a connection that has none yet (Fabrics 1.1 §3.3). `data` is empty if the
    /// host described another length than [`data_expected`](super::data_expected).
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
            _ => return Err(connect::unknown_subsystem()),
        };
        subsystem.connect(&connect, from, is_full, now)
    }

    /// The host whose older associations with the NVM subsystem this Connect has to come after: `None` unless
    /// it may become a controller of that subsystem. What such a host has sent on older connections is read
    /// first; see the driver's fence.
    pub fn host_to_drain(&self, entry: &SubmissionEntry, data: &[u8]) -> Option<Host> {
        let connect = connect::parse(entry, data).ok()?;
        let profile = &self.nvm.profile;
        let is_admitted = connect.command.qid == 0
            && connect.subnqn == profile.config.nqn
            && profile.is_allowed(&connect.host);
        is_admitted.then_some(connect.host)
    }

    /// Any command of the admin queue, or a fabrics command of an I/O queue. `data_bytes` is what its SGL
    /// describes in either direction. No command that is executed here takes data from the host, so what it
    /// sends along has been discarded.
    pub fn handle_command(
        &mut self,
        id: AssociationId,
        qid: u16,
        entry: &SubmissionEntry,
        data_bytes: u32,
        now: Instant,
    ) -> Action {
        let wants_totals = entry.opcode == AdminOpcode::GetLogPage.code();
        let totals = if wants_totals { self.nvm.totals() } else { IoTotals::default() };
        let uptime = self.started.map(|started| now.saturating_duration_since(started)).unwrap_or_default();
        let (associations, profile) = if id.discovery {
            (&mut self.discovery.associations, &self.discovery.profile)
        } else {
            (&mut self.nvm.associations, &self.nvm.profile)
        };
        let association = associations.get_mut(&id.cntlid).filter(|found| found.id == id && !found.is_ending);
        let Some(association) = association else {
            return Action::Complete(Completion::failed(Status::ABORTED_SQ_DELETION));
        };
        let served = &self.nvm.profile;
        let site = CommandContext {
            profile,
            served,
            advertise: &self.advertise,
            generation: self.generation,
            totals,
            uptime,
            is_degraded: self.is_degraded,
        };
        let command = Command { qid, entry, data_bytes, now };
        admin::execute(association, &site, &command, &mut self.events)
    }

    /// Takes the completion of an Async Event Request that has been answered, with its CID.
    pub fn poll_async_event(&mut self, id: AssociationId) -> Option<(u16, Completion)> {
        self.subsystem(id).0.association(id)?.events.poll()
    }

    /// A new command bears the CID of a held Async Event Request: its host has given the request up. Returns
    /// the request's completion, which must be sent before that of the command, if the request has been
    /// answered. Otherwise the request is forgotten and never completes.
    pub fn replace_async_event(&mut self, id: AssociationId, cid: u16) -> Option<Completion> {
        self.subsystem(id).0.association(id)?.events.replace(cid)
    }

    /// A connection is gone or has failed. The loss of an admin queue ends its association.
    pub fn handle_disconnected(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, events) = self.subsystem(id);
        subsystem.handle_disconnected(id, qid, events);
    }

    /// No command of a disconnected queue is at a volume any more.
    pub fn handle_drained(&mut self, id: AssociationId, qid: u16) {
        let (subsystem, events) = self.subsystem(id);
        subsystem.handle_drained(id, qid, events);
    }

    /// The I/O of a disconnected queue does not end: a reset completes without it, and its QID is free. The CNTLID
    /// stays taken until [`Port::handle_unstuck`].
    pub fn handle_stuck(&mut self, id: AssociationId, qid: u16) {
        self.subsystem(id).0.handle_stuck(id, qid);
    }

    /// The I/O of a queue that [`Port::handle_stuck`] was called for has ended.
    pub fn handle_unstuck(&mut self, id: AssociationId) {
        let (subsystem, events) = self.subsystem(id);
        subsystem.handle_unstuck(id, events);
    }

    /// The flush that an [`ControlEvent::Shutdown`] asked for has ended; `durable`: without an error. From the first
    /// error on the SMART log warns that reliability is degraded.
    pub fn handle_flushed(&mut self, id: AssociationId, durable: bool) {
        self.is_degraded |= !durable;
        self.subsystem(id).0.handle_flushed(id);
    }

    /// What else is to be done; `None`: nothing more.
    pub fn poll_event(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }

    /// When [`Port::handle_timeout`] is due; `None`: no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.nvm.poll_timeout().into_iter().chain(self.discovery.poll_timeout()).min()
    }

    /// Ends the associations whose host has been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.nvm.handle_timeout(now, &mut self.events);
        self.discovery.handle_timeout(now, &mut self.events);
    }

    /// Adds a namespace, tells every host.
    pub fn add_namespace(&mut self, namespace: NamespaceConfig) -> Result<(), ConfigError> {
        let nsid = namespace.nsid;
        self.nvm.profile.add(namespace)?;
        self.notify_namespace_changed(nsid);
        Ok(())
    }

    /// Takes a namespace away, tells every host. I/O to it must already be refused.
    pub fn remove_namespace(&mut self, nsid: u32) -> Result<(), ConfigError> {
        self.nvm.profile.remove(nsid)?;
        self.notify_namespace_changed(nsid);
        Ok(())
    }

    /// Changes the geometry of a namespace, tells every host.
    pub fn change_namespace(&mut self, namespace: NamespaceConfig) -> Result<(), ConfigError> {
        let nsid = namespace.nsid;
        self.nvm.profile.change(namespace)?;
        self.notify_namespace_changed(nsid);
        Ok(())
    }

    /// Tells discovery hosts of other addresses (Fabrics 1.1 §5.3); the generation rises.
    pub fn set_advertised(&mut self, advertise: Vec<SocketAddr>) {
        self.advertise = advertise;
        self.generation = self.generation.wrapping_add(1);
        self.discovery.raise(Notice::DiscoveryChanged, None, &mut self.events);
    }

    /// Every association that holds a CNTLID.
    pub fn associations(&self) -> Vec<AssociationInfo> {
        let all = self.nvm.associations.values().chain(self.discovery.associations.values());
        all.map(|association| association.info()).collect()
    }

    fn notify_namespace_changed(&mut self, nsid: u32) {
        self.nvm.raise(Notice::NamespaceChanged, Some(nsid), &mut self.events);
    }

    fn subsystem(&mut self, id: AssociationId) -> (&mut Subsystem, &mut VecDeque<ControlEvent>) {
        let subsystem = if id.discovery { &mut self.discovery } else { &mut self.nvm };
        (subsystem, &mut self.events)
    }
}
