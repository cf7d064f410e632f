//! What the cores of one target share: the control path behind its lock, and each other's mailboxes.
//!
//! It is not on the data path: an I/O command takes nothing from here but the immutable list of namespaces.
//! Invariants: whatever the [`Port`] wants done beyond the caller's own connection is posted to the core that
//! owns the connection, under the same lock that made it happen; and no core ever waits for another.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{
    AssociationId, CloseReason, ConnectRefusal, Connected, ConnectionInfo, ControlEvent, Host, Port,
};
use isolane_reactor::mailbox::{SendError, Sender};
use isolane_volume::BlockRange;
use isolane_wire::SubmissionEntry;
use parking_lot::Mutex;

use crate::core::MigratingLane;
use crate::counters::{ConnectionStatus, CoreCounters, InFlight};
use crate::fence::Fence;
use crate::lane_quota::LaneQuota;
use crate::log_limiter::LogLimiter;
use crate::namespace::Namespaces;
use crate::newcomers::Newcomers;
use crate::scheduler::CoreLoad;
use crate::slab::{LaneId, SlabKey};

/// What cores tell each other.
#[derive(Debug)]
pub(crate) enum Message {
    /// This connection is yours.
    Adopt { socket: std::net::TcpStream, peer: SocketAddr },
    /// Close this connection before Connect, whose place another has taken.
    Displace { lane: LaneId },
    /// Close this lane: its association, or its controller's I/O, has ended.
    Close { lane: LaneId, reason: &'static str },
    /// Answer held Async Event Requests of this lane; the port has their completions.
    AsyncEvents { lane: LaneId },
    /// CC.SHN was set: when none of `busy` is, flush all volumes and tell the port.
    Shutdown { id: AssociationId, busy: Vec<Arc<InFlight>> },
    /// There is nothing to do: by dropping this, a core says that it sees what the port changed before.
    Checkpoint(Arc<()>),
    /// Read the data that has arrived on all connections of this host, enter its unfinished changes into the
    /// fence, then answer with [`Message::HostDrained`].
    DrainHost { host: Box<Host>, fence: Arc<Fence>, reply_to: LaneId },
    /// One core has raised its part of a fence.
    HostDrained { lane: SlabKey },
    /// To the first core: what another did lately.
    LoadReport { core: usize, load: CoreLoad },
    /// Let this lane go to another core as soon as it can.
    Migrate { lane: LaneId, to: usize },
    /// The same for the connection of this peer, if it is yours.
    MigratePeer { peer: SocketAddr, to: usize },
    /// This lane is yours.
    MigrateIn(MigratingLane),
    /// Tell about every connection; the sender is dropped when that is done.
    Describe(std::sync::mpsc::Sender<ConnectionStatus>),
    /// Finish what is in flight, close everything, flush; by then at the latest.
    Stop { deadline: Instant },
}

/// What the cores of one target share.
pub(crate) struct Shared {
    pub namespaces: Namespaces,
    pub counters: Vec<Arc<CoreCounters>>,
    pub mailboxes: Vec<Sender<Message>>,
    /// Short commands pass long ones.
    pub scheduling: bool,
    /// How long anybody waits for a volume.
    pub stuck_after: Duration,
    pub lane_quota: LaneQuota,
    pub newcomers: Newcomers,
    refusal_log: Mutex<LogLimiter>,
    /// Cores whose lanes are all closed after [`Message::Stop`].
    pub cores_drained: AtomicUsize,
    control: Mutex<ControlState>,
}

/// What is decided about all cores before they begin.
pub(crate) struct CoreLimits {
    pub max_connections: usize,
    pub max_newcomers: usize,
    /// Lanes that one core may have.
    pub max_lanes_per_core: usize,
    /// Short commands pass long ones.
    pub scheduling: bool,
    /// How long anybody waits for a volume.
    pub stuck_after: Duration,
}

/// The port, and which lanes its associations have.
struct ControlState {
    port: Port,
    /// Connected lanes, and those with commands still at volumes.
    lanes: HashMap<AssociationId, Vec<LaneEntry>>,
    /// Fences that were not over when the association began.
    fences: HashMap<AssociationId, Arc<Fence>>,
    unnamed_log: LogLimiter,
}

struct LaneEntry {
    qid: u16,
    host: Host,
    /// Its name.
    address: LaneId,
    /// The core that owns it now.
    core: usize,
    busy: Arc<InFlight>,
    /// Its association goes on without it, although its commands have not ended.
    stuck: bool,
}

impl Shared {
    pub(crate) fn new(
        port: Port,
        namespaces: Namespaces,
        counters: Vec<Arc<CoreCounters>>,
        mailboxes: Vec<Sender<Message>>,
        bounds: CoreLimits,
    ) -> Shared {
        let (lanes, fences, unnamed_log) = Default::default();
        let control = ControlState { port, lanes, fences, unnamed_log };
        Shared {
            namespaces,
            counters,
            lane_quota: LaneQuota::new(mailboxes.len(), bounds.max_lanes_per_core, bounds.max_connections),
            newcomers: Newcomers::new(bounds.max_newcomers),
            refusal_log: Mutex::default(),
            mailboxes,
            scheduling: bounds.scheduling,
            stuck_after: bounds.stuck_after,
            cores_drained: AtomicUsize::new(0),
            control: Mutex::new(control),
        }
    }

    /// Counts a connection that was refused, and logs one a second.
    pub(crate) fn log_refusal(&self, counters: &CoreCounters, peer: SocketAddr, why: &str) {
        counters.connections_refused.add(1);
        if self.refusal_log.lock().is_due(Instant::now()) {
            let refused: u64 = self.counters.iter().map(|core| core.connections_refused.value()).sum();
            log::warn!("{peer}: refused: {why} ({refused} refused since the start)");
        }
    }

    /// Closed connections whose last bytes the kernel still sends out of our memory.
    pub(crate) fn lingering(&self) -> u64 {
        self.counters.iter().map(|core| core.connections_lingering.value()).sum()
    }

    /// The most sockets of connections that are open at the same time, with those that are being closed.
    pub(crate) fn max_descriptors(&self) -> u64 {
        (self.lane_quota.max_connected() + self.newcomers.max() + MAX_CLOSING) as u64
    }

    /// Leaves a message with a core. A core that has stopped needs none.
    pub(crate) fn post(&self, core: usize, message: Message) {
        if self.mailboxes[core].send(message).is_err() {
            log::debug!("core {core} has stopped and took no message");
        }
    }

    /// Leaves a message with every core.
    pub(crate) fn post_to_all(&self, message: impl Fn() -> Message) {
        (0..self.mailboxes.len()).for_each(|core| self.post(core, message()));
    }

    /// Calls the port and delivers whatever it wants done elsewhere.
    pub(crate) fn control<R>(&self, call: impl FnOnce(&mut Port) -> R) -> R {
        let mut control = self.control.lock();
        let result = call(&mut control.port);
        self.deliver_events(&mut control);
        result
    }

    /// Asks the port to admit a connection, and enters it into the list of lanes if it is.
    /// Returns the fence of its association if there is one. `fence` is that of an admin queue.
    pub(crate) fn connect(
        &self,
        (entry, data): (&SubmissionEntry, &[u8]),
        from: ConnectionInfo,
        (address, busy): (LaneId, &Arc<InFlight>),
        fence: Arc<Fence>,
        now: Instant,
    ) -> Result<(Connected, Option<Arc<Fence>>), ConnectRefusal> {
        let mut control = self.control.lock();
        let connected = control.port.connect(entry, data, from, now)?;
        let Connected { id, qid, host, .. } = connected;
        let entry =
            LaneEntry { qid, host, address, core: address.core, busy: Arc::clone(busy), stuck: false };
        control.lanes.entry(id).or_default().push(entry);
        if qid == 0 {
            if host.nqn.is_none() && control.unnamed_log.is_due(now) {
                log::warn!(
                    "{}: accepted {host}; give it an NQN, or list the hosts with --allow-host",
                    from.remote
                );
            }
            control.fences.insert(id, fence);
        }
        let fence = control.fences.get(&id).filter(|fence| !fence.is_over()).cloned();
        if fence.is_none() {
            control.fences.remove(&id);
        }
        self.deliver_events(&mut control);
        Ok((connected, fence))
    }

    /// A connection of an association is gone.
    pub(crate) fn disconnect(&self, id: AssociationId, qid: u16) {
        self.control(|port| port.handle_disconnected(id, qid));
    }

    /// No command of a connection that is gone is at a volume any more.
    pub(crate) fn drained(&self, id: AssociationId, qid: u16, lane: LaneId) {
        let mut control = self.control.lock();
        let mut is_known = false;
        if let Some(lanes) = control.lanes.get_mut(&id) {
            is_known = lanes.iter().any(|entry| entry.address == lane && entry.stuck);
            lanes.retain(|entry| entry.address != lane);
        }
        control.lanes.retain(|_, lanes| !lanes.is_empty());
        match is_known {
            true => control.port.handle_unstuck(id),
            false => control.port.handle_drained(id, qid),
        }
        self.deliver_events(&mut control);
    }

    /// The commands of a connection that is gone do not end: the association goes on without it, and its later
    /// connections come after these changes. Its host's later associations still find the lane, and the
    /// controller keeps its CNTLID until [`Shared::drained`].
    pub(crate) fn leave_stuck(
        &self,
        id: AssociationId,
        qid: u16,
        lane: LaneId,
        changes: &[(usize, BlockRange, Arc<()>)],
    ) {
        let mut control = self.control.lock();
        for entry in control.lanes.get_mut(&id).into_iter().flatten() {
            entry.stuck |= entry.address == lane;
        }
        control.fences.entry(id).or_default().enter(changes, 0);
        control.port.handle_stuck(id, qid);
        self.deliver_events(&mut control);
    }

    /// The loads of all lanes of an association but those that it goes on without: their commands have failed
    /// for the host.
    pub(crate) fn in_flight_of(&self, id: AssociationId) -> Vec<Arc<InFlight>> {
        let control = self.control.lock();
        let lanes = control.lanes_of(id).filter(|lane| !lane.stuck);
        lanes.map(|lane| Arc::clone(&lane.busy)).collect()
    }

    /// Asks the cores that own connections of the host of this Connect with the same subsystem to raise the
    /// fence; returns how many will answer. The lock is held until all are asked, so that no connection moves
    /// meanwhile.
    pub(crate) fn request_drain(
        &self,
        entry: &SubmissionEntry,
        data: &[u8],
        fence: &Arc<Fence>,
        reply_to: LaneId,
    ) -> usize {
        let control = self.control.lock();
        let Some(host) = control.port.host_to_drain(entry, data) else { return 0 };
        let lanes = control.lanes.iter().filter(|(id, _)| !id.discovery).flat_map(|(_, lanes)| lanes);
        let mut cores: Vec<usize> =
            lanes.filter(|lane| lane.host.matches(&host)).map(|lane| lane.core).collect();
        cores.sort_unstable();
        cores.dedup();
        for core in &cores {
            self.post(*core, Message::DrainHost { host: Box::new(host), fence: Arc::clone(fence), reply_to });
        }
        cores.len()
    }

    /// Gives a lane to another core, unless its old core has unread messages: all that concern the lane are
    /// sent under this lock, so from then on they go to the new core, behind the lane.
    ///
    /// # Errors
    /// The lane comes back.
    pub(crate) fn migrate(
        &self,
        id: AssociationId,
        name: LaneId,
        to: usize,
        migrating: MigratingLane,
        is_mailbox_empty: impl FnOnce() -> bool,
    ) -> Result<(), MigratingLane> {
        let mut control = self.control.lock();
        let mut lanes = control.lanes.get_mut(&id).into_iter().flatten();
        let Some(entry) = lanes.find(|lane| lane.address == name).filter(|_| is_mailbox_empty()) else {
            return Err(migrating);
        };
        match self.mailboxes[to].send(Message::MigrateIn(migrating)) {
            Ok(()) => {
                entry.core = to;
                Ok(())
            }
            Err(SendError::Full(Message::MigrateIn(back)) | SendError::Closed(Message::MigrateIn(back))) => {
                Err(back)
            }
            Err(_) => unreachable!("another message came back than was sent"),
        }
    }

    fn deliver_events(&self, control: &mut ControlState) {
        while let Some(event) = control.port.poll_event() {
            self.deliver(control, event);
        }
    }

    fn deliver(&self, control: &mut ControlState, event: ControlEvent) {
        match event {
            ControlEvent::AsyncEvents { id } => {
                for lane in control.lanes_of(id).filter(|lane| lane.qid == 0) {
                    self.post(lane.core, Message::AsyncEvents { lane: lane.address });
                }
            }
            ControlEvent::CloseIoQueues { id } => {
                let lanes = control.lanes_of(id).filter(|lane| lane.qid != 0);
                lanes.for_each(|lane| self.post_close(lane, "the host disabled the controller"));
            }
            ControlEvent::Close { id, reason } => {
                control.lanes_of(id).for_each(|lane| self.post_close(lane, reason_text(reason)));
            }
            ControlEvent::Shutdown { id } => self.post_shutdown(control, id),
            ControlEvent::Ended { id } => {
                control.lanes.remove(&id);
                control.fences.remove(&id);
            }
        }
    }

    fn post_close(&self, lane: &LaneEntry, reason: &'static str) {
        self.post(lane.core, Message::Close { lane: lane.address, reason });
    }

    /// The core of the admin queue sees to the flush.
    fn post_shutdown(&self, control: &ControlState, id: AssociationId) {
        let busy = control.lanes_of(id).map(|lane| Arc::clone(&lane.busy)).collect();
        if let Some(admin) = control.lanes_of(id).find(|lane| lane.qid == 0) {
            self.post(admin.core, Message::Shutdown { id, busy });
        }
    }
}

impl ControlState {
    fn lanes_of(&self, id: AssociationId) -> impl Iterator<Item = &LaneEntry> {
        self.lanes.get(&id).into_iter().flatten()
    }
}

/// Newcomers that were displaced and that another core has not closed yet.
pub(crate) const MAX_CLOSING: usize = 32;

fn reason_text(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::AdminQueueLost => "the association's admin connection is gone",
        CloseReason::KeepAliveExpired => "the host was silent for longer than its keep-alive timeout",
    }
}
