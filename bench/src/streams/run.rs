//! One measurement, from the connection to the report.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::app::App;
use super::compute::Computing;
use super::engine::Engine;
use super::options::{Options, Via, Work};
use super::peer;
use super::way::Way;
use crate::core::pin;
use crate::processor;

/// What was measured. Processor time is in nanoseconds for each message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What the application did.
    pub work: Work,
    /// Who did its network processing.
    pub via: Via,
    /// Bytes of a message.
    pub size: u32,
    /// Whether a needless lock was taken for each message.
    pub lock: bool,
    /// Whether the engine took one at each look at a stream.
    #[serde(default)]
    pub engine_lock: bool,
    /// Connections that were transmitted on in turn.
    #[serde(default = "one")]
    pub connections: u16,
    /// Messages a second; read in parts, they count by their bytes.
    pub messages_per_s: f64,
    /// Payload a second, in 10⁶ bytes.
    pub mb_per_s: f64,
    /// Processor time of the application's thread.
    pub app_ns: f64,
    /// That of the engine and its supervisor.
    pub engine_ns: f64,
    /// That of all: application, peer and engine.
    pub total_ns: f64,
    /// Round trips of an echo in microseconds: mean, median, 99th percentile.
    pub round_trip_us: Option<[f64; 3]>,
    /// Speed of a thread that computes on the application's core, of what it has there alone.
    pub compute_share: Option<f64>,
}

fn one() -> u16 {
    1
}

/// Measures, on a thread of its own: what that is pinned to does not stay with the caller.
///
/// # Errors
/// The system's; and that of the engine, if it cannot be started.
pub fn run(options: &Options) -> io::Result<Report> {
    let ended = thread::scope(|scope| scope.spawn(|| run_pinned(options)).join());
    ended.unwrap_or_else(|_| Err(io::Error::other("a measurement has ended in a panic")))
}

/// Leaves the calling thread pinned to the application's core.
fn run_pinned(options: &Options) -> io::Result<Report> {
    let time = Duration::from_secs_f64(options.seconds);
    let engine = match options.via {
        Via::Engine => Some(Engine::start(options)?),
        Via::Native | Via::Buffered | Via::Nagle | Via::More => None,
    };
    let alone = match options.work {
        Work::Compute => Some(Computing::alone(options.app_core, time)?),
        _ => None,
    };
    let size = options.size as usize;
    if options.connections > 1 && options.work != Work::Transmit {
        let why = "several connections are only for transmitting; use --work transmit, or --connections 1";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let (sockets, peer) = peer::start(options.work, size, options.peer_core, options.connections)?;
    pin(options.app_core)?;
    let session = engine.as_ref().map(Engine::session);
    let ways = sockets.into_iter().map(|socket| Way::new(options.work, options.via, socket, session));
    let mut app = App::new(ways.collect::<io::Result<_>>()?, size, options.lock);
    let computing = alone.map(|_| Computing::start(options.app_core)).transpose()?;
    app.work(options.work, time / 10)?;
    app.round_trips_ns.reset();

    let taken = |engine: &Option<Engine>| -> io::Result<_> {
        let engine = engine.as_ref().map_or(Ok(Duration::ZERO), Engine::processor_time)?;
        Ok((processor::of_thread(), engine, processor::of_process(std::process::id())?))
    };
    let rounds = computing.as_ref().map_or(0, Computing::rounds);
    let (begun, before) = (Instant::now(), taken(&engine)?);
    let bytes = app.work(options.work, time)?;
    let (elapsed, after) = (begun.elapsed().as_secs_f64(), taken(&engine)?);
    let rounds = computing.as_ref().map_or(0, Computing::rounds) - rounds;
    let messages = bytes as f64 / f64::from(options.size);
    let each = |from: Duration, to: Duration| to.saturating_sub(from).as_nanos() as f64 / messages;
    let (engine_ns, process_ns) = (each(before.1, after.1), each(before.2, after.2));
    let round_trips = &app.round_trips_ns;
    let report = Report {
        work: options.work,
        via: options.via,
        size: options.size,
        lock: options.lock,
        engine_lock: options.engine_lock,
        connections: options.connections,
        messages_per_s: messages / elapsed,
        mb_per_s: bytes as f64 / elapsed / 1e6,
        app_ns: each(before.0, after.0),
        engine_ns,
        total_ns: engine_ns + process_ns,
        round_trip_us: (options.work == Work::Echo).then(|| {
            [
                round_trips.mean(),
                round_trips.value_at_quantile(0.5) as f64,
                round_trips.value_at_quantile(0.99) as f64,
            ]
            .map(|ns| ns / 1e3)
        }),
        compute_share: alone.map(|alone| rounds as f64 / elapsed / alone),
    };
    drop((app, computing, engine));
    peer.join().unwrap_or_else(|_| Err(io::Error::other("the peer's thread has ended")))?;
    Ok(report)
}
