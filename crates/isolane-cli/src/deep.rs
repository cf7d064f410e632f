//! `--deep`: times of interrupt handlers, tasks, and disk requests, which need root.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolane_inspect::deep::{self, Cores, MAX_DURATION};
use isolane_inspect::source::{Parts, Source};
use isolane_observe::snapshot::Snapshot;
use isolane_observe::verdict::Measured;

use crate::failure::Failure;
use crate::signals;
use crate::units::parse_time_above_zero;

/// Measures the cores of a program for some time. Times that cannot be measured are listed in the result.
///
/// A signal ends the program after the measurement has removed its instance of tracefs.
pub fn measure(source: &Source, duration: Duration) -> Result<Measured, Failure> {
    let snapshot = source.read(Parts::Now).map_err(Failure::from_error)?;
    let signal = Arc::new(AtomicI32::new(0));
    let running = Arc::new(Mutex::new(()));
    let guard = running.lock();
    let (received, measurement) = (signal.clone(), running.clone());
    signals::at_signal(move |number| {
        received.store(number, Ordering::Relaxed);
        drop(measurement.lock());
        std::process::exit(128 + number);
    })?;
    let measured = deep::measure(&cores(&snapshot), duration, || signal.load(Ordering::Relaxed) != 0);
    let number = signal.load(Ordering::Relaxed);
    if number != 0 {
        return Err(Failure::new("--deep", "interrupted").by_signal(number));
    }
    drop(guard);
    Ok(measured.unwrap_or_else(|error| {
        let what = format!("trace events of the kernel: {}: {}", error.path, error.reason);
        Measured { not_seen: vec![(what, error.needs.to_owned())], ..Measured::default() }
    }))
}

/// Returns the cores of a program. If one of its threads is not pinned, tasks on all cores are recorded.
fn cores(snapshot: &Snapshot) -> Cores {
    let cores = &snapshot.numbers.cores;
    let cpus: Option<Vec<u32>> = cores.iter().map(|core| core.cpu).collect();
    Cores { cpus: cpus.unwrap_or_default(), threads: cores.iter().map(|core| core.thread).collect() }
}

/// Parses a time of at most 10 s.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let time = parse_time_above_zero(text)?;
    if time > MAX_DURATION { Err("write 10s or less".into()) } else { Ok(time) }
}
