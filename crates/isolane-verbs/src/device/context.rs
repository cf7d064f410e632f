//! Context of a queue pair: its state under its lock: the connection, and the byte streams of its lanes.
//!
//! Invariant: a lane is here if and only if it is open in the connection.

use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};

use isolane_connection::{ReceivePlan, TransmitPlan};
use rustix::io::Errno;

use super::handshake::{LaneAttempt, received};
use super::lane::Lane;
use crate::connection::{Received, ReliableConnection};
use crate::observed::Observer;
use crate::types::ConnectionParameters;
use crate::wire::Hello;

/// A connection and its lanes.
pub(super) struct QueuePairContext {
    pub(super) number: u32,
    pub(super) connection: ReliableConnection,
    lanes: Vec<Option<Box<dyn Lane>>>,
    /// A lane has ended, or is missing, and should be opened again.
    pub(super) lacks_lane: bool,
    /// Nonce of the peer's queue pair, which another one with the same number does not know.
    peer_nonce: Option<[u8; 16]>,
    pub(super) outlives_peer: bool,
    /// The program knows that it has failed.
    pub(super) has_ended: bool,
    /// The last receive ended before the lanes were empty.
    pub(super) is_unread: bool,
    /// It is in the list of queue pairs that wait for a shared receive.
    pub(super) awaits_receive: bool,
    /// Number of the first message, once it is known: from the peer, or from the program.
    first_message: Option<u32>,
    /// Requests fail after this time without a lane, unless it is `None`.
    pub(super) lane_timeout: Option<Duration>,
    /// When requests without a lane fail.
    lane_deadline: Option<Instant>,
    /// When to probe the lanes.
    probe_at: Option<Instant>,
    /// The deadline that the manager checks.
    pub(super) armed: Option<Instant>,
    /// Records the stages of requests, if the device is observed.
    pub(super) observer: Option<Box<Observer>>,
}

impl QueuePairContext {
    pub(super) fn new(number: u32, connection: ReliableConnection, outlives_peer: bool) -> QueuePairContext {
        QueuePairContext {
            number,
            connection,
            lanes: Vec::new(),
            lacks_lane: false,
            peer_nonce: None,
            outlives_peer,
            has_ended: false,
            is_unread: false,
            awaits_receive: false,
            first_message: None,
            lane_timeout: None,
            lane_deadline: None,
            probe_at: None,
            armed: None,
            observer: None,
        }
    }

    /// Whether requests wait for a lane that could be opened again, or a queue pair without requests that does not
    /// outlive its peer.
    fn must_wait(&self) -> bool {
        let has_lost_peer = || !self.outlives_peer && self.peer_nonce.is_some() && self.wants_lanes();
        !self.has_lane() && (self.connection.outstanding_sends() > 0 || has_lost_peer())
    }

    /// Returns when to call [`QueuePairContext::check`].
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        self.lane_deadline = match self.lane_deadline {
            _ if !self.must_wait() => None,
            None => self.lane_timeout.map(|lane_timeout| Instant::now() + lane_timeout),
            deadline => deadline,
        };
        self.probe_at = match self.probe_at {
            _ if !self.connection.awaits_lanes() && !self.observes_lanes() => None,
            None => Some(Instant::now() + PROBE_INTERVAL),
            probe_at => probe_at,
        };
        [self.lane_deadline, self.probe_at, self.connection.deadline()].into_iter().flatten().min()
    }

    /// Whether lanes are probed to compare them.
    fn observes_lanes(&self) -> bool {
        self.observer.is_some() && self.connection.lanes() > 1 && self.wants_lanes()
    }

    /// Handles the deadlines that have passed.
    pub(super) fn check(&mut self) {
        let now = Instant::now();
        self.armed = None;
        if self.lane_deadline.is_some_and(|deadline| deadline <= now) {
            self.connection.handle_lanes_lost();
        }
        if self.probe_at.take_if(|probe_at| *probe_at <= now).is_some() {
            if self.connection.awaits_lanes() {
                self.connection.probe_lanes();
                self.drop_closed_lanes();
            }
            if self.observes_lanes()
                && let Some(observer) = &mut self.observer
            {
                observer.probe(&mut self.connection, now);
            }
        }
        self.connection.handle_timeout(now);
        self.transmit();
    }

    fn is_active(&self) -> bool {
        self.connection.state().is_connected()
    }

    /// Whether lanes that have ended are opened again.
    fn wants_lanes(&self) -> bool {
        self.is_active() && !self.connection.peer_has_ended()
    }

    /// Whether a lane was open.
    pub(super) fn has_connected(&self) -> bool {
        self.peer_nonce.is_some()
    }

    fn has_lane(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    /// Returns the lanes that should be opened.
    pub(super) fn missing_lanes(&self) -> impl Iterator<Item = u8> {
        let lanes = if self.wants_lanes() { self.connection.lanes() } else { 0 };
        (0..lanes).filter(|lane| !self.connection.is_lane_open(*lane)).map(|lane| lane as u8)
    }

    /// Starts to open a lane.
    pub(super) fn start_lane(&mut self, lane: u8) -> Option<LaneAttempt> {
        if !self.wants_lanes() {
            return None;
        }
        let (epoch, received) = self.connection.start_lane(lane.into())?;
        Some(LaneAttempt { lane, epoch, received })
    }

    /// A peer that has not proved its key asks for a lane. `None` if it must not open it. The epoch is 0 if the lane is open.
    pub(super) fn offer_lane(&self, hello: &Hello, parameters: &ConnectionParameters) -> Option<LaneAttempt> {
        let index = usize::from(hello.lane);
        let is_known = match self.peer_nonce {
            None => hello.lane == 0,
            Some(nonce) => nonce == hello.nonce && self.fits(hello, parameters),
        };
        if !self.wants_lanes() || !is_known || hello.epoch <= self.connection.lane_epoch(index) {
            return None;
        }
        // The report of an open lane changes before the proof arrives.
        let (epoch, received) = self
            .connection
            .lane_report(index)
            .map_or((0, Received::default()), |received| (hello.epoch, received));
        Some(LaneAttempt { lane: hello.lane, epoch, received })
    }

    /// The peer opens a lane. `None` if it must not.
    pub(super) fn accept_lane(
        &mut self,
        hello: &Hello,
        parameters: &ConnectionParameters,
    ) -> Option<LaneAttempt> {
        if !self.wants_lanes() || !self.is_from_peer(hello, parameters) {
            return None;
        }
        let received = self.connection.accept_lane(hello.lane.into(), hello.epoch)?;
        self.drop_closed_lanes();
        Some(LaneAttempt { lane: hello.lane, epoch: hello.epoch, received })
    }

    /// Takes a lane that both ends have agreed on. Returns whether it is open.
    pub(super) fn open_lane(
        &mut self,
        lane: Box<dyn Lane>,
        hello: &Hello,
        parameters: &ConnectionParameters,
    ) -> bool {
        let index = usize::from(hello.lane);
        let is_current = self.connection.lane_epoch(index) == hello.epoch;
        if !self.is_active() || !is_current || !self.is_from_peer(hello, parameters) {
            return false;
        }
        self.put_lane(index, lane, received(hello));
        self.expect_first_message(parameters.first_message);
        true
    }

    /// Takes a lane whose other end is in this process.
    pub(super) fn open_local(&mut self, lane: Box<dyn Lane>, parameters: &ConnectionParameters) -> bool {
        let is_first = self.is_active() && self.lanes.is_empty() && self.start_lane(0).is_some();
        if is_first {
            self.connection.handle_parameters(parameters);
            self.peer_nonce = Some([0; 16]);
            self.put_lane(0, lane, Received::default());
            self.expect_first_message(parameters.first_message);
        }
        is_first
    }

    fn put_lane(&mut self, index: usize, lane: Box<dyn Lane>, received: Received) {
        self.connection.handle_lane_open(index, received);
        if let Some(observer) = &mut self.observer {
            observer.open_lane(index, lane.descriptor());
        }
        let count = self.connection.lanes();
        self.lanes.resize_with(count, || None);
        self.lanes[index] = Some(lane);
        let is_incomplete = self.missing_lanes().next().is_some();
        self.lacks_lane |= is_incomplete;
        self.drop_closed_lanes();
    }

    /// Whether a hello is from the queue pair of the first one.
    fn is_from_peer(&mut self, hello: &Hello, parameters: &ConnectionParameters) -> bool {
        if self.peer_nonce.is_none() {
            self.connection.handle_parameters(parameters);
        }
        let nonce = self.peer_nonce.get_or_insert(hello.nonce);
        *nonce == hello.nonce && self.fits(hello, parameters)
    }

    /// Whether the lane of a hello is one of the queue pair, as the ends have agreed.
    fn fits(&self, hello: &Hello, parameters: &ConnectionParameters) -> bool {
        usize::from(hello.lane) < self.connection.lanes()
            && parameters.checksums == self.connection.has_checksums()
    }

    /// The lane with an index.
    pub(super) fn lane(&self, index: u8) -> Option<&dyn Lane> {
        self.lanes.get(usize::from(index))?.as_deref()
    }

    /// Receives until the lanes are empty: until a receive finds nothing if `is_drained`, otherwise until it finds
    /// little.
    pub(super) fn receive(&mut self, is_drained: bool) {
        OVERFLOW.with_borrow_mut(|overflow| {
            self.is_unread = false;
            for index in 0..self.lanes.len() {
                self.is_unread |= self.receive_from(index, overflow, is_drained);
            }
        });
    }

    /// Receives from a lane. Returns whether something is left unread.
    fn receive_from(&mut self, index: usize, overflow: &mut [u8], is_drained: bool) -> bool {
        for _ in 0..MAX_RECEIVES {
            let Some(Some(lane)) = self.lanes.get_mut(index) else { return false };
            let mut plan = ReceivePlan::new();
            let capacity = self.connection.fill_receive_plan(index, overflow, &mut plan);
            let received = lane.receive(&mut plan);
            drop(plan);
            match received {
                Ok(0) => {
                    self.lose_lane(index, "the peer has closed it");
                    return false;
                }
                Ok(count) => {
                    self.connection.handle_received(index, count, overflow, Instant::now());
                    self.drop_closed_lanes();
                    if !is_drained && count < capacity {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_fault(&error) && self.connection.handle_unmapped_input(index) => {}
                Err(error) => {
                    self.lose_lane(index, &error.to_string());
                    return false;
                }
            }
        }
        true
    }

    /// Sends until everything is sent or the lanes are full.
    pub(super) fn transmit(&mut self) {
        for index in 0..self.lanes.len() {
            self.transmit_on(index);
        }
    }

    fn transmit_on(&mut self, index: usize) {
        while let Some(Some(lane)) = self.lanes.get_mut(index) {
            let mut plan = TransmitPlan::new();
            self.connection.fill_transmit_plan(index, &mut plan);
            if plan.bytes() == 0 {
                drop(plan);
                return self.drop_closed_lanes();
            }
            let started = self.observer.as_ref().map(|_| Instant::now());
            let sent = lane.send(&plan);
            drop(plan);
            if let Ok(count) = sent {
                self.connection.handle_transmitted(index, count);
            }
            if let (Some(observer), Some(started)) = (&mut self.observer, started) {
                observer.sent(&self.connection, started, index, sent.as_ref().map_or(0, |count| *count));
            }
            match sent {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if is_fault(&error) {
                        self.connection.handle_unmapped_output(index);
                    }
                    return self.lose_lane(index, &error.to_string());
                }
            }
        }
    }

    /// Ends the outgoing direction of all lanes.
    pub(super) fn shutdown(&mut self) {
        self.lanes.iter_mut().flatten().for_each(|lane| lane.shutdown());
    }

    /// Ends all lanes.
    pub(super) fn drop_lanes(&mut self) {
        self.lanes.clear();
        (self.first_message, self.peer_nonce) = (None, None);
        (self.lane_deadline, self.is_unread, self.lacks_lane) = (None, false, false);
        self.has_ended = false;
    }

    pub(super) fn lose_lane(&mut self, index: usize, reason: &str) {
        log::debug!("queue pair {}: lane {index} has ended: {reason}", self.number);
        self.connection.handle_lane_closed(index);
        self.drop_closed_lanes();
    }

    /// Drops the lanes that have ended, so that nothing more is read from them.
    pub(super) fn drop_closed_lanes(&mut self) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.is_some() && !self.connection.is_lane_open(index) {
                (*lane, self.lacks_lane) = (None, true);
            }
        }
        if self.connection.peer_has_ended() && !self.outlives_peer && !self.has_lane() {
            self.connection.handle_lanes_lost();
        }
    }

    /// Ends the lanes if the peer and the program do not name the same first message.
    pub(super) fn expect_first_message(&mut self, first_message: u32) {
        let expected = *self.first_message.get_or_insert(first_message);
        if expected != first_message {
            log::debug!("queue pair {}: its first message is {first_message}, not {expected}", self.number);
            self.connection.handle_lanes_lost();
        }
    }
}

/// Whether the kernel has found memory that is not mapped.
fn is_fault(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::FAULT)
}

thread_local! {
    /// Received bytes that have no place yet. A connection that has processed them refers to none of them.
    static OVERFLOW: RefCell<Vec<u8>> = RefCell::new(vec![0; OVERFLOW_BYTES]);
}
/// Number of receives after which other lanes have their turn.
const MAX_RECEIVES: usize = 64;
/// Length of [`OVERFLOW`] in bytes.
const OVERFLOW_BYTES: usize = 64 * 1024;
/// Time between two probes of the lanes of a queue pair.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::super::lane::MemoryLane;
    use super::*;
    use crate::memory::Access;
    use crate::types::ConnectionParameters;
    use crate::types::{Limits, LocalData, ReceiveAttributes, SendAttributes, SendOperation, SendRequest};

    fn parameters(lanes: u8) -> ConnectionParameters {
        ConnectionParameters {
            first_message: 1,
            peer_first_message: 1,
            peer_segment_bytes: 1 << 20,
            peer_responder_resources: 1,
            peer_shares_receives: false,
            lanes,
            checksums: false,
        }
    }

    /// Returns a connected queue pair whose peer has gone without a word.
    fn abandoned(outlives_peer: bool) -> QueuePairContext {
        let connection = ReliableConnection::new(Default::default(), Limits::default(), None);
        let mut context = QueuePairContext::new(1, connection, outlives_peer);
        context.lane_timeout = Some(Duration::from_secs(1));
        assert!(context.connection.initialize(Access::ALL));
        assert!(context.connection.start_receiving(&ReceiveAttributes::default()));
        assert!(context.connection.start_sending(&SendAttributes::default()));
        let parameters = parameters(1);
        let (near, far) = MemoryLane::pair().unwrap();
        assert!(context.open_local(Box::new(near), &parameters));
        assert_eq!(context.deadline(), None);
        drop(far);
        context.receive(true);
        context
    }

    #[test]
    fn waits_for_lost_peer_only_with_requests() {
        let mut context = abandoned(true);
        assert_eq!(context.deadline(), None);
        let data = LocalData::Inline(Vec::new());
        let operation = SendOperation::Write { address: 0, rkey: 0, immediate: None };
        let request = SendRequest { id: 1, operation, data, signaled: true, solicited: false, fenced: false };
        context.connection.post_send(request).unwrap();
        assert!(context.deadline().is_some());
        assert!(abandoned(false).deadline().is_some());
    }

    #[test]
    fn accepts_only_lanes_that_both_ends_have_agreed_on() {
        let mut context = abandoned(true);
        let hello =
            Hello { lanes: 8, responder_resources: 1, epoch: 2, first_message: 1, ..Hello::example() };
        let parameters = parameters(8);
        for lane in [1, 7, 255] {
            let hello = Hello { lane, ..hello.clone() };
            assert!(context.accept_lane(&hello, &parameters).is_none(), "lane {lane}");
            assert!(context.offer_lane(&hello, &parameters).is_none(), "lane {lane}");
        }
        let with_checksums = ConnectionParameters { checksums: true, ..parameters };
        assert!(context.accept_lane(&hello, &with_checksums).is_none());
        let late = Hello { epoch: 1, ..hello.clone() };
        assert!(context.accept_lane(&late, &parameters).is_none(), "an epoch that has passed");
        assert!(context.accept_lane(&hello, &parameters).is_some());
    }
}
