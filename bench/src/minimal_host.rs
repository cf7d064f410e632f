//! A minimal NVMe/TCP host, which connects, reads, and counts.
//!
//! Shows what a target does for hosts other than ours, such as one that sends each capsule with its own system call.
//! It checks that each command succeeds and returns the requested number of bytes, and nothing else.

mod connect;
mod lane;

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use connect::Association;
use lane::{Lane, READ_BYTES};

use crate::Report;
use crate::round_robin::measure;

/// Read 4 KiB at a time from an NVMe/TCP target with a minimal host
///
/// Spins over its connections, ignores the data, and sends all commands that became possible in one batch, or each
/// alone, as hosts do whose applications submit one at a time.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Address and port of the target
    pub address: SocketAddr,
    /// NQN of the subsystem
    pub nqn: String,
    /// Commands in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=127))]
    pub depth: u16,
    /// I/O connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Namespaces to read at random: 1 to N, which have the size of namespace 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub namespaces: u32,
    /// Namespace of further reads on the same connections, which do not count, and are sent again whatever their status
    #[arg(long, value_name = "NSID")]
    pub beside: Option<u32>,
    /// Number of these further reads in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 16, requires = "beside", value_parser = clap::value_parser!(u16).range(1..=127))]
    pub beside_depth: u16,
    /// Measure the latency of each read, which costs a clock call for each batch
    #[arg(long)]
    pub latencies: bool,
    /// Send each capsule with its own system call
    #[arg(long)]
    pub unbatched: bool,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Read once over each connection, print `idle`, and keep the connections open until a signal
    #[arg(long)]
    pub idle: bool,
}

/// Measures reads, or holds idle connections.
pub fn run(options: &Options) -> io::Result<Report> {
    let (_associations, mut lanes) = connect(options)?;
    if options.idle {
        match hold(&mut lanes)? {}
    }
    lanes.iter_mut().try_for_each(Lane::start)?;
    let measured = Duration::from_secs_f64(options.seconds);
    let (operations, elapsed) = measure(&mut lanes, measured, Lane::turn, Lane::forget_latencies)?;
    let iops = operations.iter().sum::<u64>() as f64 / elapsed.as_secs_f64();
    let in_flight = f64::from(options.depth) * f64::from(options.connections);
    let mut report = Report::new(iops, READ_BYTES as usize, in_flight);
    if options.latencies {
        let mut all = lane::histogram();
        for lane in &lanes {
            all.add(lane.latencies()).expect("same resolution");
        }
        report.latency_us = report.latency_us.with_percentiles(&all);
    }
    Ok(report)
}

/// Reads once over each connection and keeps them all open.
fn hold(lanes: &mut [Lane]) -> io::Result<Infallible> {
    for lane in lanes {
        lane.start()?;
        while !lane.has_completed()? {}
    }
    println!("idle");
    io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// I/O queues per association; targets limit them.
const MAX_QUEUES: u16 = 50;

fn connect(options: &Options) -> io::Result<(Vec<Association>, Vec<Lane>)> {
    let (mut associations, mut lanes) = (Vec::new(), Vec::new());
    let mut remaining = options.connections;
    while remaining > 0 {
        let queues = remaining.min(MAX_QUEUES);
        let host = associations.len() as u32;
        let association = Association::connect(options.address, &options.nqn, host, queues)?;
        for queue in 1..=queues {
            lanes.push(Lane::new(association.connect_queue(queue)?, association.namespace, options)?);
        }
        associations.push(association);
        remaining -= queues;
    }
    Ok((associations, lanes))
}
