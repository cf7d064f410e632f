//! Freeze of a target, so that another process continues its connections.
//!
//! Invariant: until [`Frozen::hand_over`], nothing has changed that a host can see, and dropping the [`Frozen`]
//! continues the target.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{AssociationId, ConnectionInfo, Port, SubsystemId};
use isolane_proto::target::StateError;
use isolane_volume::Volume;
use isolane_wire::Nqn;
use parking_lot::MutexGuard;

use super::Target;
use crate::config::TargetConfig;
use crate::error::StartError;
use crate::frozen::{Content, CoreState, FrozenState, LaneState, ResumedLane, Unfinished};
use crate::namespace::Namespaces;
use crate::port::TargetPort;
use crate::shared::{Message, Shared};
use crate::table_state::TableState;

/// A target that serves nothing until another process continues its connections, or until this is dropped.
pub struct Frozen<'a> {
    target: &'a Target,
    state: FrozenState,
    is_handed_over: bool,
    /// Namespaces and subsystems stay as they are.
    _changes: MutexGuard<'a, ()>,
}

/// Reason why a target cannot be frozen. It continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Work has not ended in time.
    #[error("{work} has not ended within {within:?}; try again when it has, see `isolane ctl status`")]
    Unfinished {
        /// The namespace, the volume, and the operation.
        work: String,
        /// The time, in which no command was accepted.
        within: Duration,
    },
    /// A reactor does not react.
    #[error("a reactor has not replied within {within:?}; see `isolane ctl status`")]
    NoReply {
        /// The time.
        within: Duration,
    },
}

impl Target {
    /// Stops accepting and reading, and waits until the commands in flight have ended: for `within` at most. Hosts that
    /// authenticate have an eighth of it to end that; the target that continues closes the connections of the others.
    ///
    /// # Errors
    /// If work has not ended in time. The target then continues as if nothing had happened.
    pub fn freeze(&self, within: Duration) -> Result<Frozen<'_>, Refused> {
        let deadline = Instant::now() + within;
        let Some(changes) = self.shared.changes.try_lock_for(within) else {
            let work = String::from("a change of namespaces");
            return Err(Refused::Unfinished { work, within });
        };
        let thaw = Thaw(&self.shared);
        let (sender, still) = mpsc::channel();
        let patience = within / PATIENCE_PARTS;
        self.shared.post_to_all(|| Message::Freeze { patience, still: sender.clone() });
        drop(sender);
        for _ in 0..self.threads.len() {
            if still.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                break;
            }
        }
        loop {
            match self.take_state(deadline) {
                Ok(content) => {
                    std::mem::forget(thaw);
                    let state = FrozenState { content, sockets: Vec::new() };
                    return Ok(Frozen { target: self, state, is_handed_over: false, _changes: changes });
                }
                Err(None) => return Err(Refused::NoReply { within }),
                Err(Some(unfinished)) if Instant::now() >= deadline => {
                    return Err(Refused::Unfinished { work: unfinished.to_string(), within });
                }
                Err(Some(_)) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    /// Returns the open volumes of all namespaces: the subsystem, the namespace ID, and the volume.
    pub fn volumes(&self) -> Vec<(Nqn, u32, Arc<dyn Volume>)> {
        let table = self.shared.namespaces();
        self.shared.control(|port| {
            let all = table.iter().filter_map(|(_, namespace)| {
                let nqn = port.name_of(namespace.subsystem)?;
                Some((nqn, namespace.nsid, Arc::clone(&namespace.volume)))
            });
            all.collect()
        })
    }

    /// Continues the connections of a frozen target with this configuration. `take` returns the socket with a number of
    /// the state. Connections whose subsystem, port, or permission is gone are closed. A namespace keeps its write
    /// protection, and one that is in [`Subsystem::offline`](crate::Subsystem::offline) its description for hosts.
    ///
    /// # Errors
    /// Those of [`Target::start`], or a state that no target can have.
    pub fn start_from(
        config: TargetConfig,
        state: FrozenState,
        take: impl FnMut(RawFd) -> std::io::Result<OwnedFd>,
    ) -> Result<Target, StartError> {
        Target::start_with(config, Some(Resumed::new(state.content, take)))
    }

    /// Asks each core for its state. `None`: one does not reply.
    fn take_state(&self, deadline: Instant) -> Result<Content, Option<Unfinished>> {
        let (sender, replies) = mpsc::channel();
        self.shared.post_to_all(|| Message::TakeState(sender.clone()));
        drop(sender);
        let wait = deadline.saturating_duration_since(Instant::now()).max(REPLY_TIMEOUT);
        let cores = collect(&replies, self.threads.len(), wait).ok_or(None)?;
        let cores = cores.into_iter().collect::<Result<Vec<CoreState>, _>>()?;
        Ok(content_of(&self.shared, cores)?)
    }
}

/// Returns the state of a target with frozen cores.
pub(crate) fn content_of(shared: &Shared, cores: Vec<CoreState>) -> Result<Content, Unfinished> {
    let port = shared.control(|port| port.freeze(Instant::now()));
    let port = port.ok_or_else(|| Unfinished::new("the end of an association"))?;
    let table = shared.namespaces();
    let subsystems = shared.control(|port| port.subsystem_names());
    let tables = subsystems.iter().map(|(id, nqn)| TableState::of(&table, *id, nqn)).collect();
    let (mut listeners, mut lanes) = (Vec::new(), Vec::new());
    for core in cores {
        listeners.extend(core.listeners);
        lanes.extend(core.lanes);
    }
    let content = Content { port, tables, listeners, lanes };
    // A queue connects or ends between two of the replies.
    content.check().map_err(|_| Unfinished::new("a connection"))?;
    Ok(content)
}

impl Frozen<'_> {
    /// Returns the state, whose sockets are named only.
    pub fn state(&self) -> &FrozenState {
        &self.state
    }

    /// Ends the target without a change of any connection, and returns the state with its sockets. Drop or shut down the
    /// target afterwards.
    ///
    /// # Errors
    /// If a reactor does not react. Its connections are lost then.
    pub fn hand_over(mut self) -> Result<FrozenState, Refused> {
        self.is_handed_over = true;
        let (sender, replies) = mpsc::channel();
        self.target.shared.post_to_all(|| Message::Leave(sender.clone()));
        drop(sender);
        let within = LEAVE_TIMEOUT;
        let sockets =
            collect(&replies, self.target.threads.len(), within).ok_or(Refused::NoReply { within })?;
        let content = self.state.content.clone();
        Ok(FrozenState { content, sockets: sockets.into_iter().flatten().collect() })
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.is_handed_over {
            drop(Thaw(&self.target.shared));
        }
    }
}

impl fmt::Debug for Frozen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("connections", &self.state.connections()).finish_non_exhaustive()
    }
}

/// Continues the cores when it is dropped.
struct Thaw<'a>(&'a Arc<Shared>);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.post_to_all(|| Message::Thaw);
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfinished { nsid, volume, operation } = self;
        match (nsid, volume) {
            (Some(nsid), Some(volume)) => write!(f, "namespace {nsid} ({volume}): {operation}"),
            (Some(nsid), None) => write!(f, "namespace {nsid}: {operation}"),
            _ => f.write_str(operation),
        }
    }
}

/// Returns one reply of each of `count` senders, or `None` if one is missing.
fn collect<T>(replies: &Receiver<T>, count: usize, within: Duration) -> Option<Vec<T>> {
    let deadline = Instant::now() + within;
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        match replies.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(reply) => all.push(reply),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
    Some(all)
}

/// The state that a target starts from.
pub(crate) struct Resumed<'a> {
    content: Content,
    take: Box<dyn FnMut(RawFd) -> std::io::Result<OwnedFd> + 'a>,
    listeners: Vec<(SocketAddr, TcpListener)>,
}

impl<'a> Resumed<'a> {
    pub(crate) fn new(
        content: Content,
        mut take: impl FnMut(RawFd) -> std::io::Result<OwnedFd> + 'a,
    ) -> Resumed<'a> {
        let listeners = content.listeners.iter().filter_map(|(address, socket)| match take(*socket) {
            Ok(socket) => Some((*address, TcpListener::from(socket))),
            Err(error) => {
                log::warn!("{address}: the listener is not inherited: {error}");
                None
            }
        });
        let listeners = listeners.collect();
        Resumed { content, take: Box::new(take), listeners }
    }

    /// Takes the listener of a port: the one with its name, or one with its address.
    pub(super) fn listener(&mut self, port: &TargetPort) -> Option<TcpListener> {
        let address = port.listen.address;
        let is_same = |at: SocketAddr| at == address || (address.port() == 0 && at.ip() == address.ip());
        let named = self.content.port.listeners().iter().filter(|it| it.name == port.name);
        let mut named = named.map(|it| it.address).filter(|at| is_same(*at));
        let index = named.find_map(|at| self.listeners.iter().position(|(other, _)| *other == at))?;
        Some(self.listeners.remove(index).1)
    }

    /// Completes the first table of namespaces.
    pub(crate) fn restore(&self, config: &TargetConfig, table: &mut Namespaces) {
        for (index, subsystem) in config.subsystems.iter().enumerate() {
            if let Some(saved) = TableState::find(&self.content.tables, &subsystem.nqn) {
                saved.restore(table, SubsystemId::at(index), subsystem);
            }
        }
    }

    /// Continues the associations.
    pub(crate) fn resume(&self, port: &mut Port) -> Result<(), StateError> {
        for lost in port.resume(&self.content.port, Instant::now())? {
            log::warn!("the connections of {lost} end: the configuration no longer admits them");
        }
        Ok(())
    }

    /// Gives each connection to the core with its number, or to another one with capacity.
    pub(crate) fn post_lanes(mut self, shared: &Shared) {
        let cores = shared.mailboxes.len();
        for lane in std::mem::take(&mut self.content.lanes) {
            let core = lane.core as usize % cores;
            let listener = shared.control(|port| port.resumed_listener(&self.content.port, lane.listener));
            let socket = match (listener, (self.take)(lane.socket)) {
                (Some(_), Ok(socket)) => Some(socket),
                (None, _) => {
                    log::warn!("{}: the connection ends: its port is gone", lane.remote);
                    None
                }
                (_, Err(error)) => {
                    log::warn!("{}: the connection is not inherited: {error}", lane.remote);
                    None
                }
            };
            let lane = LaneState { listener: listener.unwrap_or(lane.listener), ..lane };
            self.post_lane(shared, lane, socket, core);
        }
    }

    fn post_lane(&self, shared: &Shared, lane: LaneState, socket: Option<OwnedFd>, core: usize) {
        let LaneState { local, remote, listener, proof, conn, .. } = lane;
        let mut queue = None;
        let mut to = Some(core);
        if let Some(name) = lane.queue {
            let mut subsystems = self.content.port.subsystems.iter();
            let nqn =
                subsystems.find(|it| it.number == name.subsystem).and_then(|it| it.nqn.parse::<Nqn>().ok());
            let found = nqn.and_then(|nqn| shared.control(|port| port.find_any_subsystem(&nqn)));
            // The association has not been continued if nothing is found, which was logged.
            let Some(subsystem) = found else { return };
            let id = AssociationId { subsystem, cntlid: name.cntlid, serial: name.serial };
            let Some(resumed) = shared.control(|port| port.resumed_queue(id, name.qid)) else { return };
            let cores = shared.mailboxes.len();
            to = (0..cores).map(|more| (core + more) % cores).find(|core| shared.lane_quota.admit(*core, 0));
            if socket.is_none() || to.is_none() {
                log::warn!("{remote}: the connection ends: it has no socket, or all reactors are full");
                to.into_iter().for_each(|core| shared.lane_quota.disconnect(core));
                shared.control(|port| {
                    port.handle_disconnected(id, name.qid);
                    port.handle_drained(id, name.qid);
                });
                return;
            }
            queue = Some((id, name.qid, resumed));
        }
        if let (Some(socket), Some(core)) = (socket, to) {
            let connection = ConnectionInfo { local, remote, listener };
            let lane = ResumedLane { socket, connection, conn, queue, proof };
            shared.post(core, Message::Resume(Box::new(lane)));
        }
    }
}

/// Part of the time of a freeze in which hosts end authentications that have begun.
const PATIENCE_PARTS: u32 = 8;
/// Interval at which a state is requested again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Minimum time for a core to reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for a core, which has replied just before, to give its sockets away. Without them all connections are lost, so a
/// machine that other programs fill has time.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
