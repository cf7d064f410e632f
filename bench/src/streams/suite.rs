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
    let cases = cases(options);
    let mut suite = Suite { about, seconds: options.seconds, cases: vec![Vec::new(); cases.len()] };
    for round in 1..=options.samples {
        for (case, samples) in cases.iter().zip(&mut suite.cases) {
            let report = run(case)?;
            eprintln!(
                "{round}/{} {:?} {:?} {} B: {:.1} MB/s, {:.0} ns, {:.0} ns in all",
                options.samples,
                case.work,
                case.via,
                case.size,
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
    let case = |work, via, size, lock| Options {
        work,
        via,
        size,
        seconds: options.seconds,
        app_core: 0,
        peer_core: 1,
        engine_core: 1,
        engine_mode: "adaptive".to_owned(),
        lock,
        isolane: options.isolane.clone(),
    };
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

/// Native programs that combine messages.
pub const COMBINING: [Via; 3] = [Via::Buffered, Via::Nagle, Via::More];
const SIZES: [u32; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
