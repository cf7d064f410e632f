//! Stages of the requests of a client: their timestamps, and the histograms that they are recorded in.
//!
//! | stage | from → to |
//! |---|---|
//! | `inbox` | a caller queues the request for the leader → the leader takes it; 0 for the leader's requests |
//! | `held` | → its first command may be sent: coalescing, a full queue, or a fence delays it |
//! | `send` | → the kernel has accepted the commands of the turn |
//! | `wait` | → the receive that delivered the first byte of the response |
//! | `data` | → the receive that completed the request |
//! | `deliver` | → the end of the turn, which wakes the callers |
//! | `wake` | → the caller's thread takes the completion; 0 for the leader, for futures, and for a [`Client`] |
//!
//! Requests whose commands are queued for the same send share a [`Mark`], and requests of one receive its time, so
//! that the clock is read four times a turn. Consecutive requests that complete alike are a [`Run`], which is recorded
//! once. Runs of other threads are recorded when these have taken their completions.
//!
//! A caller that has stages of its own takes the times of each request instead ([`Client::take_times`]).
//!
//! Invariant: the stages of a request add up to its total.
//!
//! [`Client`]: crate::Client
//! [`Client::take_times`]: crate::Client::take_times

use std::sync::Arc;

use isolane_observe::cells::StageTimes;
use isolane_observe::slow::{SlowRecord, SlowWriter};
use isolane_observe::stage::{Operation, SizeClass};
use isolane_reactor::clock;

use crate::caller_queue::CallerQueue;
use crate::observed::ClientCells;

/// Timestamps that requests share, in nanoseconds of the [`clock`]; 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// When a caller queued them for the leader.
    submitted: u64,
    /// When the leader took a request that was not sent with the next turn.
    held: u64,
    /// When the first of their commands was queued at its connection.
    queued: u64,
    /// When these could be sent, if coalescing has delayed them.
    begun: u64,
    /// When the kernel had accepted them.
    sent: u64,
    /// When the first byte of the response was received, if more followed later.
    first_byte: u64,
    /// Requests that refer to it.
    requests: u64,
}

/// Index of a mark.
type MarkId = u32;

/// The mark of requests that are not observed.
const NO_MARK: MarkId = 0;

/// The mark, the operation, and the blocks of one request, so that requests that are alike have the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// More blocks count as this number.
    const MAX_BLOCKS: u64 = (1 << 29) - 1;

    #[inline(always)]
    fn new(mark: MarkId, operation: Operation, blocks: u64) -> Key {
        Key(u64::from(mark) << 32 | (operation as u64) << 29 | blocks.min(Key::MAX_BLOCKS))
    }

    fn mark(self) -> MarkId {
        (self.0 >> 32) as MarkId
    }

    fn with_mark(self, mark: MarkId) -> Key {
        Key(self.0 & u64::from(u32::MAX) | u64::from(mark) << 32)
    }

    fn operation(self) -> Operation {
        Operation::ALL[(self.0 >> 29) as usize & 7]
    }

    fn blocks(self) -> u64 {
        self.0 & Key::MAX_BLOCKS
    }
}

/// The mark that requests join.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    id: MarkId,
    submitted: u64,
    /// Requests that are not counted in the mark.
    requests: u64,
}

/// A completion without a caller in another thread.
pub(crate) const NO_CALLER: u32 = u32::MAX;

/// The only command of a request, as a slow operation shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// First block.
    pub lba: u64,
    /// As [`SlowOperation::connection`]; 0 if several commands made up the request.
    pub connection: u64,
    pub cid: u16,
}

/// Consecutive requests that completed alike, in one receive.
#[derive(Clone, Copy, Debug)]
struct Run {
    key: Key,
    /// The command of the first one.
    command: Command,
    /// Index of the caller among those that the turn wakes; [`NO_CALLER`] without one.
    caller: u32,
    received: u64,
    count: u64,
}

/// No run, which no request continues.
const NO_RUN: Run = Run {
    key: Key(u64::MAX),
    command: Command { lba: 0, connection: 0, cid: 0 },
    caller: NO_CALLER,
    received: 0,
    count: 0,
};

/// A run that was handed to the thread of a caller.
#[derive(Debug)]
struct Handed {
    caller: Arc<CallerQueue>,
    at: u64,
    times: StageTimes,
    run: Run,
}

/// Position of the last stage.
const WAKE: usize = 6;

/// Consecutive successful requests that completed alike.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// Number of requests.
    pub count: u64,
    /// Kind of the requests.
    pub operation: Operation,
    /// Length of each in bytes.
    pub bytes: u64,
    /// Durations of the stages of [`isolane_observe::stage::Side::Host`], in nanoseconds.
    pub stages: StageTimes,
    /// End of the last stage on the [`clock`].
    pub at: u64,
}

/// What happens with the times of completed requests.
#[derive(Debug)]
enum Sink {
    /// Nothing is recorded.
    Off,
    Cells(Arc<ClientCells>),
    /// Times that the caller of the client takes.
    Caller(Vec<RequestTimes>),
}

/// Timestamps of a client, taken by the thread that drives it.
#[derive(Debug)]
pub(crate) struct Observer {
    sink: Sink,
    slow: SlowWriter,
    block_bytes: u64,
    /// The first one is [`NO_MARK`].
    marks: Vec<Mark>,
    free: Vec<u32>,
    /// Marks of the next send: of commands that coalescing can delay, and of all others.
    open: [Vec<u32>; 2],
    current: [Current; 2],
    received: u64,
    /// Runs of the turn before the last one.
    runs: Vec<Run>,
    last: Run,
    handed: Vec<Handed>,
    /// Address of the queue of the thread that leads, which takes its completions without a wakeup.
    leader: usize,
}

impl Default for Observer {
    fn default() -> Observer {
        Observer::new(false, 1)
    }
}

impl Observer {
    pub(crate) fn new(is_on: bool, block_bytes: u32) -> Observer {
        Observer {
            sink: if is_on { Sink::Cells(Arc::default()) } else { Sink::Off },
            slow: SlowWriter::default(),
            block_bytes: u64::from(block_bytes),
            marks: vec![Mark::default()],
            free: Vec::new(),
            open: [Vec::new(), Vec::new()],
            current: [Current::default(); 2],
            received: 0,
            runs: Vec::new(),
            last: NO_RUN,
            handed: Vec::new(),
            leader: 0,
        }
    }

    pub(crate) fn cells(&self) -> Option<&Arc<ClientCells>> {
        match &self.sink {
            Sink::Cells(cells) => Some(cells),
            Sink::Off | Sink::Caller(_) => None,
        }
    }

    fn is_off(&self) -> bool {
        matches!(self.sink, Sink::Off)
    }

    /// Leaves the times of all requests to the caller, unless nothing is recorded.
    pub(crate) fn leave_times_to_caller(&mut self) {
        if !self.is_off() {
            self.sink = Sink::Caller(Vec::new());
        }
    }

    /// Moves the times of completed requests to an empty list.
    pub(crate) fn take_times(&mut self, times: &mut Vec<RequestTimes>) {
        if let Sink::Caller(taken) = &mut self.sink {
            std::mem::swap(taken, times);
        }
    }

    /// Sets the caller whose thread leads; `None`: the service's thread.
    pub(crate) fn set_leader(&mut self, caller: Option<&Arc<CallerQueue>>) {
        self.leader = caller.map_or(0, |caller| Arc::as_ptr(caller) as usize);
    }

    /// Returns the key of a request that the next send includes, unless it `can_wait` and coalescing delays it.
    #[inline(always)]
    pub(crate) fn on_queued(
        &mut self,
        submitted: u64,
        can_wait: bool,
        operation: Operation,
        blocks: u64,
    ) -> Key {
        let current = &mut self.current[usize::from(!can_wait)];
        if current.id == NO_MARK || current.submitted != submitted {
            self.open_mark(submitted, usize::from(!can_wait));
        }
        let current = &mut self.current[usize::from(!can_wait)];
        current.requests += 1;
        Key::new(current.id, operation, blocks)
    }

    /// Returns the key of a request that may have to wait.
    pub(crate) fn on_held(&mut self, submitted: u64, operation: Operation, blocks: u64) -> Key {
        if self.is_off() {
            return Key::new(NO_MARK, operation, blocks);
        }
        let mark = Mark { submitted, held: clock::now(), requests: 1, ..Mark::default() };
        Key::new(self.add(mark), operation, blocks)
    }

    /// Records that the next send includes a command of a request that has waited. Later commands count as data.
    pub(crate) fn on_released(&mut self, key: Key) {
        let mark = &mut self.marks[key.mark() as usize];
        if mark.held > 0 && mark.queued == 0 {
            mark.queued = clock::now();
            self.open[0].push(key.mark());
        }
    }

    #[cold]
    fn open_mark(&mut self, submitted: u64, index: usize) {
        self.count_current(index);
        if self.is_off() {
            return;
        }
        let first = self.open[index].first();
        let queued = first.map_or_else(clock::now, |first| self.marks[*first as usize].queued);
        let id = self.add(Mark { submitted, queued, ..Mark::default() });
        self.open[index].push(id);
        self.current[index] = Current { id, submitted, requests: 0 };
    }

    /// Counts the requests that have joined a mark, which no other request joins.
    fn count_current(&mut self, index: usize) {
        let Current { id, requests, .. } = std::mem::take(&mut self.current[index]);
        self.marks[id as usize].requests += requests;
    }

    fn add(&mut self, mark: Mark) -> MarkId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.marks.push(Mark::default());
            (self.marks.len() - 1) as MarkId
        });
        self.marks[index as usize] = mark;
        index
    }

    /// Records the start of a send of commands that coalescing has delayed.
    pub(crate) fn on_delay_over(&mut self) {
        let now = clock::now();
        self.open[0].iter().for_each(|open| self.marks[*open as usize].begun = now);
    }

    /// Records the end of a send, in which coalescing has delayed all commands that can wait, or none.
    #[inline]
    pub(crate) fn on_sent(&mut self, is_delayed: bool) {
        let first = usize::from(is_delayed);
        if self.open[first..].iter().all(Vec::is_empty) {
            return;
        }
        let now = clock::now();
        for index in first..self.open.len() {
            self.count_current(index);
            self.open[index].drain(..).for_each(|open| self.marks[open as usize].sent = now);
        }
    }

    /// Records that a part of the response to a request was received.
    pub(crate) fn on_first_byte(&mut self, key: &mut Key, received: u64) {
        let (id, mark) = (key.mark(), self.marks[key.mark() as usize]);
        if id == NO_MARK || mark.first_byte > 0 {
            return;
        }
        self.release(id, 1);
        *key = key.with_mark(self.add(Mark { first_byte: received, requests: 1, ..mark }));
    }

    fn release(&mut self, id: MarkId, count: u64) {
        let mark = &mut self.marks[id as usize];
        mark.requests = mark.requests.saturating_sub(count);
        if mark.requests == 0 && id != NO_MARK {
            self.free.push(id);
        }
    }

    /// Sets the time of the receive that completes the next requests.
    #[inline(always)]
    pub(crate) fn on_received(&mut self, received: u64) {
        if received != self.received {
            self.end_run();
            self.received = received;
        }
    }

    /// Records the success of a request.
    #[inline(always)]
    pub(crate) fn on_finished(&mut self, key: Key, caller: u32, command: Command) {
        if self.last.key == key && self.last.caller == caller {
            self.last.count += 1;
        } else {
            self.begin_run(key, caller, command);
        }
    }

    #[inline(never)]
    fn begin_run(&mut self, key: Key, caller: u32, command: Command) {
        if !self.is_off() {
            self.end_run();
            self.last = Run { key, command, caller, received: self.received, count: 1 };
        }
    }

    fn end_run(&mut self) {
        if self.last.count > 0 {
            self.runs.push(self.last);
            self.last = NO_RUN;
        }
    }

    /// Records the failure of a request.
    pub(crate) fn on_failed(&mut self, key: Key) {
        self.release(key.mark(), 1);
        if let Sink::Cells(cells) = &self.sink {
            cells.kinds.of(key.operation(), SizeClass::from_len(key.blocks() * self.block_bytes)).add_error();
        }
    }

    /// Records the end of a turn, which wakes `callers`.
    #[inline]
    pub(crate) fn on_turned(&mut self, callers: &mut Vec<Arc<CallerQueue>>) {
        if !self.handed.is_empty() {
            self.record_taken();
        }
        self.end_run();
        if !self.runs.is_empty() {
            self.record_runs(callers);
        }
        callers.drain(..).for_each(|caller| caller.wake());
    }

    fn record_runs(&mut self, callers: &[Arc<CallerQueue>]) {
        let now = clock::now();
        for index in 0..self.runs.len() {
            let run = self.runs[index];
            let times = self.times_of(&run, now);
            self.release(run.key.mark(), run.count);
            match callers.get(run.caller as usize) {
                Some(caller) if Arc::as_ptr(caller) as usize != self.leader => {
                    caller.on_handed(now);
                    self.handed.push(Handed { caller: Arc::clone(caller), at: now, times, run });
                }
                _ => self.record(&run, &times, now),
            }
        }
        self.runs.clear();
    }

    /// Records the runs that the callers have taken.
    #[cold]
    fn record_taken(&mut self) {
        let mut handed = std::mem::take(&mut self.handed);
        handed.retain_mut(|Handed { caller, at, times, run }| {
            let is_dropped = Arc::strong_count(caller) == 1;
            let Some(taken) = caller.taken_at(*at).or(is_dropped.then_some(*at)) else { return true };
            times[WAKE] = taken.saturating_sub(*at);
            self.record(run, times, taken);
            false
        });
        self.handed = handed;
    }

    /// Publishes the slow operations of the last second if it has ended. Called from time to time.
    pub(crate) fn tick(&mut self) {
        if let Sink::Cells(cells) = &self.sink
            && self.slow.has_pending()
        {
            self.slow.end_second(clock::now(), cells.slow());
        }
    }

    /// Returns the stages of a run that is handed to its caller at `now`.
    fn times_of(&self, run: &Run, now: u64) -> StageTimes {
        let mark = &self.marks[run.key.mark() as usize];
        let or = |time: u64, other: u64| if time > 0 { time } else { other };
        let taken = or(mark.held, mark.queued);
        let first_byte = or(mark.first_byte, run.received);
        // A request that was never sent has been held all the time.
        let begun = or(mark.begun, or(mark.queued, now));
        let mut last = or(mark.submitted, taken).min(taken);
        let mut times = StageTimes::default();
        for (stage, at) in times.iter_mut().zip([taken, begun, mark.sent, first_byte, run.received, now]) {
            // The clocks of two cores can differ slightly.
            let at = at.max(last);
            *stage = at - last;
            last = at;
        }
        times
    }

    /// Records a run whose last stage ended at `at`.
    fn record(&mut self, run: &Run, times: &StageTimes, at: u64) {
        let Run { key, count, .. } = *run;
        let (operation, bytes) = (key.operation(), key.blocks() * self.block_bytes);
        match &mut self.sink {
            Sink::Off => {}
            Sink::Cells(cells) => {
                let series = cells.kinds.of(operation, SizeClass::from_len(bytes));
                series.record(times, count);
                series.add_bytes(bytes * count);
                let total_ns = times.iter().sum();
                if self.slow.is_slow(total_ns) {
                    let record = slow_record(run, times, total_ns, (operation, bytes, at));
                    self.slow.add(record, cells.slow());
                }
            }
            Sink::Caller(all) => all.push(RequestTimes { count, operation, bytes, stages: *times, at }),
        }
    }
}

#[cold]
fn slow_record(
    run: &Run,
    times: &StageTimes,
    total_ns: u64,
    (operation, bytes, at_ns): (Operation, u64, u64),
) -> SlowRecord {
    let Command { lba, connection, cid } = run.command;
    SlowRecord {
        at_ns,
        total_ns,
        stages_ns: *times,
        connection,
        lba,
        bytes,
        volume: 0,
        cid,
        depth: 0,
        operation,
        last_member: None,
    }
}

#[cfg(test)]
mod tests;
