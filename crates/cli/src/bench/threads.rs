//! `--threads`: several threads that share one volume, as a multi-threaded program would.
//!
//! Each thread has a place of its own at the volume and keeps `--depth` operations in flight; their figures
//! are added up.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use isolane_host::{BlockingVolume, Buffer, Completion, Cores, Options, Request, RequestError, Submitter};

use super::place::ThreadPlace;
use super::plan::{Direction, Plan};
use super::tally::Tally;
use crate::failure::{Context, Failure};

/// Several threads instead of one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several threads")]
pub struct ThreadArgs {
    /// Let so many threads share one volume, each with --depth operations in flight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with_all = ["verify", "beside", "spread"])]
    pub threads: Option<u16>,
    /// Whether a thread that waits does the work itself while no other does
    #[arg(long, value_enum, default_value_t = Switch::On, requires = "threads")]
    pub inline: Switch,
    /// Whether operations are handed over and sent together
    #[arg(long, value_enum, default_value_t = Switch::On, requires = "threads")]
    pub batching: Switch,
    /// Place the lanes on these cores, as 0,1 or 0-3: an association for each, driven there alone, and the
    /// lanes of each class dealt out from the first core upward. An operation goes to the core that its
    /// thread is on, if there is a lane of its class. The URI may say it, too: ?cores=LIST
    #[arg(long, value_name = "LIST", requires = "threads")]
    pub cores: Option<Cores>,
    /// Pin the threads to these cores, one after the other
    #[arg(long, value_name = "LIST", requires = "threads", conflicts_with = "core")]
    thread_cores: Option<Cores>,
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Do it
    On,
    /// Do without
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

impl ThreadArgs {
    /// Sets what concerns threads; `total` operations are in flight in sum.
    pub fn apply(&self, options: &mut Options, total: u32) {
        options.inline = self.inline.is_on();
        options.batching = self.batching.is_on();
        options.cores = self.cores.clone().unwrap_or_default();
        options.requests_max = options.requests_max.max(total as usize);
        let on_each = (total as usize).div_ceil(options.lanes);
        options.depth = u16::try_from(on_each).unwrap_or(u16::MAX);
    }

    /// The core of each thread, for as many as there are.
    pub fn homes(&self) -> impl Iterator<Item = Option<usize>> {
        let cores = self.thread_cores.as_ref().map_or(&[][..], Cores::as_slice);
        let count = cores.len();
        (0..).map(move |thread: usize| cores.get(thread % count.max(1)).copied())
    }
}

/// The sum of what all threads did.
pub struct Measured {
    /// Its figures.
    pub tally: Tally,
    /// How long it took.
    pub elapsed: Duration,
    /// Where the threads were.
    pub places: Vec<ThreadPlace>,
}

/// Runs one plan in each thread, on its core if it has one, for `time`.
pub fn measure(
    volume: &BlockingVolume,
    plans: Vec<(Plan, Option<usize>)>,
    time: Duration,
    fua: bool,
) -> Result<Measured, Failure> {
    let started = Instant::now();
    let until = started
        .checked_add(time)
        .ok_or_else(|| Failure::new("--time is too long", "no clock goes so far"))?;
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let thread = |(plan, core): (Plan, Option<usize>)| {
            let submitter = volume.submitter(plan.depth as usize);
            scope.spawn(move || {
                core.map_or(Ok(()), super::pin)?;
                let tally = Worker::new(submitter, plan, fua)?.run(until)?;
                Ok((tally, ThreadPlace::here()))
            })
        };
        let threads: Vec<_> = plans.into_iter().map(thread).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let elapsed = started.elapsed();
    let mut sum = Measured { tally: Tally::new()?, elapsed, places: Vec::new() };
    for of_one in tallies {
        let (tally, place) = of_one?;
        sum.tally.add(&tally)?;
        sum.places.push(place);
    }
    Ok(sum)
}

fn panicked() -> Failure {
    Failure::new("a thread of the measurement ended early", "it panicked")
}

/// What one thread does.
struct Worker {
    submitter: Submitter,
    plan: Plan,
    fua: bool,
    tally: Tally,
    epoch: Instant,
    /// When each operation began, in nanoseconds since the epoch, by tag.
    started_ns: Vec<u64>,
    idle: Vec<(u64, Buffer)>,
    completions: Vec<Completion>,
}

impl Worker {
    fn new(submitter: Submitter, plan: Plan, fua: bool) -> Result<Worker, Failure> {
        let depth = plan.depth as usize;
        let buffer = || {
            let mut buffer = Buffer::contiguous(plan.slot_bytes as usize);
            buffer.as_mut_slice().into_iter().for_each(fastrand::fill);
            buffer
        };
        Ok(Worker {
            submitter,
            fua,
            tally: Tally::new()?,
            epoch: Instant::now(),
            started_ns: vec![0; depth],
            idle: (0..depth as u64).rev().map(|tag| (tag, buffer())).collect(),
            completions: Vec::with_capacity(depth),
            plan,
        })
    }

    fn run(mut self, until: Instant) -> Result<Tally, Failure> {
        let mut now = Instant::now();
        loop {
            if now < until {
                self.submit_idle(now);
            }
            if self.submitter.wait(&mut self.completions) == 0 {
                return Ok(self.tally);
            }
            now = Instant::now();
            self.account(now)?;
        }
    }

    fn submit_idle(&mut self, now: Instant) {
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        while let Some((tag, buffer)) = self.idle.pop() {
            let (direction, slot) = self.plan.next();
            let lba = self.plan.lba(slot);
            let request = match direction {
                Direction::Read => Request::Read { lba, buffer },
                Direction::Write => Request::Write { lba, buffer, fua: self.fua },
            };
            self.started_ns[tag as usize] = now_ns;
            // As many operations as the depth: there is room.
            let _ = self.submitter.submit(request, tag);
        }
    }

    fn account(&mut self, now: Instant) -> Result<(), Failure> {
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        for Completion { tag, result, buffer } in self.completions.drain(..) {
            match result {
                Ok(()) => self.tally.completed(now_ns - self.started_ns[tag as usize], self.plan.slot_bytes),
                Err(error @ (RequestError::Lost(_) | RequestError::Closed)) => {
                    return Err(error).context("the volume is lost");
                }
                Err(error) => self.tally.failed(&error),
            }
            self.idle.extend(buffer.map(|buffer| (tag, buffer)));
        }
        Ok(())
    }
}
