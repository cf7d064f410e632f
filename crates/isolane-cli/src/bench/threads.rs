//! `--threads`: several threads that share one volume, as a multi-threaded program would.
//!
//! Each thread has a place of its own at the volume and keeps `--depth` operations in flight; their figures
//! are added up.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use isolane_host::{
    BlockingVolume, Buffer, Class, Completion, Cores, Options, Request, RequestError, Submitter,
};

use super::driver::GRACE;
use super::pace::Pace;
use super::place::ThreadPlace;
use super::plan::{Direction, Plan};
use super::tally::Tallies;
use crate::failure::Failure;

/// Several threads instead of one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several threads")]
pub struct ThreadArgs {
    /// Let so many threads share one volume, each with --depth operations in flight
    #[arg(long, visible_alias = "numjobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with_all = ["verify", "beside", "spread"])]
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
    pub tally: Tallies,
    /// How long it took.
    pub elapsed: Duration,
    /// Where the threads were.
    pub places: Vec<ThreadPlace>,
}

/// Runs one plan in each thread, on its core if it has one, at this pace. Closes a volume whose operations do not
/// end when the time is over.
pub fn measure(
    volume: &BlockingVolume,
    plans: Vec<(Plan, Option<usize>)>,
    pace: &Pace,
    fua: bool,
) -> Result<Measured, Failure> {
    let started = Instant::now();
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let (running, all_ended) = mpsc::channel::<()>();
        let paces = pace.of_threads(plans.len() as u32);
        let thread = |((plan, core), pace): ((Plan, Option<usize>), Pace)| {
            let (submitter, running) = (volume.submitter(plan.depth as usize), running.clone());
            scope.spawn(move || {
                let _running = running;
                core.map_or(Ok(()), super::pin)?;
                let tally = Worker::new(submitter, plan, fua)?.run(pace)?;
                Ok((tally, ThreadPlace::here()))
            })
        };
        let threads: Vec<_> = plans.into_iter().zip(paces).map(thread).collect();
        drop(running);
        // Nothing is ever sent: the channel ends with the last thread.
        let are_running = || all_ended.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout);
        while !pace.is_over(Instant::now()) && are_running() {}
        let deadline = Instant::now() + GRACE;
        while are_running() {
            // Without connections the target is away; those of an engine are not known here.
            let is_away = volume.connections().is_empty() && volume.engine().is_none();
            if is_away || Instant::now() >= deadline {
                volume.of_class(Class::Default).close();
                break;
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let now = Instant::now();
    let elapsed = now - if now > pace.from { pace.from } else { started };
    let mut sum = Measured { tally: Tallies::new()?, elapsed, places: Vec::new() };
    for of_one in tallies {
        let (tally, place) = of_one?;
        sum.tally.add(&tally)?;
        sum.places.push(place);
    }
    Ok(sum)
}

/// How often the end is checked for.
const TICK: Duration = Duration::from_millis(100);

fn panicked() -> Failure {
    Failure::new("a thread of the measurement ended early", "it panicked")
}

/// What one thread does.
struct Worker {
    submitter: Submitter,
    plan: Plan,
    fua: bool,
    tally: Tallies,
    epoch: Instant,
    /// When each operation began, in nanoseconds since the epoch, and its direction, by tag.
    started: Vec<(u64, Direction)>,
    is_closed: bool,
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
            tally: Tallies::new()?,
            epoch: Instant::now(),
            started: vec![(0, Direction::Read); depth],
            is_closed: false,
            idle: (0..depth as u64).rev().map(|tag| (tag, buffer())).collect(),
            completions: Vec::with_capacity(depth),
            plan,
        })
    }

    fn run(mut self, mut pace: Pace) -> Result<Tallies, Failure> {
        let mut now = Instant::now();
        let mut is_warm = false;
        loop {
            let is_over = self.is_closed || pace.is_over(now);
            if !is_over {
                self.submit_idle(now, &mut pace);
            } else if self.submitter.outstanding() == 0 {
                return Ok(self.tally);
            }
            // Idle operations wait for their turn only if the rate is limited.
            let next = pace.next().filter(|_| !is_over && !self.idle.is_empty());
            self.wait(now, next.map(|next| next.min(pace.until)));
            now = Instant::now();
            // Before what comes now is counted: it has ended after the warm-up.
            if !is_warm && now >= pace.from {
                is_warm = true;
                self.tally = Tallies::new()?;
            }
            self.account(now);
        }
    }

    /// Waits for completions, but no longer than until an operation may start.
    fn wait(&mut self, now: Instant, next: Option<Instant>) {
        match next {
            None => {
                self.submitter.wait(&mut self.completions);
            }
            Some(next) if self.submitter.outstanding() > 0 => {
                self.submitter.wait_until(&mut self.completions, next);
            }
            Some(next) => std::thread::sleep(next.saturating_duration_since(now).min(TICK)),
        }
    }

    fn submit_idle(&mut self, now: Instant, pace: &mut Pace) {
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        while !self.idle.is_empty()
            && pace.start(now)
            && let Some((tag, buffer)) = self.idle.pop()
        {
            let (direction, slot) = self.plan.next();
            let lba = self.plan.lba(slot);
            let request = match direction {
                Direction::Read => Request::Read { lba, buffer },
                Direction::Write => Request::Write { lba, buffer, fua: self.fua },
            };
            self.started[tag as usize] = (now_ns, direction);
            // As many operations as the depth: there is room.
            let _ = self.submitter.submit(request, tag);
        }
    }

    fn account(&mut self, now: Instant) {
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        for Completion { tag, result, buffer } in self.completions.drain(..) {
            let (started_ns, direction) = self.started[tag as usize];
            let tally = self.tally.of(direction);
            match &result {
                Ok(()) => tally.completed(now_ns - started_ns, self.plan.slot_bytes),
                Err(error) => tally.failed(error),
            }
            self.is_closed |= matches!(result, Err(RequestError::Lost(_) | RequestError::Closed));
            self.idle.extend(buffer.map(|buffer| (tag, buffer)));
        }
    }
}
