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
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Send buffer of every socket in bytes; 0 leaves it to the kernel. Without it several are measured for half of
    /// the seconds each, and the best one counts
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
        None => best(options, &mut served)?,
    };
    Ok(report(options, send_buffer, &outcome))
}

/// The best of several measurements over fresh connections. A bounded send buffer keeps what is under way in the
/// caches, one that is too small costs turns, and how the two sides fall into step is another matter for each
/// connection; a yardstick takes the best of it.
fn best(options: &Options, served: &mut [Block]) -> io::Result<(usize, Outcome)> {
    let mut best: Option<(usize, Outcome)> = None;
    for bytes in SEND_BUFFERS {
        let outcome = measure(options, bytes, options.seconds / 2.0, served)?;
        if best.as_ref().is_none_or(|(_, found)| rate(&outcome) > rate(found)) {
            best = Some((bytes, outcome));
        }
    }
    Ok(best.expect("several were tried"))
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.operations as f64 / outcome.elapsed.as_secs_f64()
}

/// The best ones for both directions of 128 KiB, each of them twice.
const SEND_BUFFERS: [usize; 4] = [128 << 10, 512 << 10, 128 << 10, 512 << 10];

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
        let connect = |_| Connection::new(TcpStream::connect(address)?, send_buffer);
        let connected = (0..count).map(connect).collect::<io::Result<_>>()?;
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
    use super::*;

    #[test]
    fn every_shape_of_traffic_flows_over_one_and_over_several_connections() {
        for work in [Work::Read4k, Work::Write4k, Work::Read128k, Work::Write128k] {
            for (depth, connections) in [(1, 1), (7, 1), (3, 4)] {
                let seconds = 0.02;
                let (send_buffer, target_core, host_core) = (Some(0), 0, 1);
                let options =
                    Options { work, depth, connections, seconds, send_buffer, target_core, host_core };
                // Every lane has had an answer when this returns; a busy machine may not get farther in the time.
                let report = run(&options).unwrap();
                assert_eq!(report.connections, connections, "{work:?} at depth {depth}");
            }
        }
    }

    #[test]
    fn the_send_buffer_that_is_measured_is_one_of_those_that_were_tried() {
        let (work, depth, connections, seconds) = (Work::Write128k, 4, 1, 0.02);
        let (send_buffer, target_core, host_core) = (None, 0, 1);
        let options = Options { work, depth, connections, seconds, send_buffer, target_core, host_core };
        assert!(SEND_BUFFERS.contains(&run(&options).unwrap().send_buffer));
    }
}
