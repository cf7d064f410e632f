//! `--threads`: several threads that share one volume, each with its own submitter. Their counters are added.

use isolane_host::BlockingVolume;

use super::access_pattern::AccessPattern;
use super::driver::{Driver, Measured, Port};
use super::lane_selector::LaneSelector;
use super::pace::Pace;
use super::placement::ThreadPlacement;
use crate::failure::Failure;

/// Runs one pattern per thread, on its core if it has one.
pub fn measure(
    volume: &BlockingVolume,
    patterns: Vec<(AccessPattern, Option<usize>)>,
    pace: &Pace,
    fua: bool,
) -> Result<(Measured, Vec<ThreadPlacement>), Failure> {
    let paces = pace.for_threads(patterns.len() as u32);
    let results: Vec<_> = std::thread::scope(|scope| {
        let thread = |((pattern, core), mut pace): ((AccessPattern, Option<usize>), Pace)| {
            let submitter = volume.submitter(pattern.depth as usize);
            scope.spawn(move || {
                core.map_or(Ok(()), super::pin)?;
                let port = Port::Submitter { submitter, volume, closed: false };
                let streams = vec![(pattern, LaneSelector::single())];
                let mut driver = Driver::new(port, streams, false, fua, pace.stopped());
                driver.prepare()?;
                Ok((driver.measure(&mut pace, false), ThreadPlacement::current()))
            })
        };
        let threads: Vec<_> = patterns.into_iter().zip(paces).map(thread).collect();
        let panicked = || Failure::new("a thread of the measurement ended early", "it panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let (measured, placements): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let sum = measured.into_iter().reduce(|mut sum, one| {
        sum.stats.add(&one.stats);
        Measured { elapsed: sum.elapsed.max(one.elapsed), ..sum }
    });
    Ok((sum.expect("at least one thread"), placements))
}
