//! Latency and throughput of WRITEs to memory of the host and of a GPU, with and without a memory hog, as JSON.
//!
//! `cargo run --release -p isolane-cuda --example gpu -- [INDEX]`: the index of the GPU (default: 0). Needs the driver
//! library, `libcuda.so.1`, and no toolkit, and ends within 3 minutes. Without a GPU, it prints why it was skipped.

use std::process::ExitCode;
use std::time::Duration;

mod measure;

use measure::{Plan, Report};

fn main() -> ExitCode {
    let index = match std::env::args().nth(1).map_or(Ok(0), |index| index.parse()) {
        Ok(index) => index,
        Err(error) => {
            eprintln!("gpu: the index of the GPU: {error}");
            return ExitCode::from(2);
        }
    };
    // 4 cells of 6 sizes.
    let plan = Plan { index, time: Duration::from_secs(4), limit: Duration::from_secs(150) };
    match measure::run(&plan) {
        Ok(report @ (Report::Measured { .. } | Report::Skipped(_))) => {
            println!("{}", report.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}
