//! The client of a measurement: keeps operations in flight and records their latency.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use isolane_verbs::{Device, QueuePair, Registration, SendOperation};
use serde::Serialize;

use super::session::{self, CONTROL, Offer, Operation, RECEIVE, Session, Setup};
use crate::control;
use crate::failure::{Context, Failure};

/// The load to measure.
pub(super) struct Load {
    pub(super) operation: Operation,
    pub(super) bytes: u64,
    pub(super) depth: usize,
    pub(super) time: Duration,
}

impl Load {
    /// Whether each SEND waits for the answer of the server.
    fn echoes(&self) -> bool {
        self.operation == Operation::Send && self.depth == 1
    }
}

/// The result for one size.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Size of an operation in bytes.
    pub(super) bytes: u64,
    /// Operations per second.
    pub(super) operations_per_s: f64,
    /// Payload, in units of 1,048,576 bytes per second.
    pub(super) mib_per_s: f64,
    /// Latencies in microseconds: mean, median, 99th and 99.9th percentile, maximum.
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
    pub(super) max_us: f64,
}

/// Measures a load at a server.
pub(super) fn run(device: &Device, address: SocketAddr, load: &Load) -> Result<Row, Failure> {
    let session = Session::new(device)?;
    let pair = device.connect(address, &session.config).context("cannot connect")?;
    control::add(&pair);
    session.expect_message(&pair)?;
    session.send_message(&pair, Setup { echoes: load.echoes(), bytes: load.bytes }.encode())?;
    while session.next()? != CONTROL {}
    let offer = Offer::decode(&session.message());
    let memory = session.register(load.bytes.max(8))?;
    let operation = operation(load.operation, offer);
    let client = Client { session, pair, memory, operation, bytes: load.bytes };
    let (latencies, elapsed) =
        if load.echoes() { client.ping(load.time)? } else { client.stream(load.depth, load.time)? };
    Ok(row(load, &latencies, elapsed))
}

fn operation(operation: Operation, Offer { address, key: rkey }: Offer) -> SendOperation {
    match operation {
        Operation::Send => SendOperation::Send { immediate: None },
        Operation::Write => SendOperation::Write { address, rkey, immediate: None },
        Operation::Read => SendOperation::Read { address, rkey },
        Operation::CompareSwap => SendOperation::CompareSwap { address, rkey, compare: 0, swap: 0 },
        Operation::FetchAdd => SendOperation::FetchAdd { address, rkey, add: 1 },
    }
}

struct Client {
    session: Session,
    pair: QueuePair,
    memory: Arc<Registration>,
    operation: SendOperation,
    bytes: u64,
}

impl Client {
    /// Sends and waits for the answer. Records half of each round trip.
    fn ping(&self, time: Duration) -> Result<(Histogram<u64>, Duration), Failure> {
        let (mut latencies, start) = (histogram(), Instant::now());
        session::receive(&self.pair, RECEIVE, &self.memory, self.bytes)?;
        let mut sent = start;
        while sent - start < time {
            session::post(&self.pair, 0, self.operation, &self.memory, self.bytes)?;
            while self.session.next()? != RECEIVE {}
            session::receive(&self.pair, RECEIVE, &self.memory, self.bytes)?;
            let now = Instant::now();
            record(&mut latencies, (now - sent) / 2);
            sent = now;
        }
        // Both directions count.
        Ok((latencies, (sent - start) / 2))
    }

    /// Keeps `depth` operations in flight. Records the time from post to completion.
    fn stream(&self, depth: usize, time: Duration) -> Result<(Histogram<u64>, Duration), Failure> {
        let (mut latencies, start) = (histogram(), Instant::now());
        let mut posted = vec![start; depth];
        for slot in 0..depth {
            session::post(&self.pair, slot as u64, self.operation, &self.memory, self.bytes)?;
        }
        let (mut in_flight, mut now) = (depth, start);
        while in_flight > 0 {
            let slot = self.session.next()? as usize;
            now = Instant::now();
            record(&mut latencies, now - posted[slot]);
            in_flight -= 1;
            if now - start < time {
                posted[slot] = now;
                session::post(&self.pair, slot as u64, self.operation, &self.memory, self.bytes)?;
                in_flight += 1;
            }
        }
        Ok((latencies, now - start))
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("valid bounds")
}

fn record(latencies: &mut Histogram<u64>, latency: Duration) {
    latencies.saturating_record((latency.as_nanos() as u64).clamp(1, MAX_LATENCY_NS));
}

fn row(load: &Load, latencies: &Histogram<u64>, elapsed: Duration) -> Row {
    let rate = latencies.len() as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
    let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1000.0;
    Row {
        bytes: load.bytes,
        operations_per_s: rate,
        mib_per_s: rate * load.bytes as f64 / f64::from(1 << 20),
        mean_us: latencies.mean() / 1000.0,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p99_9_us: at(0.999),
        max_us: latencies.max() as f64 / 1000.0,
    }
}

const MAX_LATENCY_NS: u64 = 600_000_000_000;
