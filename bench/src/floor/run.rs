//! One measurement: two pinned threads, connections over loopback, a report.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::connection::Connection;
use super::host::{Outcome, drive};
use super::memory::{Block, blocks};
use super::target::serve;
use super::work::Work;
use crate::core::pin;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Shape of the traffic
    #[arg(long, default_value = "read4k")]
    pub work: Work,
    /// Operations under way on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Number of connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// Send every request with a system call of its own
    #[arg(long)]
    pub single: bool,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Send buffer of every socket in bytes; 0 leaves it to the kernel. Without it several are measured for
    /// half of the seconds each, and the best one counts
    #[arg(long, value_name = "BYTES")]
    pub send_buffer: Option<usize>,
    /// Core of the serving thread
    #[arg(long, default_value_t = 0)]
    pub target_core: usize,
    /// Core of the asking thread
    #[arg(long, default_value_t = 1)]
    pub host_core: usize,
}

/// What was measured, in the shape of `isolane bench --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Shape of the traffic.
    pub work: Work,
    /// Operations under way on each connection.
    pub depth: u16,
    /// Number of connections.
    pub connections: u16,
    /// Whether every request was sent by itself.
    pub single: bool,
    /// Send buffer of every socket in bytes, 0 for the kernel's choice.
    pub send_buffer: usize,
    /// Operations a second.
    pub iops: f64,
    /// Payload a second.
    pub mib_per_s: f64,
    /// Round trips.
    pub latency_us: Latency,
}

/// Round trips in microseconds; the percentiles are measured at depth 1 only.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// By Little's law: operations under way divided by the rate.
    pub mean: f64,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
}

/// Runs one measurement.
pub fn run(options: &Options) -> io::Result<Report> {
    let mut served = blocks(options.work.blocks(), options.work.block_bytes())?;
    let (send_buffer, outcome) = match options.send_buffer {
        Some(bytes) => (bytes, measure(options, bytes, options.seconds, &mut served)?),
        None => best(|bytes| measure(options, bytes, options.seconds / 2.0, &mut served))?,
    };
    Ok(report(options, send_buffer, &outcome))
}

/// The best of several measurements over fresh connections. A bounded send buffer keeps what is under way in
/// the caches, one that is too small costs turns, and how the two sides fall into step is another matter for
/// each connection; a yardstick takes the best of it.
fn best(mut measure: impl FnMut(usize) -> io::Result<Outcome>) -> io::Result<(usize, Outcome)> {
    let mut best: Option<(usize, Outcome)> = None;
    for bytes in SEND_BUFFERS {
        let outcome = measure(bytes)?;
        if best.as_ref().is_none_or(|(_, found)| rate(&outcome) > rate(found)) {
            best = Some((bytes, outcome));
        }
    }
    Ok(best.expect("several were tried"))
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.operations.iter().sum::<u64>() as f64 / outcome.elapsed.as_secs_f64()
}

/// The best ones for both directions of 128 KiB.
const SEND_BUFFERS: [usize; 2] = [128 << 10, 512 << 10];

fn measure(options: &Options, send_buffer: usize, seconds: f64, served: &mut [Block]) -> io::Result<Outcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (work, depth, count) = (options.work, options.depth as usize, options.connections);
    thread::scope(|scope| {
        let target = scope.spawn(|| {
            pin(options.target_core)?;
            let accept = |_| Connection::new(listener.accept()?.0, send_buffer);
            let accepted = (0..count).map(accept).collect::<io::Result<_>>()?;
            serve(accepted, work, depth, served)
        });
        pin(options.host_core)?;
        let connect = |_| {
            let connection = Connection::new(TcpStream::connect(address)?, send_buffer)?;
            Ok(connection.with_single(options.single))
        };
        let connected = (0..count).map(connect).collect::<io::Result<Vec<_>>>()?;
        let measured = Duration::from_secs_f64(seconds);
        let outcome = drive(connected, work, depth, measured / 10, measured)?;
        target.join().expect("the target thread does not panic")?;
        Ok(outcome)
    })
}

fn report(options: &Options, send_buffer: usize, outcome: &Outcome) -> Report {
    let iops = rate(outcome);
    let under_way = f64::from(options.depth) * f64::from(options.connections);
    let quantile = |q| {
        let taken = &outcome.round_trips_ns;
        (!taken.is_empty()).then(|| taken.value_at_quantile(q) as f64 / 1e3)
    };
    Report {
        work: options.work,
        depth: options.depth,
        connections: options.connections,
        single: options.single,
        send_buffer,
        iops,
        mib_per_s: iops * options.work.block_bytes() as f64 / f64::from(1 << 20),
        latency_us: Latency {
            mean: under_way * 1e6 / iops,
            p50: quantile(0.5),
            p99: quantile(0.99),
            p99_9: quantile(0.999),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::host::histogram;
    use super::*;

    fn options(work: Work, depth: u16, connections: u16) -> Options {
        let (seconds, send_buffer, target_core, host_core) = (0.02, Some(0), 0, 1);
        Options { work, depth, connections, single: false, seconds, send_buffer, target_core, host_core }
    }

    /// What was measured once every connection had an answer in the measured time: on a busy machine a short
    /// one may see none, so it grows.
    fn flowing(options: &Options) -> Outcome {
        let mut served = blocks(options.work.blocks(), options.work.block_bytes()).unwrap();
        let lengths = [0.02, 0.2, 2.0, 20.0].into_iter();
        let mut outcomes = lengths.map(|seconds| measure(options, 0, seconds, &mut served).unwrap());
        outcomes
            .find(|outcome| outcome.operations.iter().all(|count| *count > 0))
            .expect("a connection had no answer")
    }

    #[test]
    fn every_shape_of_traffic_flows_over_one_and_over_several_connections() {
        for work in [Work::Read4k, Work::Write4k, Work::Read128k, Work::Write128k] {
            for (depth, connections, single) in [(1, 1, false), (7, 1, false), (3, 4, false), (7, 1, true)] {
                let (sender, measured) = mpsc::channel();
                thread::spawn(move || {
                    let _ = sender.send(flowing(&Options { single, ..options(work, depth, connections) }));
                });
                let outcome = measured
                    .recv_timeout(Duration::from_secs(120))
                    .unwrap_or_else(|_| panic!("{work:?} stops at depth {depth}, single {single}"));
                assert_eq!(outcome.operations.len(), usize::from(connections));
                let operations: u64 = outcome.operations.iter().sum();
                assert_eq!(outcome.round_trips_ns.len(), if depth == 1 { operations } else { 0 });
            }
        }
    }

    #[test]
    fn a_report_tells_the_rates_of_what_was_measured() {
        let (operations, elapsed, round_trips_ns) = (vec![3, 5], Duration::from_secs(2), histogram());
        let outcome = Outcome { operations, elapsed, round_trips_ns };
        let report = report(&options(Work::Read128k, 7, 2), 512, &outcome);
        assert_eq!((report.iops, report.mib_per_s, report.send_buffer), (4.0, 0.5, 512));
        assert_eq!((report.latency_us.mean, report.latency_us.p50), (3.5e6, None));
    }

    #[test]
    fn the_send_buffer_that_counts_is_the_one_with_the_best_rate() {
        for (counts, expected) in [([4, 5], 1), ([7, 5], 0)] {
            let mut tried = Vec::new();
            let (send_buffer, outcome) = best(|bytes| {
                let operations = vec![counts[tried.len()]];
                tried.push(bytes);
                Ok(Outcome { operations, elapsed: Duration::from_secs(1), round_trips_ns: histogram() })
            })
            .unwrap();
            assert_eq!(tried, SEND_BUFFERS);
            assert_eq!((send_buffer, &outcome.operations[0]), (SEND_BUFFERS[expected], &counts[expected]));
        }
    }
}
