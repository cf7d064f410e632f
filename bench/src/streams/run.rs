//! One measurement, from the connection to the report.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use std::{io, process};

use isolane_attach::{Session, SessionOptions};
use serde::Serialize;

use super::app::App;
use super::compute::ComputeThread;
use super::options::{Options, Via, Work};
use super::peer;
use super::transport::Transport;
use crate::cpu;

/// The result of one run. Processor times are in nanoseconds per message.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Work of the application.
    pub work: Work,
    /// Transport of the messages.
    pub via: Via,
    /// Message size.
    pub size: u32,
    /// Messages per second; partial reads count by their bytes.
    pub messages_per_s: f64,
    /// Payload per second, in 10⁶ bytes.
    pub mb_per_s: f64,
    /// Processor time of the application's thread.
    pub app_ns: f64,
    /// Processor time of engine and supervisor.
    pub engine_ns: f64,
    /// Processor time of application, peer, and engine.
    pub total_ns: f64,
    /// Round trips of an echo in microseconds: mean, median, 99th percentile.
    pub round_trip_us: Option<[f64; 3]>,
    /// Speed of a computing thread on the application's core, relative to its speed without messages.
    pub compute_share: Option<f64>,
}

/// Measures on a new thread, because pinning does not end with the measurement.
pub fn run(options: &Options) -> io::Result<Report> {
    let result = thread::scope(|scope| scope.spawn(|| run_pinned(options)).join());
    result.unwrap_or_else(|_| Err(io::Error::other("the measuring thread panicked")))
}

fn run_pinned(options: &Options) -> io::Result<Report> {
    let &Options { work, via, size, app_core, .. } = options;
    let time = Duration::from_secs_f64(options.seconds);
    let session = options.socket.as_deref().map(attach).transpose()?;
    let alone = (work == Work::Compute).then(|| ComputeThread::alone(app_core, time)).transpose()?;
    let (socket, peer) = peer::start(work, size as usize, options.peer_core)?;
    cpu::pin(app_core)?;
    let mut app = App::new(Transport::new(work, via, socket, session.as_ref())?, size as usize);
    let compute = alone.map(|_| ComputeThread::start(app_core)).transpose()?;
    app.work(work, time / 10)?;
    app.round_trips_ns.reset();

    let times = || -> io::Result<[Duration; 3]> {
        let engine = options.supervisor.map_or(Ok(Duration::ZERO), cpu::family_time)?;
        Ok([cpu::thread_time(), engine, cpu::process_time(process::id())?])
    };
    let rounds = || compute.as_ref().map_or(0, ComputeThread::rounds);
    let (rounds_before, start, before) = (rounds(), Instant::now(), times()?);
    let bytes = app.work(work, time)?;
    let (elapsed, after) = (start.elapsed().as_secs_f64(), times()?);
    let rounds = rounds() - rounds_before;
    let messages = bytes as f64 / f64::from(size);
    let ns = |at: usize| after[at].saturating_sub(before[at]).as_nanos() as f64 / messages;
    let [app_ns, engine_ns, process_ns] = [0, 1, 2].map(ns);
    let round_trips = &app.round_trips_ns;
    let [median, p99] = [0.5, 0.99].map(|quantile| round_trips.value_at_quantile(quantile) as f64);
    let round_trip_us = [round_trips.mean(), median, p99].map(|ns| ns / 1e3);
    let report = Report {
        work,
        via,
        size,
        messages_per_s: messages / elapsed,
        mb_per_s: bytes as f64 / elapsed / 1e6,
        app_ns,
        engine_ns,
        total_ns: engine_ns + process_ns,
        round_trip_us: (work == Work::Echo).then_some(round_trip_us),
        compute_share: alone.map(|alone| rounds as f64 / elapsed / alone),
    };
    drop((app, compute, session));
    peer.join().unwrap_or_else(|_| Err(io::Error::other("the peer's thread panicked")))?;
    Ok(report)
}

/// Attaches to the engine, and never starts another one, which would not be measured.
fn attach(path: &Path) -> io::Result<Session> {
    let options = SessionOptions { path: path.into(), spawn_engine: false, ..SessionOptions::default() };
    Session::open(&options).map_err(io::Error::other)
}
