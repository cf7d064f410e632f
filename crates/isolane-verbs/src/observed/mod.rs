//! Stages of the requests of a queue pair.
//!
//! Requests begin, are queued, and complete in the order of posting. So the counters of the connection show how far
//! each request has come, and a request itself needs no times. The observer belongs to the state of the queue pair,
//! and is only there if the device is observed.
//!
//! Invariant: the first of the observed requests is the first one of the connection without a completion.

mod numbers;

use std::array;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_observe::cells::StageTimes;
use isolane_observe::stage::{Operation, SizeClass};

pub(crate) use self::numbers::{Numbers, Source};
use crate::connection::ReliableConnection;
use crate::types::{Completion, LocalData, SendOperation, SendRequest, Status};
use crate::wire::Hello;

const MAX_LANES: usize = Hello::MAX_LANES as usize;

/// The part of a request that the stages need.
#[derive(Clone, Copy)]
pub(crate) struct Posted {
    kind: (Operation, SizeClass),
    bytes: u64,
    is_signaled: bool,
    consumes_receive: bool,
    at: Instant,
}

impl Posted {
    /// Describes a request that is posted now.
    #[cold]
    pub(crate) fn new(request: &SendRequest) -> Posted {
        let bytes = match &request.data {
            LocalData::Inline(bytes) => bytes.len() as u64,
            LocalData::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        };
        let operation = match request.operation {
            SendOperation::Send { .. } => Operation::Send,
            SendOperation::Write { .. } => Operation::Write,
            SendOperation::Read { .. } => Operation::Read,
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => Operation::Atomic,
        };
        Posted {
            kind: (operation, SizeClass::from_len(bytes)),
            bytes,
            is_signaled: request.signaled,
            consumes_receive: request.operation.consumes_receive(),
            at: Instant::now(),
        }
    }
}

/// A posted request without a completion.
struct Request {
    posted: Posted,
    /// Time of [`Clock`] when it was posted; once it has begun, when that was.
    blocked: Duration,
    not_ready: Duration,
    begun: Option<Instant>,
    /// Lane of its last segment, and the number of bytes of the lane up to those that were queued with it.
    end: (usize, u64),
    accepted: Option<Instant>,
}

/// A request whose completion waits for the program.
pub(crate) struct Unfetched {
    numbers: Arc<Numbers>,
    posted: Posted,
    times: StageTimes,
    done: Instant,
}

impl Unfetched {
    /// Records the request: the program has fetched its completion.
    pub(crate) fn fetched(mut self) {
        self.times[POLL] = ns(Instant::now().saturating_duration_since(self.done));
        self.numbers.record(self.posted.kind, self.posted.bytes, &self.times);
    }
}

/// Total time in which the peer had no receive.
#[derive(Default)]
struct Clock {
    total: Duration,
    since: Option<Instant>,
}

impl Clock {
    fn at(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn set(&mut self, is_running: bool, now: Instant) {
        self.total = self.at(now);
        self.since = is_running.then_some(now);
    }
}

/// Observed state of a lane.
#[derive(Default)]
struct Lane {
    /// Number of bytes that the kernel has accepted.
    accepted: u64,
    /// When the probe was sent that is not answered.
    probed: Option<Instant>,
}

/// Observer of a queue pair.
pub(crate) struct Observer {
    numbers: Arc<Numbers>,
    requests: VecDeque<Request>,
    /// Number of requests that are sent in part, queued completely, and accepted by the kernel completely.
    begun: usize,
    queued: usize,
    accepted: usize,
    /// Completed requests whose completions are not in their queue.
    completed: VecDeque<Unfetched>,
    blocked: Clock,
    lanes: [Lane; MAX_LANES],
}

impl Observer {
    pub(crate) fn new(numbers: Arc<Numbers>) -> Observer {
        Observer {
            numbers,
            requests: VecDeque::new(),
            begun: 0,
            queued: 0,
            accepted: 0,
            completed: VecDeque::new(),
            blocked: Clock::default(),
            lanes: array::from_fn(|_| Lane::default()),
        }
    }

    /// Adds a request that was posted.
    #[cold]
    pub(crate) fn push(&mut self, posted: Posted) {
        if self.requests.is_empty() {
            self.numbers.set_oldest(Some(posted.at));
        }
        let blocked = self.blocked.at(posted.at);
        let (not_ready, begun, end, accepted) = (Duration::ZERO, None, (0, 0), None);
        self.requests.push_back(Request { posted, blocked, not_ready, begun, end, accepted });
    }

    /// Observes that a lane has accepted `count` bytes of a send that began at `started`.
    #[cold]
    pub(crate) fn sent(
        &mut self,
        connection: &ReliableConnection,
        started: Instant,
        lane: usize,
        count: usize,
    ) {
        let now = Instant::now();
        self.complete(connection, now);
        self.lanes[lane].accepted += count as u64;
        self.numbers.set_sent(lane, self.lanes[lane].accepted);
        let end = self.lanes[lane].accepted + connection.pending_bytes(lane) as u64;
        let begun = connection.begun_sends().min(self.requests.len());
        for request in self.requests.range_mut(self.begun.min(begun)..begun) {
            let blocked = self.blocked.at(started);
            request.not_ready = blocked.saturating_sub(request.blocked);
            (request.begun, request.blocked) = (Some(started), blocked);
        }
        let queued = begun.saturating_sub(usize::from(connection.is_sending()));
        self.requests
            .range_mut(self.queued.min(queued)..queued)
            .for_each(|request| request.end = (lane, end));
        (self.begun, self.queued) = (begun, queued);
        while let Some(request) = self.requests.get_mut(self.accepted)
            && self.accepted < queued
            && self.lanes[request.end.0].accepted >= request.end.1
        {
            request.accepted = Some(now);
            self.accepted += 1;
        }
    }

    /// Observes all other changes, before completions enter their queue.
    #[cold]
    pub(crate) fn update(&mut self, connection: &mut ReliableConnection) {
        let is_blocked = connection.awaits_receive();
        let answered = |lane: &(usize, &mut Lane)| lane.1.probed.is_some() && connection.take_answer(lane.0);
        let answered: Vec<(usize, &mut Lane)> = self.lanes.iter_mut().enumerate().filter(answered).collect();
        let has_completed = connection.outstanding_sends() < self.requests.len();
        if !has_completed && answered.is_empty() && is_blocked == self.blocked.since.is_some() {
            return;
        }
        let now = Instant::now();
        for (index, lane) in answered {
            if let Some(probed) = lane.probed.take() {
                self.numbers.add_round_trip(index, ns(now.saturating_duration_since(probed)));
            }
        }
        self.complete(connection, now);
        if is_blocked != self.blocked.since.is_some() {
            self.blocked.set(is_blocked, now);
        }
    }

    /// Removes the requests that have completed.
    fn complete(&mut self, connection: &ReliableConnection, now: Instant) {
        let count = self.requests.len().saturating_sub(connection.outstanding_sends());
        if count == 0 {
            return;
        }
        let shares_receives = connection.peer_shares_receives();
        let has_failed = !connection.state().is_connected();
        for request in self.requests.drain(..count) {
            let times = times_of(&request, &self.blocked, shares_receives, now);
            let posted = request.posted;
            if posted.is_signaled {
                let numbers = Arc::clone(&self.numbers);
                self.completed.push_back(Unfetched { numbers, posted, times, done: now });
            } else if !has_failed {
                self.numbers.record(posted.kind, posted.bytes, &times);
            }
        }
        for passed in [&mut self.begun, &mut self.queued, &mut self.accepted] {
            *passed = passed.saturating_sub(count);
        }
        self.numbers.set_oldest(self.requests.front().map(|request| request.posted.at));
    }

    /// Returns the request of a completion that enters its queue, unless it has failed.
    pub(crate) fn completed(&mut self, completion: &Completion) -> Option<Unfetched> {
        let next = self.completed.pop_front();
        if completion.status == Status::Success {
            return next;
        }
        // A failed request that is not signaled also has a completion.
        if let Some(next) = next {
            self.numbers.add_error(next.posted.kind);
        }
        None
    }

    /// Sends a probe on each lane whose last probe is answered.
    #[cold]
    pub(crate) fn probe(&mut self, connection: &mut ReliableConnection, now: Instant) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.probed.is_none() && connection.probe_lane(index) {
                lane.probed = Some(now);
            }
        }
    }

    /// Observes a new lane.
    pub(crate) fn open_lane(&mut self, index: usize, lane: BorrowedFd<'_>) {
        self.lanes[index] = Lane::default();
        self.numbers.open_lane(index, lane);
    }

    /// Forgets all requests.
    #[cold]
    pub(crate) fn reset(&mut self) {
        *self = Observer::new(Arc::clone(&self.numbers));
        self.numbers.set_oldest(None);
    }
}

/// Returns the stages of a request that has completed now, up to the last one.
fn times_of(request: &Request, blocked: &Clock, shares_receives: bool, now: Instant) -> StageTimes {
    let begun = request.begun.unwrap_or(now);
    let accepted = request.accepted.unwrap_or(now).max(begun);
    let wait = begun.saturating_duration_since(request.posted.at);
    let not_ready_before = match request.begun {
        Some(_) => request.not_ready,
        None => blocked.at(now).saturating_sub(request.blocked),
    };
    let not_ready_before = not_ready_before.min(wait);
    let ack = now.saturating_duration_since(accepted);
    // A peer that shares its receives reports a missing one after the request was sent.
    let is_late = shares_receives && request.posted.consumes_receive && request.begun.is_some();
    let not_ready_after =
        if is_late { blocked.at(now).saturating_sub(request.blocked).min(ack) } else { Duration::ZERO };
    let mut times = StageTimes::default();
    times[POST] = ns(wait - not_ready_before);
    times[NOT_READY] = ns(not_ready_before + not_ready_after);
    times[SEND] = ns(accepted.saturating_duration_since(begun));
    times[ACK] = ns(ack - not_ready_after);
    times
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Positions of the stages of [`isolane_observe::stage::Side::Verbs`].
const POST: usize = 0;
const NOT_READY: usize = 1;
const SEND: usize = 2;
const ACK: usize = 3;
const POLL: usize = 4;

#[cfg(test)]
mod tests {
    use isolane_observe::stage::{Side, Stage};

    use super::*;

    #[test]
    fn positions_are_those_of_the_side() {
        let stages = [
            (POST, Stage::Post),
            (NOT_READY, Stage::ReceiverNotReady),
            (SEND, Stage::Send),
            (ACK, Stage::Ack),
            (POLL, Stage::Poll),
        ];
        for (position, stage) in stages {
            assert_eq!(Side::Verbs.position_of(stage), Some(position));
        }
    }

    /// Returns the stages of a request that begins 10 ms after its post, is accepted after 20 ms, and completes after
    /// 100 ms. The peer had no receive for 4 ms before, and for 30 ms after it was sent.
    fn stages(shares_receives: bool) -> StageTimes {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let kind = (Operation::Send, SizeClass::Small);
        let posted = Posted { kind, bytes: 1, is_signaled: true, consumes_receive: true, at: start };
        let mut clock = Clock::default();
        clock.set(true, at(2));
        clock.set(false, at(6));
        let blocked = clock.at(at(10));
        let (begun, accepted) = (Some(at(10)), Some(at(20)));
        let request = Request { posted, blocked, not_ready: blocked, begun, end: (0, 0), accepted };
        clock.set(true, at(50));
        clock.set(false, at(80));
        times_of(&request, &clock, shares_receives, at(100))
    }

    #[test]
    fn wait_for_a_receive_is_no_part_of_another_stage() {
        let ms = |times: StageTimes| times.map(|ns| ns / 1_000_000);
        assert_eq!(ms(stages(false))[..5], [6, 4, 10, 80, 0]);
        assert_eq!(ms(stages(true))[..5], [6, 34, 10, 50, 0]);
    }
}
