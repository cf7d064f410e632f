//! Queue pairs of a device: a reliable connection over a lane, used by any thread.
//!
//! Invariant: completions enter their queues in the order in which the connection finished the requests.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use isolane_connection::{ReceivePlan, TransmitPlan};
use parking_lot::{Mutex, MutexGuard};

use super::completion_queue::{CompletionQueue, WorkCompletion};
use super::lane::Lane;
use super::progress::{Member, Progress};
use crate::connection::{AsyncEvent, Pending, PostError, Queue, ReliableConnection, State};
use crate::work::{ReceiveRequest, SendRequest};

/// A queue pair. Dropping it ends its lane.
pub struct QueuePair {
    endpoint: Arc<Endpoint>,
    progress: Arc<Progress>,
}

/// The part of a queue pair that the drivers of its device share.
struct Endpoint {
    number: u32,
    machine: Mutex<Machine>,
    /// It is in the list of queue pairs with something to send.
    is_pending: AtomicBool,
}

struct Machine {
    number: u32,
    connection: ReliableConnection,
    /// `None` once the lane has ended.
    lane: Option<Box<dyn Lane>>,
    overflow: Box<[u8; OVERFLOW_BYTES]>,
    /// The last receive ended before the lane was empty.
    is_unread: bool,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
}

impl QueuePair {
    pub(super) fn new(
        progress: Arc<Progress>,
        number: u32,
        connection: ReliableConnection,
        lane: Box<dyn Lane>,
        send_queue: Arc<CompletionQueue>,
        receive_queue: Arc<CompletionQueue>,
    ) -> io::Result<QueuePair> {
        let overflow = Box::new([0; OVERFLOW_BYTES]);
        let lane = Some(lane);
        let machine =
            Machine { number, connection, lane, overflow, is_unread: false, send_queue, receive_queue };
        let endpoint = Endpoint { number, machine: Mutex::new(machine), is_pending: AtomicBool::new(false) };
        let endpoint = Arc::new(endpoint);
        progress.add(endpoint.clone())?;
        Ok(QueuePair { endpoint, progress })
    }

    /// Number of the queue pair, by which its completions name it.
    pub fn number(&self) -> u32 {
        self.endpoint.number
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.lock().connection.state()
    }

    /// Posts a send request. It is sent at once if nothing else is outstanding, otherwise together with others by the
    /// next poll.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        let mut machine = self.lock();
        machine.connection.post_send(request)?;
        let is_only_one = machine.connection.outstanding_sends() == 1;
        self.send(&mut machine, is_only_one);
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let mut machine = self.lock();
        machine.connection.post_receive(request)?;
        // The peer can wait for it.
        match machine.connection.pending() {
            Pending::Nothing => machine.finish(),
            _ => self.send(&mut machine, false),
        }
        Ok(())
    }

    /// Sends now if `is_urgent`, or if no thread polls that would send soon; otherwise with the next poll.
    fn send(&self, machine: &mut Machine, is_urgent: bool) {
        if self.progress.is_shared() && (is_urgent || self.progress.sends_at_once()) {
            machine.transmit();
        } else {
            let member: Arc<dyn Member> = self.endpoint.clone();
            self.progress.mark_pending(&member);
        }
        machine.finish();
    }

    /// Returns the next event that belongs to no request.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.lock().connection.poll_event()
    }

    /// Moves the queue pair to [`State::Error`]: all requests complete as flushed.
    pub fn fail(&self) {
        let mut machine = self.lock();
        machine.connection.fail();
        machine.finish();
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.progress.lock(&self.endpoint.machine)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.progress.remove(self.endpoint.number);
        let mut machine = self.lock();
        // An acknowledgment can wait for the next turn, which will not come.
        machine.transmit();
        machine.lane = None;
        machine.send_queue.forget(self.endpoint.number);
        machine.receive_queue.forget(self.endpoint.number);
    }
}

impl Member for Endpoint {
    fn number(&self) -> u32 {
        self.number
    }

    fn with_descriptor(&self, register: &dyn Fn(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        let machine = self.machine.lock();
        machine.lane.as_ref().map_or(Ok(()), |lane| register(lane.descriptor()))
    }

    fn mark_pending(&self) -> bool {
        !self.is_pending.swap(true, Ordering::Relaxed)
    }

    fn send_pending(&self, progress: &Progress) -> bool {
        self.is_pending.store(false, Ordering::Relaxed);
        let mut machine = progress.lock(&self.machine);
        machine.transmit();
        machine.finish();
        machine.is_unread
    }

    fn try_drive(&self) -> bool {
        let Some(mut machine) = self.machine.try_lock() else { return false };
        machine.receive(false);
        let pending = machine.connection.pending();
        if pending == Pending::Data {
            machine.transmit();
        }
        machine.finish();
        pending == Pending::Acknowledgment || machine.is_unread
    }

    fn drive(&self, progress: &Progress) -> (Option<Instant>, bool) {
        let mut machine = progress.lock(&self.machine);
        machine.receive(true);
        machine.transmit();
        machine.finish();
        (machine.connection.deadline(), machine.is_unread)
    }
}

impl Machine {
    /// Receives until the lane is empty: until a receive finds nothing if `is_drained`, otherwise until it finds little.
    fn receive(&mut self, is_drained: bool) {
        for attempt in 0..=MAX_RECEIVES {
            let Some(lane) = &mut self.lane else { return };
            if attempt == MAX_RECEIVES {
                self.is_unread = true;
                break;
            }
            let mut plan = ReceivePlan::new();
            self.connection.fill_receive_plan(&mut self.overflow[..], &mut plan);
            let received = lane.receive(&mut plan);
            drop(plan);
            match received {
                Ok(0) => return self.lose_lane("the peer has closed it"),
                Ok(count) => {
                    self.connection.handle_received(count, &self.overflow[..], Instant::now());
                    if !is_drained && count < OVERFLOW_BYTES {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_unread = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose_lane(&error.to_string()),
            }
        }
        if let Some(deadline) = self.connection.deadline() {
            let now = Instant::now();
            if deadline <= now {
                self.connection.handle_timeout(now);
            }
        }
    }

    /// Sends until everything is sent or the lane is full.
    fn transmit(&mut self) {
        while let Some(lane) = &mut self.lane {
            let mut plan = TransmitPlan::new();
            self.connection.fill_transmit_plan(&mut plan);
            if plan.bytes() == 0 {
                return;
            }
            let sent = lane.send(&plan);
            drop(plan);
            match sent {
                Ok(count) => self.connection.handle_transmitted(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose_lane(&error.to_string()),
            }
        }
    }

    fn lose_lane(&mut self, reason: &str) {
        log::debug!("queue pair {}: its lane has ended: {reason}", self.number);
        (self.lane, self.is_unread) = (None, false);
        self.connection.handle_lane_lost();
    }

    /// Moves completions to their queues. If one has overrun, the queue pair fails. A failed queue pair ends its lane,
    /// so that the peer's requests fail too.
    fn finish(&mut self) {
        while let Some((queue, completion)) = self.connection.poll_completion() {
            let completions = match queue {
                Queue::Send => &self.send_queue,
                Queue::Receive => &self.receive_queue,
            };
            if !completions.push(WorkCompletion { queue_pair: self.number, completion }) {
                self.connection.fail();
            }
        }
        if self.connection.state() == State::Error
            && self.connection.pending() == Pending::Nothing
            && let Some(lane) = &mut self.lane
        {
            lane.shutdown();
        }
    }
}

/// Bytes received beyond the current payload, which are copied.
const OVERFLOW_BYTES: usize = 4096;
/// Number of receives after which other lanes have their turn.
const MAX_RECEIVES: usize = 64;
