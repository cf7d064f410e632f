//! One measurement: two pinned threads, connections over loopback, a report.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::host::{Outcome, drive};
use super::memory::{Block, blocks};
use super::target::serve;
use super::units::MAX_DEPTH;
use super::work::Work;
use crate::Report;
use crate::cpu::pin;
use crate::socket::Socket;

/// Measure plain loopback TCP with exactly the bytes of NVMe/TCP
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Kind of traffic
    #[arg(long, default_value = "read4k")]
    pub work: Work,
    /// Operations in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=MAX_DEPTH as i64))]
    pub depth: u16,
    /// Number of connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// Send each request with its own system call
    #[arg(long)]
    pub unbatched: bool,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Send buffer of each socket in bytes, 0 for the kernel's default (default: the better of two sizes, each
    /// measured for half of the seconds)
    #[arg(long, value_name = "BYTES")]
    pub send_buffer: Option<usize>,
    /// Core of the target thread
    #[arg(long, default_value_t = 0)]
    pub target_core: usize,
    /// Core of the host thread
    #[arg(long, default_value_t = 1)]
    pub host_core: usize,
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

/// Returns the best of several measurements, each over new connections. A bounded send buffer keeps data in flight in
/// the caches, a small one costs turns, and the phase of the two sides differs between connections.
fn best(mut measure: impl FnMut(usize) -> io::Result<Outcome>) -> io::Result<(usize, Outcome)> {
    let mut best: Option<(usize, Outcome)> = None;
    for bytes in SEND_BUFFERS {
        let outcome = measure(bytes)?;
        if best.as_ref().is_none_or(|(_, found)| rate(&outcome) > rate(found)) {
            best = Some((bytes, outcome));
        }
    }
    Ok(best.expect("at least one size"))
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
            let accept = |_| Socket::new(listener.accept()?.0, false, send_buffer);
            serve((0..count).map(accept).collect::<io::Result<_>>()?, work, depth, served)
        });
        pin(options.host_core)?;
        let connect = |_| Socket::new(TcpStream::connect(address)?, options.unbatched, send_buffer);
        let sockets = (0..count).map(connect).collect::<io::Result<Vec<_>>>()?;
        let measured = Duration::from_secs_f64(seconds);
        let outcome = drive(sockets, work, depth, measured)?;
        target.join().expect("the target thread does not panic")?;
        Ok(outcome)
    })
}

fn report(options: &Options, send_buffer: usize, outcome: &Outcome) -> Report {
    let in_flight = f64::from(options.depth) * f64::from(options.connections);
    let report = Report::new(rate(outcome), options.work.block_bytes(), in_flight);
    let latency_us = report.latency_us.with_percentiles(&outcome.round_trips_ns);
    Report { latency_us, send_buffer: Some(send_buffer), ..report }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::host::histogram;
    use super::*;

    fn options(work: Work, depth: u16, connections: u16) -> Options {
        let (seconds, send_buffer, target_core, host_core) = (0.02, Some(0), 0, 1);
        Options { work, depth, connections, unbatched: false, seconds, send_buffer, target_core, host_core }
    }

    /// Measures for longer and longer until each connection completes an operation, as a busy machine may need.
    fn run_until_flowing(options: &Options) -> Outcome {
        let mut served = blocks(options.work.blocks(), options.work.block_bytes()).unwrap();
        let times = [0.02, 0.2, 2.0, 20.0].into_iter();
        let mut outcomes = times.map(|seconds| measure(options, 0, seconds, &mut served).unwrap());
        outcomes
            .find(|outcome| outcome.operations.iter().all(|count| *count > 0))
            .expect("a connection completed nothing")
    }

    #[test]
    fn all_kinds_of_traffic_flow() {
        for work in [Work::Read4k, Work::Write4k, Work::Read128k, Work::Write128k] {
            for (depth, connections, unbatched) in [(1, 1, false), (7, 1, false), (3, 4, false), (7, 1, true)]
            {
                let (sender, measured) = mpsc::channel();
                thread::spawn(move || {
                    let _ = sender
                        .send(run_until_flowing(&Options { unbatched, ..options(work, depth, connections) }));
                });
                let outcome = measured
                    .recv_timeout(Duration::from_secs(120))
                    .unwrap_or_else(|_| panic!("{work:?} stalls at depth {depth}, unbatched {unbatched}"));
                assert_eq!(outcome.operations.len(), usize::from(connections));
                let operations: u64 = outcome.operations.iter().sum();
                assert_eq!(outcome.round_trips_ns.len(), if depth == 1 { operations } else { 0 });
            }
        }
    }

    #[test]
    fn reports_rates() {
        let (operations, elapsed, round_trips_ns) = (vec![3, 5], Duration::from_secs(2), histogram());
        let outcome = Outcome { operations, elapsed, round_trips_ns };
        let report = report(&options(Work::Read128k, 7, 2), 512, &outcome);
        assert_eq!((report.iops, report.mib_per_s, report.send_buffer), (4.0, 0.5, Some(512)));
        assert_eq!((report.latency_us.mean, report.latency_us.p50), (3.5e6, None));
    }

    #[test]
    fn picks_the_send_buffer_with_the_best_rate() {
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
