//! Keeps operations in flight and times them.
//!
//! One thread, one client: submit what is idle, take one turn, account for what completed. Each operation
//! in flight owns a number (its tag) and, while idle, a buffer.

use std::io::Write;
use std::time::{Duration, Instant};

use isolane_host::{Client, Completion, Request, RequestError, Wait};
use isolane_memory::Buffer;

use super::plan::{Direction, Plan};
use super::report::Tally;
use super::verifier::{Verdict, Verifier};
use crate::failure::Failure;
use crate::units::show_bytes;

/// How often the live line changes.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);

/// How many slots are tried for one that no operation is on, with `--verify`.
const SLOT_TRIES: usize = 64;

/// Runs a plan on a client.
pub struct Driver<'a> {
    client: &'a mut Client,
    plan: Plan,
    fua: bool,
    verifier: Option<Verifier>,
    tally: Tally,
    /// What times of operations are counted from.
    epoch: Instant,
    elapsed: Duration,
    operations: Vec<Operation>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
}

/// One of the operations that may be in flight.
struct Operation {
    lane: usize,
    started_ns: u64,
    direction: Direction,
    slot: u64,
    sequence: u32,
    buffer: Option<Buffer>,
}

/// Where the next operations of a phase come from.
enum Source<'s> {
    /// The plan, until the time is over.
    Plan { until: Instant },
    /// Exactly these slots.
    Slots { direction: Direction, slots: &'s mut dyn Iterator<Item = u64> },
}

impl<'a> Driver<'a> {
    /// Nothing is in flight yet.
    pub fn new(client: &'a mut Client, plan: Plan, verify: bool, fua: bool) -> Result<Self, Failure> {
        let count = plan.lanes * plan.depth as usize;
        let operation = |index: usize| Operation {
            lane: index % plan.lanes,
            started_ns: 0,
            direction: Direction::Read,
            slot: 0,
            sequence: 0,
            buffer: Some(Buffer::contiguous(plan.slot_bytes as usize)),
        };
        let operations = (0..count).map(operation).collect();
        let verifier = verify.then(|| Verifier::new(&plan, fastrand::u64(1..)));
        Ok(Driver {
            client,
            plan,
            fua,
            verifier,
            tally: Tally::new()?,
            epoch: Instant::now(),
            elapsed: Duration::ZERO,
            operations,
            idle: (0..count).rev().collect(),
            completions: Vec::with_capacity(count),
        })
    }

    /// With `--verify` and reads: writes the whole region once, so that every read can be judged.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        if self.verifier.is_none() || !self.plan.reads() {
            self.fill_buffers();
            return Ok(());
        }
        let mut slots = 0..self.plan.slots;
        self.run(&mut Source::Slots { direction: Direction::Write, slots: &mut slots }, false)?;
        self.reject_failures("writing the patterns")?;
        self.tally = Tally::new()?;
        Ok(())
    }

    /// Runs the plan for `time`.
    pub fn measure(&mut self, time: Duration, live: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let until = started
            .checked_add(time)
            .ok_or_else(|| Failure::new("--time is too long", "no clock goes so far"))?;
        self.run(&mut Source::Plan { until }, live)?;
        self.elapsed = started.elapsed();
        Ok(())
    }

    /// With `--verify`: reads back everything that was written. Gives the figures of the measured phase.
    pub fn finish(mut self) -> Result<(Tally, Duration, Verdict), Failure> {
        let measured = std::mem::replace(&mut self.tally, Tally::new()?);
        if let Some(verifier) = &self.verifier {
            let slots: Vec<u64> = verifier.ledger.judged_slots().map(u64::from).collect();
            let mut slots = slots.into_iter();
            self.run(&mut Source::Slots { direction: Direction::Read, slots: &mut slots }, false)?;
            self.reject_failures("reading back what was written")?;
        }
        let verdict = self.verifier.map(Verifier::into_verdict).unwrap_or_default();
        Ok((measured, self.elapsed, verdict))
    }

    /// One phase: until the source runs dry and nothing is in flight.
    fn run(&mut self, source: &mut Source<'_>, live: bool) -> Result<(), Failure> {
        let mut line = live.then(LiveLine::new);
        let mut now = Instant::now();
        loop {
            self.submit_idle(source, now);
            if self.idle.len() == self.operations.len() {
                break;
            }
            self.client.turn(&mut self.completions, Wait::Forever);
            // What follows on a completion starts when that was seen: one look at the clock for both.
            now = Instant::now();
            self.account(now)?;
            if let Some(line) = &mut line {
                line.show(now, &self.tally);
            }
        }
        if let Some(line) = line {
            line.clear();
        }
        Ok(())
    }

    fn submit_idle(&mut self, source: &mut Source<'_>, now: Instant) {
        let now_ns = self.ns_of(now);
        while let Some(&index) = self.idle.last() {
            let Some((direction, slot)) = self.next(source, now) else { return };
            self.idle.pop();
            self.submit(index, direction, slot, now_ns);
        }
    }

    /// The next operation; with `--verify` on a slot that no other operation is on.
    fn next(&mut self, source: &mut Source<'_>, now: Instant) -> Option<(Direction, u64)> {
        match source {
            Source::Plan { until } if now >= *until => None,
            Source::Plan { .. } => match &mut self.verifier {
                None => Some(self.plan.next()),
                Some(verifier) => (0..SLOT_TRIES)
                    .map(|_| self.plan.next())
                    .find(|&(_, slot)| verifier.ledger.begin(slot as u32)),
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
        let lba = self.plan.lba(slot);
        let operation = &mut self.operations[index];
        let slot_bytes = self.plan.slot_bytes as usize;
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
        let lane = operation.lane;
        self.client.submit(lane, request, index as u64);
    }

    /// Nanoseconds since the driver was made.
    fn ns_of(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    fn account(&mut self, now: Instant) -> Result<(), Failure> {
        let now_ns = self.ns_of(now);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.complete(completion, now_ns)?;
        }
        self.completions = completions;
        Ok(())
    }

    fn complete(&mut self, completion: Completion, now_ns: u64) -> Result<(), Failure> {
        let index = completion.tag as usize;
        let operation = &mut self.operations[index];
        match &completion.result {
            Ok(()) => self.tally.completed(now_ns - operation.started_ns, self.plan.slot_bytes),
            Err(error) => self.tally.failed(error),
        }
        if let Some(verifier) = &mut self.verifier {
            judge(verifier, operation, &completion);
            verifier.ledger.end(operation.slot as u32);
        }
        operation.buffer = completion.buffer;
        self.idle.push(index);
        match completion.result {
            Err(error @ (RequestError::Lost(_) | RequestError::Closed)) => {
                Err(Failure::new("the volume is lost", error))
            }
            _ => Ok(()),
        }
    }

    fn reject_failures(&self, what: &str) -> Result<(), Failure> {
        match self.tally.first_error() {
            None => Ok(()),
            Some(error) => Err(Failure::new(format!("{what} failed"), error)),
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

    fn show(&mut self, now: Instant, tally: &Tally) {
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
