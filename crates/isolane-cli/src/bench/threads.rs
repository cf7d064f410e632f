//! `--threads`: several threads that share one volume, each with its own submitter. Their counters are added.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use isolane_host::{BlockingVolume, Cores, Options};

use super::access_pattern::AccessPattern;
use super::driver::{Driver, Measured, Port};
use super::pace::Pace;
use super::placement::ThreadPlacement;
use crate::failure::Failure;

/// Several threads instead of one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several threads")]
pub struct ThreadArgs {
    /// Share one volume between N threads, each with --depth operations in flight
    #[arg(long, visible_alias = "numjobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with_all = ["verify", "background", "share_depth"])]
    pub threads: Option<u16>,
    /// Let a waiting thread drive the connections while no other thread does
    #[arg(long, value_enum, default_value_t = Switch::On, requires = "threads")]
    pub inline: Switch,
    /// Submit and send operations together
    #[arg(long, value_enum, default_value_t = Switch::On, requires = "threads")]
    pub batching: Switch,
    /// Place the lanes on these cores, as 0,1 or 0-3: one association per core, driven only there, with the lanes of
    /// each class dealt out from the first core upward. An operation goes to the core of its thread, if there is a
    /// lane of its class. The URI may set this also: ?cores=LIST
    #[arg(long, value_name = "LIST", requires = "threads")]
    pub cores: Option<Cores>,
    /// Pin the threads to these cores in turn
    #[arg(long, value_name = "LIST", requires = "threads", conflicts_with = "core")]
    thread_cores: Option<Cores>,
}

/// A feature that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Enable
    On,
    /// Disable
    Off,
}

impl Switch {
    /// Returns `true` for on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

impl ThreadArgs {
    /// Sets the options of a volume with `total` operations in flight.
    pub fn apply(&self, options: &mut Options, total: u32) {
        options.inline_submit = self.inline.is_on();
        options.batching = self.batching.is_on();
        options.cores = self.cores.clone().unwrap_or_default();
        options.max_requests = options.max_requests.max(total as usize);
        let per_lane = (total as usize).div_ceil(options.lanes);
        options.depth = u16::try_from(per_lane).unwrap_or(u16::MAX);
    }

    /// Returns the core of each thread, without an end.
    pub fn thread_cores(&self) -> impl Iterator<Item = Option<usize>> {
        let cores = self.thread_cores.as_ref().map_or(&[][..], Cores::as_slice);
        let count = cores.len();
        (0..).map(move |thread: usize| cores.get(thread % count.max(1)).copied())
    }
}

/// Runs one pattern per thread, on its core if it has one.
pub fn measure(
    volume: &BlockingVolume,
    patterns: Vec<(AccessPattern, Option<usize>)>,
    pace: &Pace,
    fua: bool,
) -> Result<(Measured, Vec<ThreadPlacement>), Failure> {
    let started = Instant::now();
    let paces = pace.for_threads(patterns.len() as u32);
    let results: Vec<_> = std::thread::scope(|scope| {
        let thread = |((pattern, core), mut pace): ((AccessPattern, Option<usize>), Pace)| {
            let submitter = volume.submitter(pattern.depth as usize);
            scope.spawn(move || {
                core.map_or(Ok(()), super::pin)?;
                let port = Port::Submitter { submitter, volume, closed: false };
                let mut driver = Driver::new(port, vec![(pattern, None)], false, fua, pace.stopped());
                driver.prepare()?;
                driver.measure(&mut pace, false);
                Ok((driver.finish()?, ThreadPlacement::current()))
            })
        };
        let threads: Vec<_> = patterns.into_iter().zip(paces).map(thread).collect();
        let panicked = || Failure::new("a thread of the measurement ended early", "it panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let mut sum = Measured { elapsed: elapsed_since(pace.from, started), ..Measured::default() };
    let mut placements = Vec::new();
    for result in results {
        let (measured, placement) = result?;
        sum.stats.add(&measured.stats);
        placements.push(placement);
    }
    Ok((sum, placements))
}

/// Returns the time since the end of the warm-up, or since the start if the run ended in the warm-up.
pub fn elapsed_since(from: Instant, started: Instant) -> Duration {
    let now = Instant::now();
    now - if now > from { from } else { started }
}
