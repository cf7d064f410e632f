//! All cases, measured in turn, and kept as JSON.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::options::{Options, Via, Work};
use super::run::{Report, run};
use crate::measure;

/// What was measured of all cases.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Suite {
    /// By which command, of which commit, on what.
    pub about: String,
    /// Seconds of each sample.
    pub seconds: f64,
    /// The samples of each case, in their order.
    pub cases: Vec<Vec<Report>>,
    /// Those of an engine without a needless lock and with one, for each number of connections.
    #[serde(default)]
    pub engine_locks: Vec<[Vec<Report>; 2]>,
}

/// What to measure all cases with.
#[derive(Clone, Debug, clap::Args)]
pub struct SuiteOptions {
    /// Samples of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub samples: u16,
    /// Seconds of each sample
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// The `isolane` program
    #[arg(long, default_value = "target/release/isolane")]
    pub isolane: PathBuf,
}

/// Measures all cases `samples` times, each once in a round.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &SuiteOptions, about: String) -> io::Result<Suite> {
    let (mut all, locks) = (cases(options), lock_cases(options));
    let (cases, engine_locks) = (vec![Vec::new(); all.len()], vec![Default::default(); locks.len()]);
    let mut suite = Suite { about, seconds: options.seconds, cases, engine_locks };
    all.extend(locks.into_iter().flatten());
    for round in 1..=options.samples {
        let kept = suite.cases.iter_mut().chain(suite.engine_locks.iter_mut().flatten());
        for (case, samples) in all.iter().zip(kept) {
            let report = run(case)?;
            eprintln!(
                "{round}/{} {:?} {:?} {} B, {} connections: {:.1} MB/s, {:.0} ns, {:.0} ns in all",
                options.samples,
                case.work,
                case.via,
                case.size,
                case.connections,
                report.mb_per_s,
                report.app_ns,
                report.total_ns
            );
            samples.push(report);
        }
    }
    Ok(suite)
}

impl Suite {
    /// Reads one.
    ///
    /// # Errors
    /// The system's, or that it is none.
    pub fn read(path: &Path) -> io::Result<Suite> {
        measure::read(path)
    }

    /// Writes it so that a crash leaves the old file or the new one.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        measure::write(self, path)
    }
}

fn cases(options: &SuiteOptions) -> Vec<Options> {
    let case = |work, via, size, lock| Options { work, via, size, lock, ..plain(options) };
    let mut cases = Vec::new();
    for work in [Work::Transmit, Work::Receive] {
        for size in SIZES {
            cases.extend([Via::Native, Via::Engine].map(|via| case(work, via, size, false)));
        }
    }
    for size in SIZES {
        cases.extend(COMBINING.map(|via| case(Work::Transmit, via, size, false)));
    }
    cases.push(case(Work::Transmit, Via::Engine, SIZES[0], true));
    for work in [Work::Echo, Work::Compute] {
        cases.extend([Via::Native, Via::Engine].map(|via| case(work, via, SIZES[0], false)));
    }
    cases
}

/// An engine without a needless lock and with one, one after the other.
fn lock_cases(options: &SuiteOptions) -> Vec<[Options; 2]> {
    let case = |connections, engine_lock| Options { connections, engine_lock, ..plain(options) };
    CONNECTIONS.map(|connections| [false, true].map(|engine_lock| case(connections, engine_lock))).into()
}

fn plain(options: &SuiteOptions) -> Options {
    Options {
        work: Work::Transmit,
        via: Via::Engine,
        size: SIZES[0],
        seconds: options.seconds,
        app_core: 0,
        peer_core: 1,
        engine_core: 1,
        engine_mode: "adaptive".to_owned(),
        lock: false,
        engine_lock: false,
        connections: 1,
        isolane: options.isolane.clone(),
    }
}

/// Native programs that combine messages.
pub const COMBINING: [Via; 3] = [Via::Buffered, Via::Nagle, Via::More];
const SIZES: [u32; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
const CONNECTIONS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
