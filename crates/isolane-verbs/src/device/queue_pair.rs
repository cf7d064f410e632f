//! Queue pairs of a device: a reliable connection over a lane, used by any thread.
//!
//! Invariant: completions enter their queues in the order in which the connection finished the requests.

mod report;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use isolane_memory::MemoryRegion;
use isolane_observe::observable::{Observable, SnapshotSource};
use parking_lot::{Mutex, MutexGuard};

use super::completion_queue::CompletionQueue;
use super::context::QueuePairContext;
use super::guard::{Guard, Settle};
use super::handshake::{ConnectError, LaneAttempt, LocalHello, gid};
use super::lane::{Lane, MemoryLane};
use super::lane_opener::{LaneOpener, LaneOwner};
use super::manager::Manager;
use super::progress::{Driven, Progress};
use super::shared_receive_queue::SharedReceiveQueue;
use crate::connection::{Pending, ReliableConnection};
use crate::memory::{Access, ProtectionDomain};
use crate::observed::{Numbers, Observer, Posted, Source};
use crate::types::{
    AsyncEvent, ConnectionParameters, Limits, OnCompletion, OnEnd, OnEvent, Peer, PostError, QueuePairState,
    ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest,
};
use crate::wire::{Hello, Role};

/// Configuration of a queue pair.
#[derive(Clone)]
pub struct QueuePairConfig {
    /// Memory that its requests and the peer's can name.
    pub domain: Arc<ProtectionDomain>,
    /// Where its send requests complete.
    pub send_queue: Arc<CompletionQueue>,
    /// Where its receives complete.
    pub receive_queue: Arc<CompletionQueue>,
    /// Receives that it shares with other queue pairs.
    pub shared_receive_queue: Option<Arc<SharedReceiveQueue>>,
    /// Limits.
    pub limits: Limits,
    /// Identifier of the completions of the peer's WRITEs with immediate data. With one, which both ends must have, such a
    /// WRITE consumes no receive.
    pub write_id: Option<u64>,
    /// The queue pair lives until it sends when the peer's is destroyed, as on InfiniBand; otherwise it fails.
    pub outlives_peer: bool,
    /// Completions that no program has taken stay in their queues when the queue pair is destroyed.
    pub keeps_completions: bool,
    /// Receives each completion before its queue, and returns `false` to leave it out.
    pub on_completion: Option<OnCompletion>,
    /// Receives its events; without it, [`QueuePair::poll_event`] returns them.
    pub on_event: Option<OnEvent>,
    /// Called once when it has failed, after all its completions.
    pub on_end: Option<OnEnd>,
}

/// The state of a queue pair does not allow a change.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// The order is reset, init, ready to receive, ready to send.
    #[error("a queue pair in state {0:?} cannot change in this way")]
    State(QueuePairState),
    /// The system failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// A queue pair. Dropping it ends its lane.
pub struct QueuePair {
    shared: Arc<SharedQueuePair>,
    manager: Arc<Manager>,
}

/// The part of a queue pair that the drivers of its device share.
struct SharedQueuePair {
    number: u32,
    progress: Arc<Progress>,
    manager: Arc<Manager>,
    /// This value, for the lists that hold it.
    weak: Weak<SharedQueuePair>,
    config: QueuePairConfig,
    context: Mutex<QueuePairContext>,
    /// It is in the list of queue pairs with something to send.
    is_pending: AtomicBool,
    /// Numbers about its requests, if the device is observed.
    numbers: Option<Arc<Numbers>>,
}

impl QueuePair {
    pub(super) fn new(
        number: u32,
        progress: &Arc<Progress>,
        manager: &Arc<Manager>,
        config: &QueuePairConfig,
    ) -> io::Result<QueuePair> {
        let mut context = QueuePairContext::new(number, config.connection(), config.outlives_peer);
        let numbers = manager.is_observed().then(|| Arc::new(Numbers::new(number)));
        context.observer = numbers.clone().map(|numbers| Box::new(Observer::new(numbers)));
        let shared = Arc::new_cyclic(|weak| SharedQueuePair {
            number,
            progress: Arc::clone(progress),
            manager: Arc::clone(manager),
            weak: Weak::clone(weak),
            config: config.clone(),
            context: Mutex::new(context),
            is_pending: AtomicBool::new(false),
            numbers,
        });
        progress.add(shared.clone())?;
        Ok(QueuePair { shared, manager: Arc::clone(manager) })
    }

    /// Number of the queue pair, by which its completions and its peer name it.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Maximum number of lanes. On several lanes, the bytes of a WRITE arrive in any order.
    pub fn max_lanes(&self) -> u8 {
        self.manager.offer().lanes
    }

    /// Returns the state.
    pub fn state(&self) -> QueuePairState {
        self.shared.peek().connection.state()
    }

    /// Moves from [`QueuePairState::Reset`] to [`QueuePairState::Init`]. The peer's requests have the rights `access`.
    ///
    /// # Errors
    /// [`ModifyError::State`].
    pub fn initialize(&self, access: Access) -> Result<(), ModifyError> {
        let mut context = self.shared.lock();
        let is_allowed = context.connection.initialize(access);
        allowed(&context, is_allowed)
    }

    /// Changes the rights of the peer's requests.
    pub fn set_access(&self, access: Access) {
        self.shared.peek().connection.set_access(access);
    }

    /// Moves from [`QueuePairState::Init`] to [`QueuePairState::ReadyToReceive`], and opens a lane to the peer in the background. The
    /// peer's first message has the number `first_message`.
    ///
    /// # Errors
    /// [`ModifyError`].
    pub fn start_receiving(
        &self,
        peer: Peer,
        first_message: u32,
        attributes: &ReceiveAttributes,
    ) -> Result<(), ModifyError> {
        self.start_receiving_at(self.manager.address(), peer, first_message, attributes)
    }

    /// Starts as [`QueuePair::start_receiving`], at a local address of a device that has all of them.
    ///
    /// # Errors
    /// [`ModifyError`].
    pub fn start_receiving_at(
        &self,
        address: IpAddr,
        peer: Peer,
        first_message: u32,
        attributes: &ReceiveAttributes,
    ) -> Result<(), ModifyError> {
        let (number, shares) = (self.number(), self.shared.config.shared_receive_queue.is_some());
        let resources = attributes.responder_resources;
        let local_hello = LocalHello::new(number, first_message, resources, shares, self.manager.offer())?;
        let mut context = self.shared.lock();
        let is_allowed = context.connection.start_receiving(attributes);
        allowed(&context, is_allowed)?;
        drop(context);
        let here = (gid(address), number);
        if here == (gid(peer.address), peer.number) {
            let lane = MemoryLane::loopback().map_err(ConnectError::from)?;
            self.shared.open_local(Box::new(lane), &local_hello.loopback_parameters());
        } else {
            let role = if here < (gid(peer.address), peer.number) { Role::Connects } else { Role::Accepts };
            self.manager.open(LaneOpener { address, ..self.opener(local_hello, peer, role, false) });
        }
        Ok(())
    }

    /// Moves from [`QueuePairState::ReadyToReceive`] to [`QueuePairState::ReadyToSend`]. The first message has the number
    /// `first_message`, which the peer must expect. Requests fail after the time `lane_timeout` without a lane.
    ///
    /// # Errors
    /// [`ModifyError::State`].
    pub fn start_sending(
        &self,
        first_message: u32,
        attributes: &SendAttributes,
        lane_timeout: Option<Duration>,
    ) -> Result<(), ModifyError> {
        let mut context = self.shared.lock();
        let is_allowed = context.connection.start_sending(attributes);
        allowed(&context, is_allowed)?;
        context.lane_timeout = lane_timeout;
        context.expect_first_message(first_message);
        Ok(())
    }

    /// Moves to [`QueuePairState::Reset`]: the lane ends, and all requests and completions are dropped.
    pub fn reset(&self) {
        self.manager.cancel(self.number());
        self.shared.end_lanes();
    }

    /// Returns the description of the queue pair for the manager.
    pub(super) fn opener(
        &self,
        local_hello: LocalHello,
        peer: Peer,
        role: Role,
        by_address: bool,
    ) -> LaneOpener {
        if let Some(numbers) = &self.shared.numbers {
            numbers.set_peer(peer.address);
        }
        let owner: Weak<dyn LaneOwner> = Weak::<SharedQueuePair>::clone(&self.shared.weak);
        let address = self.manager.address();
        LaneOpener { owner, local_hello, address, peer, role, by_address }
    }

    /// Moves from [`QueuePairState::Reset`] to [`QueuePairState::ReadyToSend`] without a lane.
    pub(super) fn start(&self) {
        let mut context = self.shared.lock();
        let _ = context.connection.initialize(Access::ALL)
            && context.connection.start_receiving(&ReceiveAttributes::default())
            && context.connection.start_sending(&SendAttributes::default());
        context.lane_timeout = Some(LANE_TIMEOUT);
    }

    /// Takes a lane whose other end is in this process.
    pub(super) fn open_local(&self, lane: Box<dyn Lane>, parameters: &ConnectionParameters) {
        self.shared.open_local(lane, parameters);
    }

    /// Posts a send request. It is sent at once if nothing else is outstanding, otherwise together with others: by the
    /// next poll, or once enough of them wait.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        let mut context = self.shared.lock();
        let posted = context.observer.is_some().then(|| Posted::new(&request));
        context.connection.post_send(request)?;
        if let (Some(observer), Some(posted)) = (&mut context.observer, posted) {
            observer.push(posted);
        }
        let is_only_one = context.connection.outstanding_sends() == 1;
        let is_batch = context.connection.unsent_sends().is_multiple_of(BATCH);
        self.send(context, is_only_one || is_batch);
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let mut context = self.shared.peek();
        context.connection.post_receive(request)?;
        // The peer can wait for it.
        if context.connection.pending() != Pending::Nothing {
            self.send(self.shared.guard(context), false);
        } else if context.connection.state() == QueuePairState::Error {
            drop(self.shared.guard(context));
        }
        Ok(())
    }

    /// Removes a receive without a completion. Returns `false` if the peer can use it, or there is none.
    pub fn cancel_receive(&self, id: u64) -> bool {
        self.shared.peek().connection.cancel_receive(id)
    }

    /// Sends now if `is_urgent`, or if no thread polls that would send soon; otherwise with the next poll.
    fn send(&self, mut context: Guard<'_, SharedQueuePair>, is_urgent: bool) {
        let progress = &self.shared.progress;
        if progress.is_shared() && (is_urgent || progress.sends_at_once()) {
            context.transmit();
        } else if self.shared.mark_pending() {
            progress.add_pending(self.shared.clone());
        }
    }

    /// Whether a lane is open.
    #[cfg(test)]
    pub(super) fn is_lane_open(&self, lane: usize) -> bool {
        self.shared.peek().connection.is_lane_open(lane)
    }

    /// Returns the next event that belongs to no request.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.shared.peek().connection.poll_event()
    }

    /// Reports that the peer has ended: once everything that it has sent is received, the queue pair fails.
    pub fn expect_end(&self) {
        let mut context = self.shared.lock();
        context.lane_timeout = Some(Duration::ZERO);
        if !context.has_connected() {
            context.connection.handle_lanes_lost();
        }
    }

    /// Moves the queue pair to [`QueuePairState::Error`]: all requests complete as flushed.
    pub fn fail(&self) {
        self.shared.lock().connection.fail();
    }
}

impl Observable for QueuePair {
    fn source(&self) -> Arc<dyn SnapshotSource> {
        Arc::new(Source(self.shared.numbers.clone()))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(numbers) = &self.shared.numbers {
            numbers.close();
        }
        self.manager.cancel(self.number());
        // In this order: memory is deregistered once no queue pair that the device knows writes to it.
        self.shared.end_lanes();
        self.shared.progress.remove(self.number());
        self.manager.release(self.number());
    }
}

impl QueuePairConfig {
    /// Returns the configuration of a queue pair whose requests complete in one queue, with default limits.
    pub fn new(domain: Arc<ProtectionDomain>, completions: Arc<CompletionQueue>) -> QueuePairConfig {
        QueuePairConfig {
            domain,
            send_queue: Arc::clone(&completions),
            receive_queue: completions,
            shared_receive_queue: None,
            limits: Limits::default(),
            write_id: None,
            outlives_peer: false,
            keeps_completions: false,
            on_completion: None,
            on_event: None,
            on_end: None,
        }
    }

    fn connection(&self) -> ReliableConnection {
        let shared = self.shared_receive_queue.as_ref().map(|shared| Arc::clone(shared.queue()));
        let mut connection = ReliableConnection::new(Arc::clone(&self.domain), self.limits, shared);
        if let Some(id) = self.write_id {
            connection.spare_receives(id);
        }
        connection
    }
}

impl SharedQueuePair {
    fn lock(&self) -> Guard<'_, SharedQueuePair> {
        self.guard(self.peek())
    }

    fn guard<'a>(&'a self, context: MutexGuard<'a, QueuePairContext>) -> Guard<'a, SharedQueuePair> {
        Guard::new(self, context, &self.progress)
    }

    /// Locks for a driver.
    fn lock_in_turn(&self) -> Guard<'_, SharedQueuePair> {
        Guard::for_driver(self, self.peek())
    }

    /// Locks without a guard. The access finishes no request, or the caller then takes a guard, or drops what has
    /// finished.
    fn peek(&self) -> MutexGuard<'_, QueuePairContext> {
        self.progress.lock(&self.context)
    }

    /// Ends the lanes in order, and drops the completions, unless the program can still read them.
    fn end_lanes(&self) {
        let mut context = self.peek();
        // The peer can have sent requests that this end has not seen.
        context.receive(true);
        context.connection.announce_end();
        // An acknowledgment can wait for the next turn, which will not come.
        context.transmit();
        if self.config.keeps_completions {
            self.report_completions(&mut context);
        }
        context.drop_lanes();
        context.connection = self.config.connection();
        if let Some(observer) = &mut context.observer {
            observer.reset();
        }
        drop(context);
        self.progress.wake_tasks();
        if !self.config.keeps_completions {
            self.config.send_queue.forget(self.number);
            self.config.receive_queue.forget(self.number);
        }
    }

    /// If the connection has refused a request for lack of a shared receive, the next one continues it.
    fn wait_for_receive(&self, context: &mut QueuePairContext) {
        let Some(shared) = &self.config.shared_receive_queue else { return };
        if context.connection.awaits_shared_receive() && !context.awaits_receive {
            context.awaits_receive = true;
            shared.wait(Weak::<SharedQueuePair>::clone(&self.weak));
            // A receive can have been posted before the queue pair was in the list.
            if context.connection.pending() != Pending::Nothing
                && let Some(driven) = self.weak.upgrade()
            {
                let driven: Arc<dyn Driven> = driven;
                self.progress.mark_pending(&driven);
            }
        }
    }

    /// Passes the next deadline to the manager.
    fn arm(&self, context: &mut QueuePairContext) {
        let deadline = context.deadline();
        if deadline != context.armed {
            context.armed = deadline;
            if let Some(deadline) = deadline {
                self.manager.arm(deadline, Weak::<SharedQueuePair>::clone(&self.weak));
            }
        }
    }
}

impl Settle for SharedQueuePair {
    type State = QueuePairContext;

    /// If a completion queue has overrun, the queue pair fails. A failed queue pair ends its lanes. Lanes that have ended
    /// are opened again.
    fn settle(&self, context: &mut QueuePairContext) {
        if let Some(observer) = &mut context.observer {
            observer.update(&mut context.connection);
        }
        self.report_completions(context);
        if let Some(on_event) = &self.config.on_event {
            while let Some(event) = context.connection.poll_event() {
                on_event(self.number, event);
            }
        }
        if context.connection.state() == QueuePairState::Error {
            if let Some(on_end) = self.config.on_end.as_ref().filter(|_| !context.has_ended) {
                on_end();
            }
            context.has_ended = true;
            context.drop_closed_lanes();
            if context.connection.pending() == Pending::Nothing {
                context.shutdown();
            }
        }
        if std::mem::take(&mut context.lacks_lane) {
            context.missing_lanes().for_each(|lane| self.manager.open_lane(self.number, lane));
        }
        self.wait_for_receive(context);
        self.arm(context);
    }
}

impl SharedQueuePair {
    fn open_local(&self, lane: Box<dyn Lane>, parameters: &ConnectionParameters) {
        let is_open = self.peek().open_local(lane, parameters);
        self.start_using(0, is_open);
    }

    /// Adds a new lane to the ones that the device drives.
    fn start_using(&self, index: u8, is_open: bool) {
        let Some(driven) = self.weak.upgrade() else { return };
        let driven: Arc<dyn Driven> = driven;
        let mut context = self.lock();
        if is_open
            && let Some(lane) = context.lane(index)
            && let Err(error) = self.progress.watch(self.number, lane.descriptor())
        {
            context.lose_lane(index.into(), &error.to_string());
        }
        self.progress.mark_pending(&driven);
    }
}

impl LaneOwner for SharedQueuePair {
    fn start_lane(&self, lane: u8) -> Option<LaneAttempt> {
        self.peek().start_lane(lane)
    }

    fn offer_lane(&self, hello: &Hello, parameters: &ConnectionParameters) -> Option<LaneAttempt> {
        self.peek().offer_lane(hello, parameters)
    }

    fn accept_lane(&self, hello: &Hello, parameters: &ConnectionParameters) -> Option<LaneAttempt> {
        self.lock().accept_lane(hello, parameters)
    }

    fn open_lane(&self, lane: Box<dyn Lane>, hello: &Hello, parameters: &ConnectionParameters) {
        let is_open = self.peek().open_lane(lane, hello, parameters);
        self.start_using(hello.lane, is_open);
    }

    fn check_deadline(&self) {
        self.lock().check();
    }
}

impl Driven for SharedQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn revoke(&self, region: &Arc<MemoryRegion>) {
        let mut context = self.lock_in_turn();
        context.connection.revoke(region);
        context.drop_closed_lanes();
    }

    fn mark_pending(&self) -> bool {
        // A read first: it is mostly marked, and only a driver that then takes the lock clears it.
        !self.is_pending.load(Ordering::Relaxed) && !self.is_pending.swap(true, Ordering::Relaxed)
    }

    fn send_pending(&self) -> bool {
        self.is_pending.store(false, Ordering::Relaxed);
        let mut context = self.lock_in_turn();
        context.awaits_receive = false;
        context.transmit();
        context.is_unread
    }

    fn try_drive(&self) -> bool {
        let Some(context) = self.context.try_lock() else { return false };
        let mut context = Guard::for_driver(self, context);
        context.receive(false);
        let pending = context.connection.pending();
        if pending == Pending::Data {
            context.transmit();
        }
        pending == Pending::Acknowledgment || context.is_unread
    }

    fn drive(&self) -> bool {
        let mut context = self.lock_in_turn();
        context.receive(true);
        context.transmit();
        context.is_unread
    }
}

fn allowed(context: &QueuePairContext, is_allowed: bool) -> Result<(), ModifyError> {
    if is_allowed { Ok(()) } else { Err(ModifyError::State(context.connection.state())) }
}

/// Time without a lane after which a queue pair fails that connects to an address.
const LANE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of unsent requests that are sent without waiting for a poll, so that the peer processes them in the meantime.
const BATCH: usize = 64;
