//! Runs of Isolane and of the floor in turn, and their ratios.
//!
//! Each sample is a fresh process, or a fresh pair of them, so that nothing spins while the other is
//! measured. Samples of the floor and of Isolane alternate: what the machine does besides hits both.

mod program;
mod row;
mod sample;
mod table;

pub use program::Programs;
pub use row::{ROWS, Row};
pub use sample::{Measured, Sample};
pub use table::print;

use std::io;

use serde::Serialize;

/// One row's figures on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Name of the row.
    pub row: &'static str,
    /// Bare TCP.
    pub floor: Measured,
    /// Isolane over the same TCP.
    pub isolane: Measured,
    /// Isolane's rate divided by the floor's.
    pub rate_ratio: f64,
    /// Isolane's mean round trip divided by the floor's.
    pub mean_ratio: f64,
}

/// Measures one row, `samples` times each side, in turn.
pub fn measure(row: &Row, programs: &Programs, samples: usize, seconds: f64) -> io::Result<Pair> {
    let (mut floor, mut isolane) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        floor.push(programs.sample_floor(row, seconds)?);
        isolane.push(programs.sample_isolane(row, seconds)?);
    }
    let (floor, isolane) = (Measured::of(floor), Measured::of(isolane));
    let rate_ratio = isolane.iops.median / floor.iops.median;
    let mean_ratio = isolane.mean_us.median / floor.mean_us.median;
    Ok(Pair { row: row.name, floor, isolane, rate_ratio, mean_ratio })
}
