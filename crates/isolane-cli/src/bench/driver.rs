//! Keeps operations in flight and times them.
//!
//! One thread, one client: submit what is idle, take one turn, account for what completed. Each operation in
//! flight owns a number (its tag) and, while idle, a buffer. The operations of a stream follow one plan: the
//! measured stream is the first, that of `--beside` the second.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{Client, Completion, Request, Wait};
use isolane_memory::Buffer;

use super::lanes::Lanes;
use super::pace::Pace;
use super::plan::{Direction, Plan};
use super::tally::Tallies;
use super::verifier::{Verdict, Verifier};
use crate::failure::Failure;
use crate::units::show_bytes;

/// How often the live line changes.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);

/// How long operations in flight may take when the time is over.
pub const GRACE: Duration = Duration::from_secs(5);

/// How many slots are tried for one that no operation is on, with `--verify`.
const SLOT_TRIES: usize = 64;

/// Runs a plan on a client.
pub struct Driver<'a> {
    client: &'a mut Client,
    streams: Vec<Stream>,
    fua: bool,
    verifier: Option<Verifier>,
    /// What times of operations are counted from.
    epoch: Instant,
    elapsed: Duration,
    operations: Vec<Operation>,
    completions: Vec<Completion>,
    /// Set by a signal, after which no further operation starts.
    stopped: Arc<AtomicBool>,
}

/// Operations of one kind, and what came of them.
struct Stream {
    plan: Plan,
    lanes: Lanes,
    tally: Tallies,
    idle: Vec<usize>,
}

/// The figures of the measured phase.
pub struct Measured {
    /// Those of the plan.
    pub tally: Tallies,
    /// Those of what went on beside it.
    pub beside: Option<Tallies>,
    /// How long it took.
    pub elapsed: Duration,
    /// What reading back found.
    pub verdict: Verdict,
    /// Why not all of it was read back.
    pub read_back: Result<(), Failure>,
    /// What a signal kept from being read back.
    pub unread: Option<&'static str>,
}

/// One of the operations that may be in flight.
struct Operation {
    stream: usize,
    lanes: [usize; 2],
    started_ns: u64,
    direction: Direction,
    slot: u64,
    sequence: u32,
    buffer: Option<Buffer>,
}

/// Where the next operations of a phase come from.
enum Source<'s> {
    /// The plan, until the time is over.
    Plan(&'s mut Pace),
    /// Exactly these slots.
    Slots { direction: Direction, slots: &'s mut dyn Iterator<Item = u64> },
}

impl<'a> Driver<'a> {
    /// Nothing is in flight yet.
    pub fn new(
        client: &'a mut Client,
        plan: (Plan, Lanes),
        beside: Option<(Plan, Lanes)>,
        verify: bool,
        fua: bool,
        stopped: &Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let verifier = verify.then(|| Verifier::new(&plan.0, fastrand::u64(1..)));
        let (mut streams, mut operations) = (Vec::new(), Vec::new());
        for (stream, (plan, lanes)) in std::iter::once(plan).chain(beside).enumerate() {
            let first = operations.len();
            let count = lanes.operations(plan.kind, plan.depth);
            operations.extend((0..count).map(|index| Operation::idle(stream, lanes.own(index), &plan)));
            let idle = (first..first + count).rev().collect();
            streams.push(Stream { plan, lanes, tally: Tallies::new()?, idle });
        }
        Ok(Driver {
            client,
            streams,
            fua,
            verifier,
            epoch: Instant::now(),
            elapsed: Duration::ZERO,
            completions: Vec::with_capacity(operations.len()),
            operations,
            stopped: Arc::clone(stopped),
        })
    }

    /// With `--verify` and reads: writes the whole region once, so that every read can be judged.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        if self.verifier.is_none() || !self.streams[0].plan.reads() {
            self.fill_buffers();
            return Ok(());
        }
        let Plan { slots, slot_bytes, .. } = self.streams[0].plan;
        eprintln!(
            "writing patterns to all {} before the measurement, because what is read is checked",
            show_bytes((slots * slot_bytes) as f64)
        );
        let mut slots = 0..slots;
        self.run(&mut Source::Slots { direction: Direction::Write, slots: &mut slots }, false)?;
        self.reject_failures("writing the patterns")?;
        self.streams[0].tally = Tallies::new()?;
        Ok(())
    }

    /// Runs the plan at this pace, after its warm-up.
    pub fn measure(&mut self, pace: &mut Pace, live: bool) -> Result<(), Failure> {
        let started = Instant::now();
        self.run(&mut Source::Plan(pace), live)?;
        let now = Instant::now();
        self.elapsed = now - if now > pace.from { pace.from } else { started };
        Ok(())
    }

    /// With `--verify`: reads back everything that was written. Gives the figures of the measured phase.
    /// Reads nothing after a signal.
    pub fn finish(mut self) -> Result<Measured, Failure> {
        let tally = std::mem::replace(&mut self.streams[0].tally, Tallies::new()?);
        let (mut read_back, mut unread) = (Ok(()), None);
        if self.verifier.is_some() && self.is_stopped() {
            unread = Some("nothing was read back");
        } else if let Some(verifier) = &self.verifier {
            let slots: Vec<u64> = verifier.ledger.judged_slots().map(u64::from).collect();
            let mut slots = slots.into_iter();
            self.run(&mut Source::Slots { direction: Direction::Read, slots: &mut slots }, false)?;
            read_back = self.reject_failures("reading back the data written");
            unread = (slots.len() > 0).then_some("not all that was written was read back");
        }
        let verdict = self.verifier.map(Verifier::into_verdict).unwrap_or_default();
        let beside = self.streams.into_iter().nth(1).map(|stream| stream.tally);
        Ok(Measured { tally, beside, elapsed: self.elapsed, verdict, read_back, unread })
    }

    /// One phase: until the source runs dry or a signal stops it, and nothing is in flight.
    fn run(&mut self, source: &mut Source<'_>, live: bool) -> Result<(), Failure> {
        let mut line = live.then(LiveLine::new);
        let mut is_warm = false;
        let mut now = Instant::now();
        let mut now_ns = self.ns_of(now);
        let mut stopped_at = None;
        loop {
            if self.is_stopped() {
                stopped_at.get_or_insert(now);
            }
            self.submit_idle(source, now, now_ns);
            let idle: usize = self.streams.iter().map(|stream| stream.idle.len()).sum();
            if idle == self.operations.len() && (self.client.is_over() || source.is_over(now)) {
                break;
            }
            if self.gives_up(source, stopped_at, now) {
                self.fail_unfinished();
                break;
            }
            let wait = match stopped_at {
                Some(_) => Wait::Until(now + GRACE / 100),
                None => source.wait(now, idle > 0),
            };
            self.client.turn(&mut self.completions, wait);
            // What follows on a completion starts when that was seen: one look at the clock for both.
            now = Instant::now();
            now_ns = self.ns_of(now);
            // Before what comes now is counted: it has ended after the warm-up.
            self.end_warm_up(source, now, &mut is_warm)?;
            self.account(now_ns);
            if let Some(line) = &mut line {
                line.show(now, &self.streams[0].tally);
            }
        }
        if let Some(reason) = self.client.end_reason() {
            self.streams.iter_mut().for_each(|stream| stream.tally.blame(reason));
        }
        if let Some(line) = line {
            line.clear();
        }
        Ok(())
    }

    fn submit_idle(&mut self, source: &mut Source<'_>, now: Instant, now_ns: u64) {
        for stream in 0..self.streams.len() {
            while let Some(&index) = self.streams[stream].idle.last() {
                let Some((direction, slot)) = self.next(source, stream, now) else { break };
                self.streams[stream].idle.pop();
                self.submit(index, direction, slot, now_ns);
            }
        }
    }

    /// The next operation; with `--verify` on a slot that no other operation is on.
    fn next(&mut self, source: &mut Source<'_>, stream: usize, now: Instant) -> Option<(Direction, u64)> {
        if self.client.is_over() || self.is_stopped() {
            return None;
        }
        if let Source::Plan(pace) = source
            && (pace.is_over(now) || stream == 0 && !pace.start(now))
        {
            return None;
        }
        let plan = &mut self.streams[stream].plan;
        match source {
            Source::Plan(_) => match &mut self.verifier {
                None => Some(plan.next()),
                Some(verifier) => {
                    (0..SLOT_TRIES).map(|_| plan.next()).find(|&(_, slot)| verifier.ledger.begin(slot as u32))
                }
            },
            Source::Slots { direction, slots } => {
                let slot = slots.next()?;
                if let Some(verifier) = &mut self.verifier {
                    verifier.ledger.begin(slot as u32);
                }
                Some((*direction, slot))
            }
        }
    }

    fn submit(&mut self, index: usize, direction: Direction, slot: u64, now_ns: u64) {
        let operation = &mut self.operations[index];
        let Stream { plan, lanes, .. } = &mut self.streams[operation.stream];
        let (lba, slot_bytes) = (plan.lba(slot), plan.slot_bytes as usize);
        let mut buffer = operation.buffer.take().unwrap_or_else(|| Buffer::contiguous(slot_bytes));
        (operation.direction, operation.slot, operation.started_ns) = (direction, slot, now_ns);
        let request = match direction {
            Direction::Read => Request::Read { lba, buffer },
            Direction::Write => {
                if let Some(verifier) = &mut self.verifier {
                    operation.sequence = verifier.fill(slot, &mut buffer);
                }
                Request::Write { lba, buffer, fua: self.fua }
            }
        };
        lanes.submit(self.client, operation.lanes, direction, request, index as u64);
    }

    /// Nanoseconds since the driver was made.
    fn ns_of(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    fn account(&mut self, now_ns: u64) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in &mut completions {
            self.complete(completion, now_ns);
        }
        completions.clear();
        self.completions = completions;
    }

    fn complete(&mut self, completion: &mut Completion, now_ns: u64) {
        let index = completion.tag as usize;
        let operation = &mut self.operations[index];
        let Stream { plan, tally, idle, .. } = &mut self.streams[operation.stream];
        let tally = tally.of(operation.direction);
        match &completion.result {
            Ok(()) => tally.completed(now_ns - operation.started_ns, plan.slot_bytes),
            Err(error) => tally.failed(error),
        }
        if let Some(verifier) = &mut self.verifier {
            judge(verifier, operation, completion);
            verifier.ledger.end(operation.slot as u32);
        }
        operation.buffer = completion.buffer.take();
        idle.push(index);
    }

    /// At the end of the warm-up: forgets its figures.
    fn end_warm_up(&mut self, source: &Source<'_>, now: Instant, is_warm: &mut bool) -> Result<(), Failure> {
        match source {
            Source::Plan(pace) if !*is_warm && now >= pace.from => {
                *is_warm = true;
                self.streams
                    .iter_mut()
                    .try_for_each(|stream| Tallies::new().map(|tally| stream.tally = tally))
            }
            _ => Ok(()),
        }
    }

    /// Whether the phase is over and the target does not answer. Until a signal stops it, a verifying run waits for
    /// one that comes back.
    fn gives_up(&self, source: &Source<'_>, stopped_at: Option<Instant>, now: Instant) -> bool {
        let until = match source {
            Source::Plan(pace) if self.verifier.is_none() && now >= pace.until => Some(pace.until),
            _ => None,
        };
        let ended_at = stopped_at.into_iter().chain(until).min();
        ended_at.is_some_and(|ended_at| !self.client.is_up() || now >= ended_at + GRACE)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Counts the operations in flight as errors.
    fn fail_unfinished(&mut self) {
        let mut in_flight = vec![true; self.operations.len()];
        self.streams.iter().flat_map(|stream| &stream.idle).for_each(|&index| in_flight[index] = false);
        let why =
            if self.client.is_up() { "the target did not complete it in time" } else { "the target is away" };
        for (operation, _) in self.operations.iter().zip(in_flight).filter(|(_, in_flight)| *in_flight) {
            self.streams[operation.stream].tally.of(operation.direction).failed(&why);
        }
    }

    fn reject_failures(&self, what: &str) -> Result<(), Failure> {
        match self.streams[0].tally.first_error() {
            Some(error) => Err(Failure::new(format!("{what} failed"), error)),
            None => match self.client.end_reason() {
                Some(reason) => Err(Failure::new(format!("{what} failed"), reason)),
                None => Ok(()),
            },
        }
    }

    /// Random bytes, so that nothing on the way can be clever about zeroes.
    fn fill_buffers(&mut self) {
        for operation in &mut self.operations {
            if let Some(bytes) = operation.buffer.as_mut().and_then(Buffer::as_mut_slice) {
                fastrand::fill(bytes);
            }
        }
    }
}

impl Source<'_> {
    /// Whether it has nothing more when everything is idle.
    fn is_over(&self, now: Instant) -> bool {
        match self {
            Source::Plan(pace) => pace.is_over(now),
            Source::Slots { .. } => true,
        }
    }

    /// How long to wait for completions; `may_start`: operations are idle.
    fn wait(&self, now: Instant, may_start: bool) -> Wait {
        match self {
            Source::Plan(pace) if pace.is_over(now) => Wait::Until(now + GRACE / 100),
            Source::Plan(pace) => {
                let next = pace.next().filter(|_| may_start);
                Wait::Until(next.map_or(pace.until, |next| next.min(pace.until)))
            }
            Source::Slots { .. } => Wait::Forever,
        }
    }
}

impl Operation {
    /// An operation that is not in flight.
    fn idle(stream: usize, lanes: [usize; 2], plan: &Plan) -> Operation {
        Operation {
            stream,
            lanes,
            started_ns: 0,
            direction: Direction::Read,
            slot: 0,
            sequence: 0,
            buffer: Some(Buffer::contiguous(plan.slot_bytes as usize)),
        }
    }
}

fn judge(verifier: &mut Verifier, operation: &Operation, completion: &Completion) {
    let slot = operation.slot;
    match (operation.direction, &completion.result, &completion.buffer) {
        (Direction::Write, Ok(()), _) => verifier.ledger.acknowledged(slot as u32, operation.sequence),
        (Direction::Write, Err(_), _) => verifier.ledger.unknown(slot as u32, operation.sequence),
        (Direction::Read, Ok(()), Some(buffer)) => verifier.check(slot, buffer),
        (Direction::Read, _, _) => {}
    }
}

/// The line that shows the current rate while a phase runs.
struct LiveLine {
    started: Instant,
    shown: Instant,
    operations: u64,
    bytes: u64,
}

impl LiveLine {
    fn new() -> Self {
        let now = Instant::now();
        LiveLine { started: now, shown: now, operations: 0, bytes: 0 }
    }

    fn show(&mut self, now: Instant, tally: &Tallies) {
        let since = now - self.shown;
        if since < LIVE_INTERVAL {
            return;
        }
        let operations = tally.operations().saturating_sub(self.operations) as f64 / since.as_secs_f64();
        let bytes = tally.bytes().saturating_sub(self.bytes) as f64 / since.as_secs_f64();
        let seconds = (now - self.started).as_secs_f64();
        let mut stderr = std::io::stderr().lock();
        let _ = write!(
            stderr,
            "\r{seconds:6.1} s  {operations:10.0} IOPS  {:>12}/s  {} errors ",
            show_bytes(bytes),
            tally.errors()
        );
        (self.shown, self.operations, self.bytes) = (now, tally.operations(), tally.bytes());
    }

    fn clear(self) {
        let _ = write!(std::io::stderr(), "\r{:70}\r", "");
    }
}
