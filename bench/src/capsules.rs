//! A plain NVMe/TCP host: it connects, reads, and counts.
//!
//! It shows what a target does for hosts that are not ours, among them one that sends every capsule on its
//! own. It checks that each command was answered with success and with as many bytes as it asked for, and
//! nothing else.

mod association;
mod lane;
mod pdu;

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use association::Association;
use lane::Lane;

use crate::turns::turn_for;

/// What to read, and from where.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address and port of the target
    pub address: SocketAddr,
    /// NQN of the subsystem; its namespace 1 is read
    pub nqn: String,
    /// Commands under way on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=127))]
    pub depth: u16,
    /// I/O connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Bytes of each read
    #[arg(long, default_value_t = 4096)]
    pub block_bytes: u32,
    /// Send every capsule with a system call of its own
    #[arg(long)]
    pub single: bool,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

/// What was measured, in the shape of `isolane bench --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Operations a second.
    pub iops: f64,
    /// Round trips.
    pub latency_us: Latency,
}

/// Round trips in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// By Little's law: operations under way divided by the rate.
    pub mean: f64,
}

/// Measures.
pub fn run(options: &Options) -> io::Result<Report> {
    let (_associations, mut lanes) = connect(options)?;
    for lane in &mut lanes {
        lane.start(options.depth)?;
    }
    let measured = Duration::from_secs_f64(options.seconds);
    turn_for(&mut lanes, measured / 10, Lane::turn)?;
    let begun = Instant::now();
    let operations = turn_for(&mut lanes, measured, Lane::turn)?;
    let iops = operations.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64();
    let under_way = f64::from(options.depth) * f64::from(options.connections);
    Ok(Report { iops, latency_us: Latency { mean: under_way * 1e6 / iops } })
}

/// Reads once over each connection and keeps them all.
pub fn hold(options: &Options) -> io::Result<Infallible> {
    let (_associations, mut lanes) = connect(options)?;
    for lane in &mut lanes {
        lane.start(1)?;
        while !lane.is_answered()? {}
    }
    println!("idle");
    io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// I/O queues of one association: targets have their limits.
const QUEUES_MAX: u16 = 50;

fn connect(options: &Options) -> io::Result<(Vec<Association>, Vec<Lane>)> {
    let (mut associations, mut lanes) = (Vec::new(), Vec::new());
    let mut left = options.connections;
    while left > 0 {
        let queues = left.min(QUEUES_MAX);
        let mut association =
            Association::connect(options.address, &options.nqn, associations.len() as u32, queues)?;
        for queue in 1..=queues {
            let stream = association.connect_queue(queue)?;
            lanes.push(Lane::new(stream, association.namespace, options)?);
        }
        associations.push(association);
        left -= queues;
    }
    Ok((associations, lanes))
}
