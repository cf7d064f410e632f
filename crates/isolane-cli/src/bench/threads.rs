//! `--threads`: several threads that share one volume, each with its own submitter. Their counters are added.

use std::time::Instant;

use isolane_host::BlockingVolume;

use super::access_pattern::AccessPattern;
use super::driver::{Driver, Measured, Port};
use super::pace::{Pace, elapsed_since};
use super::placement::ThreadPlacement;
use crate::failure::Failure;

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
