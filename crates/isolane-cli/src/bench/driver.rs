//! Load generator of one thread: submits idle operations, takes one turn, and counts completions.
//!
//! Each operation in flight has an index (its tag) and, while idle, a buffer. The operations of a stream follow one
//! access pattern: the first stream is measured, the second is the background load.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use isolane_host::{BlockingVolume, Client, Completion, Request, RequestError, Submitter, Wait};
use isolane_memory::Buffer;
use isolane_observe::snapshot::Snapshot;

use super::access_pattern::{AccessPattern, Direction};
use super::lane_selector::LaneSelector;
use super::pace::{Pace, elapsed_since};
use super::stats::Stats;
use super::verifier::{Verifier, VerifyReport};
use crate::failure::Failure;
use crate::units::show_bytes;

/// Interval of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Limit for operations in flight when the time has passed.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for a signal or a lost target.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Attempts to find a slot without an operation, with `--verify`.
const SLOT_ATTEMPTS: usize = 64;

/// The destination of operations.
pub enum Port<'a> {
    /// A client with all its lanes.
    Client(&'a mut Client),
    /// The place of one thread at a shared volume.
    Submitter { submitter: Submitter, volume: &'a BlockingVolume, closed: bool },
}

/// Runs access patterns on a port.
pub struct Driver<'a> {
    port: Port<'a>,
    streams: Vec<Stream>,
    fua: bool,
    verifier: Option<Verifier>,
    epoch: Instant,
    operations: Vec<Operation>,
    completions: Vec<Completion>,
    /// Set by a signal; no operation starts after it.
    stopped: Arc<AtomicI32>,
}

/// Operations of one kind.
struct Stream {
    pattern: AccessPattern,
    lanes: LaneSelector,
    stats: Stats,
    idle: Vec<usize>,
}

/// The result of the measured phase.
pub struct Measured {
    /// Counters of the measured operations.
    pub stats: Stats,
    /// Counters of the background load.
    pub background: Option<Stats>,
    /// Duration.
    pub elapsed: Duration,
    /// Result of verification.
    pub verify: VerifyReport,
    /// Failure of the final read.
    pub read_back: Result<(), Failure>,
    /// Data that was not read because of a signal.
    pub unread: Option<&'static str>,
}

/// One operation, idle or in flight.
struct Operation {
    stream: usize,
    lanes: [usize; 2],
    started_ns: u64,
    direction: Direction,
    slot: u64,
    sequence: u32,
    buffer: Option<Buffer>,
}

/// Source of the operations of a phase.
enum Source<'s> {
    /// The access pattern, for a time.
    Pattern(&'s mut Pace),
    /// Given slots.
    Slots { direction: Direction, slots: &'s mut dyn Iterator<Item = u64> },
}

impl Port<'_> {
    #[inline]
    fn submit(&mut self, stream: &mut Stream, operation: &Operation, request: Request, tag: u64) {
        match self {
            Port::Client(client) => {
                stream.lanes.submit(client, operation.lanes, operation.direction, request, tag);
            }
            Port::Submitter { submitter, .. } => {
                // Never full: there are as many operations as its depth.
                let _ = submitter.submit(request, tag);
            }
        }
    }

    #[inline]
    fn turn(&mut self, completions: &mut Vec<Completion>, now: Instant, wait: Wait) {
        match self {
            Port::Client(client) => {
                client.turn(completions, wait);
            }
            Port::Submitter { submitter, closed, .. } => {
                // No waker: a signal is noticed at the next check.
                let check = now + CHECK_INTERVAL;
                let until = if let Wait::Until(until) = wait { until.min(check) } else { check };
                if submitter.outstanding() > 0 {
                    submitter.wait_until(completions, until);
                } else {
                    std::thread::sleep(until.saturating_duration_since(now));
                }
                let is_lost = |completion: &Completion| {
                    matches!(completion.result, Err(RequestError::Lost(_) | RequestError::Closed))
                };
                *closed |= completions.iter().any(is_lost);
            }
        }
    }

    fn is_up(&self) -> bool {
        match self {
            Port::Client(client) => client.is_connected(),
            // The connections of an engine are unknown.
            Port::Submitter { volume, .. } => !volume.connections().is_empty() || volume.engine().is_some(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Port::Client(client) => client.is_closed(),
            Port::Submitter { closed, .. } => *closed,
        }
    }

    fn end_reason(&self) -> Option<String> {
        match self {
            Port::Client(client) => client.end_reason().map(ToString::to_string),
            Port::Submitter { .. } => None,
        }
    }
}

impl<'a> Driver<'a> {
    /// Returns a driver with idle operations.
    pub fn new(
        port: Port<'a>,
        streams: Vec<(AccessPattern, LaneSelector)>,
        verify: bool,
        fua: bool,
        stopped: &Arc<AtomicI32>,
    ) -> Self {
        let mut driver = Driver {
            port,
            streams: Vec::new(),
            fua,
            verifier: verify.then(|| Verifier::new(&streams[0].0, fastrand::u64(1..))),
            epoch: Instant::now(),
            operations: Vec::new(),
            completions: Vec::new(),
            stopped: Arc::clone(stopped),
        };
        for (pattern, lanes) in streams {
            driver.add_stream(pattern, lanes);
        }
        driver.completions.reserve(driver.operations.len());
        driver
    }

    fn add_stream(&mut self, pattern: AccessPattern, lanes: LaneSelector) {
        let (stream, first) = (self.streams.len(), self.operations.len());
        self.operations.extend((0..lanes.operations(pattern.kind, pattern.depth)).map(|index| Operation {
            stream,
            lanes: lanes.own(index),
            started_ns: 0,
            direction: Direction::Read,
            slot: 0,
            sequence: 0,
            buffer: Some(Buffer::contiguous(pattern.slot_bytes as usize)),
        }));
        let idle = (first..self.operations.len()).rev().collect();
        self.streams.push(Stream { pattern, lanes, stats: Stats::new(), idle });
    }

    /// Fills buffers with random bytes. With `--verify` and reads, writes the region once, so that reads can be checked.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        let AccessPattern { slots, slot_bytes, kind, .. } = self.streams[0].pattern;
        if self.verifier.is_none() || kind.reads_percent == 0 {
            let buffers = self.operations.iter_mut().flat_map(|operation| &mut operation.buffer);
            buffers.flat_map(Buffer::as_mut_slice).for_each(fastrand::fill);
            return Ok(());
        }
        let size = show_bytes((slots * slot_bytes) as f64);
        log::write_stderr(format!("writing patterns to all {size} before the measurement, to check reads\n"));
        self.run(&mut Source::Slots { direction: Direction::Write, slots: &mut (0..slots) }, false);
        self.reject_failures("cannot write the patterns")?;
        self.streams[0].stats = Stats::new();
        Ok(())
    }

    /// Returns the latencies of the port so far.
    pub fn snapshot(&self) -> Snapshot {
        match &self.port {
            Port::Client(client) => client.snapshot(),
            Port::Submitter { volume, .. } => volume.snapshot(),
        }
    }

    /// Runs the patterns at this pace, after its warm-up, and with `--verify`, except after a signal, reads all written
    /// data. Returns the result of the measured phase.
    pub fn measure(mut self, pace: &mut Pace, show_progress: bool) -> Measured {
        let (from, started) = (pace.from, Instant::now());
        self.run(&mut Source::Pattern(pace), show_progress);
        let elapsed = elapsed_since(from, started);
        let stats = std::mem::replace(&mut self.streams[0].stats, Stats::new());
        let (mut read_back, mut unread) = (Ok(()), None);
        if self.verifier.is_some() && self.is_stopped() {
            unread = Some("nothing was read back");
        } else if let Some(verifier) = &self.verifier {
            let mut slots = verifier.history.checked_slots().into_iter();
            self.run(&mut Source::Slots { direction: Direction::Read, slots: &mut slots }, false);
            read_back = self.reject_failures("cannot read back the written data");
            unread = (slots.len() > 0).then_some("not all written data was read back");
        }
        let verify = self.verifier.map(|verifier| verifier.report).unwrap_or_default();
        let background = self.streams.into_iter().nth(1).map(|stream| stream.stats);
        Measured { stats, background, elapsed, verify, read_back, unread }
    }

    /// Runs one phase, until the source has ended or a signal has arrived, and nothing is in flight.
    fn run(&mut self, source: &mut Source<'_>, show_progress: bool) {
        let progress = show_progress.then(progress_line);
        let (mut shown_at, mut shown) = (Instant::now(), 0);
        let mut warm = false;
        let mut now = Instant::now();
        let mut stopped_at = None;
        loop {
            if self.is_stopped() {
                stopped_at.get_or_insert(now);
            }
            self.submit_idle(source, now);
            let idle: usize = self.streams.iter().map(|stream| stream.idle.len()).sum();
            if idle == self.operations.len() && (self.port.is_closed() || source.is_finished(now)) {
                break;
            }
            if self.has_timed_out(source, stopped_at, now) {
                self.fail_unfinished();
                break;
            }
            let wait = match stopped_at {
                Some(_) => Wait::Until(now + CHECK_INTERVAL),
                None => source.wait(now, idle > 0),
            };
            self.port.turn(&mut self.completions, now, wait);
            // One clock read: for these completions, and for the operations that start next.
            now = Instant::now();
            // Operations that complete now have ended after the warm-up.
            if let Source::Pattern(pace) = source
                && !warm
                && now >= pace.from
            {
                warm = true;
                self.streams.iter_mut().for_each(|stream| stream.stats = Stats::new());
            }
            self.process_completions(now);
            if let Some(progress) = &progress
                && now - shown_at >= PROGRESS_INTERVAL
            {
                let Stream { stats, pattern, .. } = &self.streams[0];
                let rate = stats.operations().saturating_sub(shown) as f64 / (now - shown_at).as_secs_f64();
                let bytes = show_bytes(rate * pattern.slot_bytes as f64);
                let errors = stats.errors();
                progress.set_message(format!("{rate:10.0} IOPS  {bytes:>12}/s  {errors} errors"));
                (shown_at, shown) = (now, stats.operations());
            }
        }
        if let Some(reason) = self.port.end_reason() {
            self.streams.iter_mut().for_each(|stream| stream.stats.replace_error(&reason));
        }
        progress.iter().for_each(ProgressBar::finish_and_clear);
    }

    fn submit_idle(&mut self, source: &mut Source<'_>, now: Instant) {
        if self.port.is_closed() || self.is_stopped() || source.has_passed(now) {
            return;
        }
        let now_ns = self.ns_since_epoch(now);
        for stream in 0..self.streams.len() {
            while let Some(&index) = self.streams[stream].idle.last() {
                let Some((direction, slot)) = self.next(source, stream, now) else { break };
                self.streams[stream].idle.pop();
                self.submit(index, direction, slot, now_ns);
            }
        }
    }

    /// Returns the next operation; with `--verify`, on a slot without an operation.
    fn next(&mut self, source: &mut Source<'_>, stream: usize, now: Instant) -> Option<(Direction, u64)> {
        match source {
            // Each slot is given once.
            Source::Slots { direction, slots } => Some((*direction, slots.next()?)),
            Source::Pattern(pace) => {
                if stream == 0 && !pace.start(now) {
                    return None;
                }
                let pattern = &mut self.streams[stream].pattern;
                let Some(verifier) = &mut self.verifier else { return Some(pattern.next()) };
                let mut attempts = (0..SLOT_ATTEMPTS).map(|_| pattern.next());
                attempts.find(|&(_, slot)| verifier.history.begin(slot as u32))
            }
        }
    }

    fn submit(&mut self, index: usize, direction: Direction, slot: u64, started_ns: u64) {
        let operation = &mut self.operations[index];
        let stream = &mut self.streams[operation.stream];
        let (lba, slot_bytes) = (stream.pattern.lba(slot), stream.pattern.slot_bytes as usize);
        let mut buffer = operation.buffer.take().unwrap_or_else(|| Buffer::contiguous(slot_bytes));
        (operation.direction, operation.slot, operation.started_ns) = (direction, slot, started_ns);
        let request = match direction {
            Direction::Read => Request::Read { lba, buffer },
            Direction::Write => {
                if let Some(verifier) = &mut self.verifier {
                    operation.sequence = verifier.fill(slot, &mut buffer);
                }
                Request::Write { lba, buffer, fua: self.fua }
            }
        };
        self.port.submit(stream, operation, request, index as u64);
    }

    fn ns_since_epoch(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    fn process_completions(&mut self, now: Instant) {
        let now_ns = self.ns_since_epoch(now);
        for Completion { tag, result, buffer } in &mut self.completions {
            let operation = &mut self.operations[*tag as usize];
            if let Some(verifier) = &mut self.verifier {
                operation.verify(verifier, result.is_ok(), buffer);
            }
            let Stream { pattern, stats, idle, .. } = &mut self.streams[operation.stream];
            let stats = stats.direction(operation.direction);
            match result {
                Ok(()) => stats.on_success(now_ns - operation.started_ns, pattern.slot_bytes),
                Err(error) => stats.on_error(error),
            }
            std::mem::swap(&mut operation.buffer, buffer);
            idle.push(*tag as usize);
        }
        self.completions.clear();
    }

    /// Returns `true` if the phase has ended but the target does not respond. Until a signal arrives, a verifying run
    /// waits for the target to return.
    fn has_timed_out(&self, source: &Source<'_>, stopped_at: Option<Instant>, now: Instant) -> bool {
        let until = match source {
            Source::Pattern(pace) if self.verifier.is_none() && now >= pace.until => Some(pace.until),
            _ => None,
        };
        let ended_at = stopped_at.into_iter().chain(until).min();
        ended_at.is_some_and(|ended_at| now >= ended_at + COMPLETION_TIMEOUT || !self.port.is_up())
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// Counts the operations in flight as errors.
    fn fail_unfinished(&mut self) {
        let reason = if self.port.is_up() {
            "the target did not complete it in time"
        } else {
            "the target is disconnected"
        };
        for (index, operation) in self.operations.iter().enumerate() {
            let Stream { stats, idle, .. } = &mut self.streams[operation.stream];
            if !idle.contains(&index) {
                stats.direction(operation.direction).on_error(&reason);
            }
        }
    }

    fn reject_failures(&self, what: &str) -> Result<(), Failure> {
        let error = self.streams[0].stats.first_error().map(str::to_owned);
        error.or_else(|| self.port.end_reason()).map_or(Ok(()), |reason| Err(Failure::new(what, reason)))
    }
}

impl Operation {
    /// Verifies a completed operation.
    #[inline(never)]
    fn verify(&self, verifier: &mut Verifier, succeeded: bool, buffer: &Option<Buffer>) {
        let slot = self.slot as u32;
        match (self.direction, succeeded, buffer) {
            (Direction::Write, true, _) => verifier.history.on_acknowledged(slot, self.sequence),
            (Direction::Write, false, _) => verifier.history.on_unknown(slot, self.sequence),
            (Direction::Read, true, Some(buffer)) => verifier.check(self.slot, buffer),
            (Direction::Read, _, _) => {}
        }
        verifier.history.end(slot);
    }
}

impl Source<'_> {
    /// Returns `true` once no operation of the phase may start.
    fn has_passed(&self, now: Instant) -> bool {
        matches!(self, Source::Pattern(pace) if pace.is_finished(now))
    }

    /// Returns `true` if the phase ends once everything is idle.
    fn is_finished(&self, now: Instant) -> bool {
        match self {
            Source::Pattern(pace) => pace.is_finished(now),
            Source::Slots { .. } => true,
        }
    }

    /// Returns the wait for completions, and for the next start if operations are idle.
    fn wait(&self, now: Instant, has_idle: bool) -> Wait {
        match self {
            Source::Pattern(pace) if pace.is_finished(now) => Wait::Until(now + CHECK_INTERVAL),
            Source::Pattern(pace) => {
                let next = pace.next().filter(|_| has_idle);
                Wait::Until(next.map_or(pace.until, |next| next.min(pace.until)))
            }
            Source::Slots { .. } => Wait::Forever,
        }
    }
}

/// Returns the line with the rate since the last line.
fn progress_line() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed:>6}  {msg}").expect("a valid template");
    ProgressBar::new_spinner().with_style(style)
}
