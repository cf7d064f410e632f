//! Shared state of the cores of one target: the control path behind its lock, and the mailboxes.
//!
//! The data path uses none of it; each core has its own reference to the present [`Namespaces`]. Invariants: an event of the [`Port`] for another
//! connection is posted to the core that owns it, under the lock of the call that caused it; and no core
//! waits for another.

mod limits;

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use isolane_memory::PAGE_SIZE;
use isolane_proto::auth::Computed;
use isolane_proto::subsystem::{
    AssociationId, ConnectRefusal, Connected, ConnectionInfo, ControlEvent, Host, HostPage, ListenerId, Port,
    SubsystemConfig, SubsystemId,
};
use isolane_reactor::Waker;
use isolane_reactor::mailbox::{self, Receiver, SendError, Sender};
use isolane_volume::BlockRange;
use isolane_wire::SubmissionEntry;
use parking_lot::Mutex;

use crate::auth::AuthConfig;
use crate::auth_requests::AuthRequests;
use crate::config::TargetConfig;
use crate::connection_status::LaneStatus;
use crate::counters::{CoreCounters, InFlight};
use crate::event::{EventSink, TargetEvent, reason_text};
use crate::fence::Fence;
use crate::frozen::{CoreState, ResumedLane, Unfinished};
use crate::host_page::PageRequests;
use crate::lane::MigratingLane;
use crate::lane_quota::LaneQuota;
use crate::limits::{LIMIT_COUNT, LimitReached, TargetLimits};
use crate::memory_budget::{max_lanes, pool_pages};
use crate::memory_limits::MemoryLimits;
use crate::namespace::{MAX_POSITIONS, Namespaces};
use crate::newcomers::Newcomers;
use crate::observed::{Connections, CoreCells};
use crate::orphans::{OrphanFence, Orphans};
use crate::port::NewListener;
use crate::present_port::at_present;
use crate::release::Release;
use crate::scheduler::CoreLoad;
use crate::slab::LaneId;
use crate::stall_times::PresentTimes;
use crate::unflushed::{HostChanges, Unflushed};

/// Message from one core to another.
pub(crate) enum Message {
    /// Take over an accepted connection.
    Adopt { socket: std::net::TcpStream, peer: SocketAddr, listener: ListenerId },
    /// To the first core: place a connection that none of its listeners has accepted.
    Accepted { socket: std::net::TcpStream, peer: SocketAddr },
    /// Close this connection before Connect: a newer one has displaced it.
    Displace { lane: LaneId },
    /// Close this lane: its association or the I/O of its controller has ended.
    Close { lane: LaneId, reason: &'static str },
    /// Accept no more commands of this lane, and close it once they are complete.
    Retire { lane: LaneId, reason: &'static str },
    /// To the first core: accept connections at this listener.
    Listen(Box<NewListener>),
    /// To the first core: close this listener, then drop the sender.
    CloseListener { id: ListenerId, closed: std::sync::mpsc::Sender<()> },
    /// To the first core: send copies of the listeners at these addresses.
    CopyListeners { addresses: Vec<SocketAddr>, copies: std::sync::mpsc::Sender<Vec<TcpListener>> },
    /// Complete held Async Event Requests of this lane; the port has their completions.
    AsyncEvents { lane: LaneId },
    /// CC.SHN was set: once all of `in_flight` are idle, flush the volumes with `changes` and notify the port.
    Shutdown { id: AssociationId, in_flight: Vec<Arc<InFlight>>, changes: Option<Arc<HostChanges>> },
    /// No request: by dropping the reference, a core confirms that it sees all earlier changes of the port.
    Checkpoint(Arc<()>),
    /// Read the data that has arrived on all connections of this host to this subsystem, enter its unfinished
    /// changes into the fence, then reply with [`Message::HostDrained`].
    DrainHost { subsystem: SubsystemId, host: Box<Host>, fence: Arc<Fence>, reply_to: LaneId },
    /// One core has entered its changes into the fence.
    HostDrained { lane: LaneId },
    /// Pass the held Connect of this lane to the port again: a queue has ended.
    RetryConnect { lane: LaneId },
    /// To the first core: the load of another core.
    LoadReport { core: usize, load: CoreLoad },
    /// Move this lane to another core once it is quiescent.
    Migrate { lane: LaneId, to: usize },
    /// The same for the connection of this peer, if this core owns it.
    MigratePeer { peer: SocketAddr, to: usize },
    /// Add a lane that another core has moved here.
    MigrateIn(MigratingLane),
    /// Continue the first command of this lane that waits for its host's page.
    HostPage { lane: LaneId, page: HostPage },
    /// Use this table for later commands, then drop the sender.
    Namespaces { table: Arc<Namespaces>, seen: std::sync::mpsc::Sender<()> },
    /// Commands at this position follow these orphans from now on; then drop the checkpoint.
    Fence { position: usize, fence: Arc<OrphanFence>, _checkpoint: Arc<()> },
    /// Retry the commands that wait for orphans: one has ended.
    RetryBehind,
    /// Drop the reference once no command uses this removed namespace. The last one to do so flushes its volume first.
    Release(Arc<Release>),
    /// Continue the Authentication Send of this lane; `None`: refuse it, because another has displaced its exponentiation.
    Computed { lane: LaneId, computed: Option<Box<Computed>> },
    /// Stop reading, and send a message each time nothing is left to do. Hosts that authenticate have time to end that.
    Freeze { patience: Duration, still: std::sync::mpsc::Sender<()> },
    /// Send the state of this frozen core, or what is left to do.
    TakeState(std::sync::mpsc::Sender<Result<CoreState, Unfinished>>),
    /// Continue after [`Message::Freeze`].
    Thaw,
    /// End without a change of any connection, and send the sockets.
    Leave(std::sync::mpsc::Sender<Vec<std::os::fd::OwnedFd>>),
    /// Continue a connection of another process.
    Resume(Box<ResumedLane>),
    /// Use these limits of memory.
    MemoryLimits(Option<Arc<MemoryLimits>>),
    /// Send the status of every connection, then drop the sender.
    Describe(std::sync::mpsc::Sender<LaneStatus>),
    /// Finish commands in flight, close all lanes, and flush, by the deadline.
    Stop { deadline: Instant },
}

/// Shared state of the cores of one target.
pub(crate) struct Shared {
    /// The table that the cores have or get next.
    pub table: Mutex<Arc<Namespaces>>,
    /// Held while namespaces change, so that all cores and the port end with the same change.
    pub changes: Mutex<()>,
    pub counters: Vec<Arc<CoreCounters>>,
    /// Latencies, by core.
    pub observed: Vec<Arc<CoreCells>>,
    pub connections: Connections,
    pub page_requests: PageRequests,
    pub auth: Option<AuthConfig>,
    pub auth_requests: AuthRequests,
    pub events: EventSink,
    /// Memory of the pool of each core.
    pub pool_bytes: usize,
    /// Longest busy polling that a listener requests, in microseconds.
    pub busy_poll_us: u32,
    /// Connections migrate, and the clock of the first core follows its load.
    pub is_dynamic: bool,
    pub mailboxes: Vec<Sender<Message>>,
    /// Limits of each subsystem.
    pub subsystem_template: SubsystemConfig,
    /// Fair queueing: short commands pass long ones.
    pub scheduling: bool,
    /// Time limit for a volume.
    pub stuck_after: Duration,
    pub stall_times: PresentTimes,
    pub orphans: Orphans,
    pub unflushed: Unflushed,
    pub lane_quota: LaneQuota,
    pub newcomers: Newcomers,
    /// Connected queues whose host has not authenticated.
    pub unauthenticated: Newcomers,
    /// Limits of the lines about each limit of connections.
    limit_logs: [log::Limit; LIMIT_COUNT],
    /// Cores whose lanes are all closed after [`Message::Stop`].
    pub cores_drained: AtomicUsize,
    /// Limits of memory that the cores have or get next.
    pub memory_limits: Mutex<Option<Arc<MemoryLimits>>>,
    control: Mutex<ControlState>,
}

/// The port, and the lanes of its associations.
struct ControlState {
    port: Port,
    /// Connected lanes, and those with commands still at volumes.
    lanes: HashMap<AssociationId, Vec<LaneEntry>>,
    /// Fences of associations with unfinished older changes.
    fences: HashMap<AssociationId, Arc<Fence>>,
    /// Lanes whose Connect waits for the end of the queue that has its QID.
    held_connects: HashSet<LaneId>,
    limits: TargetLimits,
}

/// Reason for a refused Connect.
pub(crate) enum ConnectError {
    /// The port refuses it.
    Port(ConnectRefusal),
    /// It is above a limit.
    Limit(LimitReached),
}

struct LaneEntry {
    qid: u16,
    host: Host,
    id: LaneId,
    /// The current owner.
    core: usize,
    in_flight: Arc<InFlight>,
    /// Maximum number of its commands.
    entries: usize,
    /// Its host has proven its identity, or need not.
    proven: bool,
    /// The connection has ended, but not all of its commands.
    closed: bool,
    /// The association continues without it, although its commands have not ended.
    stuck: bool,
}

impl Shared {
    /// Returns the shared state of the cores with these wakers, and the mailbox of each.
    pub(crate) fn new(
        config: &TargetConfig,
        port: Port,
        namespaces: Namespaces,
        wakers: impl Iterator<Item = Waker>,
        (max_connections, max_newcomers): (usize, usize),
    ) -> (Arc<Shared>, Vec<Receiver<Message>>) {
        let (lanes, fences, held_connects) = Default::default();
        let control = ControlState { port, lanes, fences, held_connects, limits: config.limits.clone() };
        let (mailboxes, receivers): (Vec<_>, Vec<_>) = wakers.map(mailbox::unbounded).unzip();
        let counters = mailboxes.iter().map(|_| Arc::new(CoreCounters::new(MAX_POSITIONS)));
        let volumes = namespaces.numbers() + SPARE_NUMBERS;
        let max_bytes = config.observe_memory / mailboxes.len().max(1);
        let observed = mailboxes.iter().map(|_| Arc::new(CoreCells::new(volumes, max_bytes)));
        let shared = Shared {
            counters: counters.collect(),
            observed: observed.collect(),
            connections: Connections::default(),
            memory_limits: Mutex::new(MemoryLimits::new(&config.limits, None).map(Arc::new)),
            page_requests: PageRequests::default(),
            auth: config.auth.clone(),
            auth_requests: AuthRequests::default(),
            events: EventSink::default(),
            pool_bytes: pool_pages(config.max_pool_pages) * PAGE_SIZE,
            busy_poll_us: config
                .listen
                .iter()
                .filter_map(|at| at.listen.options.busy_poll_us)
                .max()
                .unwrap_or_default(),
            is_dynamic: config.rebalance_interval.is_some(),
            table: Mutex::new(Arc::new(namespaces)),
            changes: Mutex::new(()),
            lane_quota: LaneQuota::new(mailboxes.len(), max_lanes(config.max_pool_pages), max_connections),
            newcomers: Newcomers::new(max_newcomers),
            unauthenticated: Newcomers::new(
                config.auth.as_ref().map_or(0, |auth| auth.max_unauthenticated(max_connections)),
            ),
            limit_logs: Default::default(),
            mailboxes,
            subsystem_template: config.subsystem_template(max_connections),
            scheduling: config.scheduling,
            stuck_after: config.stuck_after,
            stall_times: PresentTimes::new(config.stall_times()),
            orphans: Orphans::default(),
            unflushed: Unflushed::default(),
            cores_drained: AtomicUsize::new(0),
            control: Mutex::new(control),
        };
        (Arc::new(shared), receivers)
    }

    /// Returns the present table of namespaces. Not for the data path.
    pub(crate) fn namespaces(&self) -> Arc<Namespaces> {
        Arc::clone(&self.table.lock())
    }

    /// Counts a refused connection, and logs one per second.
    pub(crate) fn log_refusal(&self, counters: &CoreCounters, peer: SocketAddr, reason: &str) {
        counters.connections_refused.add(1);
        let refused: u64 = self.counters.iter().map(|core| core.connections_refused.value()).sum();
        log::limited!(Warn, "{peer}: refused: {reason} ({refused} refused since the start)");
    }

    /// Returns the number of closed connections with zero-copy sends in flight.
    pub(crate) fn lingering(&self) -> u64 {
        self.counters.iter().map(|core| core.connections_lingering.value()).sum()
    }

    /// Returns the maximum number of open sockets of connections, including closing ones.
    pub(crate) fn max_descriptors(&self) -> u64 {
        (self.lane_quota.max_connected() + self.newcomers.max() + MAX_CLOSING) as u64
    }

    /// Posts a message to a core. A stopped core drops it.
    pub(crate) fn post(&self, core: usize, message: Message) {
        if self.mailboxes[core].send(message).is_err() {
            log::debug!("core {core} has stopped: message dropped");
        }
    }

    /// Posts a message to every core.
    pub(crate) fn post_to_all(&self, message: impl Fn() -> Message) {
        (0..self.mailboxes.len()).for_each(|core| self.post(core, message()));
    }

    /// Calls the port and delivers the resulting events.
    pub(crate) fn control<R>(&self, call: impl FnOnce(&mut Port) -> R) -> R {
        let mut control = self.control.lock();
        let result = call(&mut control.port);
        self.deliver_events(&mut control);
        result
    }

    /// Requests admission of a connection from the port, and adds its lane if it is admitted.
    /// Returns the fence of its association, if any. `fence` is used for an admin queue. If the QID is in
    /// use, [`Message::RetryConnect`] follows when a queue has ended.
    pub(crate) fn connect(
        &self,
        (entry, data): (&SubmissionEntry, &[u8]),
        from: ConnectionInfo,
        (lane_id, in_flight, proven): (LaneId, &Arc<InFlight>, bool),
        fence: Arc<Fence>,
        now: Instant,
    ) -> Result<(Connected, Option<Arc<Fence>>), ConnectError> {
        let mut control = self.control.lock();
        control.check_limits(entry, data).map_err(ConnectError::Limit)?;
        let from = at_present(&control.port, from);
        let connected = control.port.connect(entry, data, from, now).map_err(|refusal| {
            if refusal.is_qid_in_use {
                control.held_connects.insert(lane_id);
            }
            ConnectError::Port(refusal)
        })?;
        let Connected { id, qid, host, sqsize, .. } = connected;
        let entry = LaneEntry {
            qid,
            host,
            id: lane_id,
            core: lane_id.core,
            in_flight: Arc::clone(in_flight),
            entries: usize::from(sqsize) + 1,
            proven,
            closed: false,
            stuck: false,
        };
        control.lanes.entry(id).or_default().push(entry);
        if qid == 0 {
            if host.nqn.is_none() {
                log::limited!(
                    Warn,
                    "{}: accepted {host}; give it an NQN, or list the hosts with --allow-host",
                    from.remote
                );
            }
            control.fences.insert(id, fence);
            let subsystem = control.port.subsystem_nqn(id.subsystem).copied();
            let (peer, host, cntlid) = (from.remote, host.nqn, id.cntlid);
            self.events.emit(|| TargetEvent::Connected { peer, host, subsystem, cntlid });
        }
        let fence = control.fences.get(&id).filter(|fence| !fence.is_over()).cloned();
        if fence.is_none() {
            control.fences.remove(&id);
        }
        self.deliver_events(&mut control);
        Ok((connected, fence))
    }

    /// Adds the lane of a queue that another process has connected.
    pub(crate) fn add_resumed(
        &self,
        id: AssociationId,
        qid: u16,
        host: Host,
        (lane, in_flight, entries, proven): (LaneId, &Arc<InFlight>, usize, bool),
    ) {
        let entry = LaneEntry {
            qid,
            host,
            id: lane,
            core: lane.core,
            in_flight: Arc::clone(in_flight),
            entries,
            proven,
            closed: false,
            stuck: false,
        };
        self.control.lock().lanes.entry(id).or_default().push(entry);
    }

    /// Counts a Connect that is refused because of a limit, and logs one per second and limit.
    pub(crate) fn log_limit(
        &self,
        counters: &CoreCounters,
        peer: SocketAddr,
        reached: LimitReached,
        host: &str,
    ) {
        counters.connections_refused.add(1);
        counters.limits_reached[reached.index()].add(1);
        let limit = &self.limit_logs[reached.index()];
        log::limited!(by limit, Warn, "{peer}: refused: Connect of {host}: {reached}");
    }

    /// Reports that a connection has ended.
    pub(crate) fn disconnected(&self, id: AssociationId, qid: u16, lane: LaneId) {
        let mut control = self.control.lock();
        let lanes = control.lanes.get_mut(&id).into_iter().flatten();
        lanes.filter(|entry| entry.id == lane).for_each(|entry| entry.closed = true);
        control.port.handle_disconnected(id, qid);
        self.deliver_events(&mut control);
    }

    /// Reports that the last command of a closed connection has left its volume.
    pub(crate) fn drained(&self, id: AssociationId, qid: u16, lane: LaneId) {
        let mut control = self.control.lock();
        let mut is_known = false;
        if let Some(lanes) = control.lanes.get_mut(&id) {
            is_known = lanes.iter().any(|entry| entry.id == lane && entry.stuck);
            lanes.retain(|entry| entry.id != lane);
        }
        control.lanes.retain(|_, lanes| !lanes.is_empty());
        if is_known {
            control.port.handle_unstuck(id)
        } else {
            control.port.handle_drained(id, qid)
        }
        self.retry_connects(&mut control);
        self.deliver_events(&mut control);
    }

    /// Returns `true` if an association has I/O queues that are connected, or whose commands have not ended.
    pub(crate) fn has_io_queues(&self, id: AssociationId) -> bool {
        self.control.lock().lanes_of(id).any(|lane| lane.qid != 0 && !lane.stuck)
    }

    /// Reports that commands of a closed connection do not end. The association continues without it, and its
    /// later connections are fenced from `changes`. Later associations of the host still find the lane, and
    /// the controller keeps its CNTLID until [`Shared::drained`].
    pub(crate) fn leave_stuck(
        &self,
        id: AssociationId,
        qid: u16,
        lane: LaneId,
        changes: &[(usize, BlockRange, Arc<()>)],
    ) {
        let mut control = self.control.lock();
        for entry in control.lanes.get_mut(&id).into_iter().flatten() {
            entry.stuck |= entry.id == lane;
        }
        control.fences.entry(id).or_default().enter(changes, 0);
        control.port.handle_stuck(id, qid);
        self.retry_connects(&mut control);
        self.deliver_events(&mut control);
    }

    /// Ends the wait of a Connect that was refused or whose connection has ended.
    pub(crate) fn forget_held_connect(&self, lane: LaneId) {
        self.control.lock().held_connects.remove(&lane);
    }

    fn retry_connects(&self, control: &mut ControlState) {
        for lane in control.held_connects.drain() {
            self.post(lane.core, Message::RetryConnect { lane });
        }
    }

    /// Returns the commands in flight of all lanes of an association, except lanes that it continues without.
    pub(crate) fn in_flight_of(&self, id: AssociationId) -> Vec<Arc<InFlight>> {
        let control = self.control.lock();
        let lanes = control.lanes_of(id).filter(|lane| !lane.stuck);
        lanes.map(|lane| Arc::clone(&lane.in_flight)).collect()
    }

    /// Whether an association has I/O queues, except those that it continues without.
    pub(crate) fn has_io_lanes(&self, id: AssociationId) -> bool {
        self.control.lock().lanes_of(id).any(|lane| lane.qid != 0 && !lane.stuck)
    }

    /// Requests a drain from every core that owns an older connection of the host of this Connect, and
    /// returns the number of cores that will reply. Holds the lock throughout, so that no connection moves.
    pub(crate) fn request_drain(
        &self,
        (entry, data): (&SubmissionEntry, &[u8]),
        from: ConnectionInfo,
        fence: &Arc<Fence>,
        reply_to: LaneId,
    ) -> usize {
        let control = self.control.lock();
        let Some((subsystem, host)) = control.port.host_to_drain(entry, data, from) else { return 0 };
        let lanes = control.lanes.iter().filter(|(id, _)| id.subsystem == subsystem);
        let lanes = lanes.flat_map(|(_, lanes)| lanes);
        let mut cores: Vec<usize> =
            lanes.filter(|lane| lane.host.matches(&host)).map(|lane| lane.core).collect();
        cores.sort_unstable();
        cores.dedup();
        for core in &cores {
            let (host, fence) = (Box::new(host), Arc::clone(fence));
            self.post(*core, Message::DrainHost { subsystem, host, fence, reply_to });
        }
        cores.len()
    }

    /// Transfers a lane to another core, unless its old core has unread messages. Messages for a lane are
    /// sent under this lock, so later ones go to the new core, after the lane.
    ///
    /// # Errors
    /// Returns the lane if it stays.
    pub(crate) fn migrate(
        &self,
        id: AssociationId,
        lane_id: LaneId,
        to: usize,
        migrating: MigratingLane,
        is_mailbox_empty: impl FnOnce() -> bool,
    ) -> Result<(), MigratingLane> {
        let mut control = self.control.lock();
        let mut lanes = control.lanes.get_mut(&id).into_iter().flatten();
        let Some(entry) = lanes.find(|lane| lane.id == lane_id).filter(|_| is_mailbox_empty()) else {
            return Err(migrating);
        };
        match self.mailboxes[to].send(Message::MigrateIn(migrating)) {
            Ok(()) => {
                entry.core = to;
                Ok(())
            }
            Err(SendError(Message::MigrateIn(lane))) => Err(lane),
            Err(_) => unreachable!("send returned a different message"),
        }
    }

    /// Closes a lane after its commands, on the core that owns it now. Returns `false` if it has ended.
    pub(crate) fn retire(
        &self,
        association: Option<AssociationId>,
        lane: LaneId,
        reason: &'static str,
    ) -> bool {
        let control = self.control.lock();
        let core = match association {
            Some(id) => control.lanes_of(id).find(|entry| entry.id == lane).map(|entry| entry.core),
            None => Some(lane.core),
        };
        core.into_iter().for_each(|core| self.post(core, Message::Retire { lane, reason }));
        core.is_some()
    }

    fn deliver_events(&self, control: &mut ControlState) {
        while let Some(event) = control.port.poll_event() {
            self.deliver(control, event);
        }
    }

    fn deliver(&self, control: &mut ControlState, event: ControlEvent) {
        match event {
            ControlEvent::AsyncEvents(id) => {
                for lane in control.lanes_of(id).filter(|lane| lane.qid == 0) {
                    self.post(lane.core, Message::AsyncEvents { lane: lane.id });
                }
            }
            ControlEvent::CloseIoQueues(id) => {
                let lanes = control.lanes_of(id).filter(|lane| lane.qid != 0);
                lanes.for_each(|lane| self.post_close(lane, "the host disabled the controller"));
            }
            ControlEvent::Close { id, reason } => {
                self.events.emit(|| control.disconnected_event(id, reason_text(reason)));
                control.lanes_of(id).for_each(|lane| self.post_close(lane, reason_text(reason)));
            }
            ControlEvent::Retire { id, reason } => {
                let reason = reason_text(reason);
                let post = |lane: &LaneEntry| self.post(lane.core, Message::Retire { lane: lane.id, reason });
                control.lanes_of(id).for_each(post);
            }
            ControlEvent::Shutdown(id) => self.post_shutdown(control, id),
            ControlEvent::Ended(id) => {
                control.lanes.remove(&id);
                control.fences.remove(&id);
            }
        }
    }

    fn post_close(&self, lane: &LaneEntry, reason: &'static str) {
        self.post(lane.core, Message::Close { lane: lane.id, reason });
    }

    /// The core of the admin queue flushes.
    fn post_shutdown(&self, control: &ControlState, id: AssociationId) {
        let in_flight = control.lanes_of(id).map(|lane| Arc::clone(&lane.in_flight)).collect();
        if let Some(admin) = control.lanes_of(id).find(|lane| lane.qid == 0) {
            let changes = self.unflushed.of(id.subsystem, &admin.host);
            self.post(admin.core, Message::Shutdown { id, in_flight, changes });
        }
    }
}

impl ControlState {
    fn disconnected_event(&self, id: AssociationId, reason: &'static str) -> TargetEvent {
        let host = self.lanes_of(id).next().and_then(|lane| lane.host.nqn);
        let subsystem = self.port.subsystem_nqn(id.subsystem).copied();
        TargetEvent::Disconnected { host, subsystem, cntlid: id.cntlid, reason }
    }

    fn lanes_of(&self, id: AssociationId) -> impl Iterator<Item = &LaneEntry> {
        self.lanes.get(&id).into_iter().flatten()
    }
}

/// Volumes that can be added with numbers of their own. The numbers of later ones are counted together.
const SPARE_NUMBERS: usize = 512;
/// Limit for displaced newcomers that another core has not closed yet.
pub(crate) const MAX_CLOSING: usize = 32;
