//! Rates and round trips, in the JSON shape of `isolane bench`.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use hdrhistogram::Histogram;
use serde::Serialize;

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Operations per second.
    pub iops: f64,
    /// Payload per second.
    pub mib_per_s: f64,
    /// Round trips.
    pub latency_us: Latency,
    /// Send buffer of the floor's sockets in bytes, 0 for the kernel's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<usize>,
}

/// Round trips in microseconds; percentiles are measured by the floor at depth 1, and by the minimal host on request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// By Little's law: operations in flight divided by the rate.
    pub mean: f64,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
}

impl Latency {
    /// Adds the percentiles of these times in nanoseconds, if there are any.
    pub fn with_percentiles(self, times: &Histogram<u64>) -> Latency {
        let at = |quantile| (!times.is_empty()).then(|| times.value_at_quantile(quantile) as f64 / 1e3);
        Latency { p50: at(0.5), p99: at(0.99), p99_9: at(0.999), ..self }
    }
}

impl Report {
    /// Returns the rates of a run with `in_flight` operations of `bytes` each.
    pub fn new(iops: f64, bytes: usize, in_flight: f64) -> Report {
        let latency_us = Latency { mean: in_flight * 1e6 / iops, ..Latency::default() };
        let mib_per_s = iops * bytes as f64 / f64::from(1 << 20);
        Report { iops, mib_per_s, latency_us, send_buffer: None }
    }
}

/// Runs a program: parses its options, measures, and prints the report as JSON, or the error.
pub fn main<O: Parser, R: Serialize>(run: impl FnOnce(&O) -> io::Result<R>) -> ExitCode {
    match run(&O::parse()) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("plain numbers"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot measure: {error}");
            ExitCode::FAILURE
        }
    }
}
