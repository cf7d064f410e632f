//! `isolane bench`: measures a volume, or verifies it with patterns.
//!
//! Arguments are in [`args`] and their checks here. [`access_pattern`] and [`pace`] determine the operations, which
//! [`driver`] runs. [`verifier`] checks data, and [`report`], [`workload`], and [`placement`] are the output.

mod access_pattern;
mod args;
mod background;
mod coalesce;
mod driver;
mod explain;
mod lane_selector;
mod pace;
mod pattern;
mod placement;
mod report;
mod slot_history;
mod stats;
mod threads;
mod verifier;
mod workload;

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{BlockingVolume, Cores, LaneClass, LaneCounts, NamespaceInfo, Options, Uri, Wait};

use isolane_observe::snapshot::Snapshot;
use isolane_observe::verdict::BothEnds;

use crate::control;
use crate::cores;
use crate::failure::{Context, Failure, IoContext};
use crate::host_args;
use crate::output;
use crate::signals;

use access_pattern::{AccessPattern, Kind, Rw};
pub use args::Args;
use driver::{Driver, Measured, Port};
use explain::{Observation, OperationStages, PUBLISHED_AFTER};
use lane_selector::LaneSelector;
use pace::Pace;
use placement::{Placement, ThreadPlacement};
use report::Report;
use stats::Stats;
use workload::Workload;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let uri = host_args::parse_uri(&args.uri)?;
    check_options(args, &uri)?;
    // Before a thread is pinned, whose side threads would inherit that.
    control::open("bench", args.core.into_iter().chain(args.threads.all_cores(&uri)))?;
    if let Some(core) = args.core {
        pin(core)?;
    }
    let Run { measured, workload, placement, explained, signal } = match args.threads.threads {
        Some(threads) => run_threads(args, &uri, threads)?,
        None => run_one_thread(args, &uri)?,
    };
    let Measured { stats, background, elapsed, verify, read_back, unread } = measured;
    let mut report = Report::new(&stats, background.as_ref(), elapsed, &verify, workload, placement);
    if let Some((stages, both_ends)) = explained {
        (report.stages, report.both_ends) = (stages, Some(both_ends));
    }
    show(args, &report)?;
    verify.into_result()?;
    read_back?;
    background.iter().chain([&stats]).try_for_each(reject_errors)?;
    match unread {
        Some(reason) => Err(Failure::new("interrupted", reason).by_signal(signal)),
        None => Ok(()),
    }
}

/// A finished run.
struct Run {
    measured: Measured,
    workload: Workload,
    placement: Placement,
    /// Stages of this host, and both ends, with `--explain`.
    explained: Option<(Vec<OperationStages>, BothEnds)>,
    signal: i32,
}

fn run_one_thread(args: &Args, uri: &Uri) -> Result<Run, Failure> {
    let mut client = host_args::connect(uri, options(args)?)?;
    let waker = client.waker();
    let stop = stop_at_signal(move || waker.wake())?;
    let (granted, max_depth) = (client.lanes(), client.info().negotiated.depth);
    let lanes = |class: Option<LaneClass>| LaneSelector::new(&granted, class, args.share_depth);
    let pattern = measured_pattern(args, client.namespace(), args.seed, max_depth)?;
    let mut streams = vec![(pattern, lanes(args.class))];
    if let Some(load) = &args.background {
        let shape = (load.rw.kind(0), load.bytes, load.depth);
        let pattern = checked_pattern(args, client.namespace(), "--background", shape, args.seed)?;
        streams.push((pattern, lanes(None)));
    }
    check_json(args.json.as_deref())?;
    let mut driver = Driver::new(Port::Client(&mut client), streams, args.verify, args.fua, &stop);
    driver.prepare()?;
    let show_progress = std::io::stderr().is_terminal() && args.time > Duration::from_secs(1);
    let observation = begin_observation(args, uri, || driver.snapshot())?;
    // The time of the measurement begins here.
    let mut pace = Pace::new(args, 1, &stop)?;
    let measured = driver.measure(&mut pace, show_progress);
    let explained = observation.map(|observation| {
        let stages = OperationStages::list(&observation.numbers(&client.snapshot()));
        let end = Instant::now() + PUBLISHED_AFTER;
        while Instant::now() < end && stop.load(Ordering::Relaxed) == 0 {
            client.turn(&mut Vec::new(), Wait::Until(end));
        }
        (stages, observation.end(client.snapshot(), &client.connections()))
    });
    let workload = Workload::new(args, (granted, max_depth), &Cores::default());
    let threads = vec![ThreadPlacement::current()];
    let placement = Placement::new(threads, &client.connections(), client.engine());
    Ok(Run { measured, workload, placement, explained, signal: stop.load(Ordering::Relaxed) })
}

/// Begins the observation of both ends, with `--explain`.
fn begin_observation(
    args: &Args,
    uri: &Uri,
    host: impl FnOnce() -> Snapshot,
) -> Result<Option<Observation>, Failure> {
    if !args.explain {
        return Ok(None);
    }
    Ok(Some(Observation::begin(uri, args.host.options()?, host)))
}

/// Measures a volume that threads share.
fn run_threads(args: &Args, uri: &Uri, threads: u16) -> Result<Run, Failure> {
    let mut options = options(args)?;
    args.threads.apply(&mut options, u32::from(args.depth(u16::MAX)) * u32::from(threads));
    if options.cores.is_empty() {
        options.cores = uri.cores.clone();
    }
    let cores = options.cores.clone();
    let mut volume = BlockingVolume::connect(uri, options).context(format!("cannot connect to {uri}"))?;
    if let Some(class) = args.class {
        volume = volume.with_class(class);
    }
    control::add(&volume);
    let max_depth = volume.info().negotiated.depth;
    let seeds = (0..u64::from(threads)).map(|thread| args.seed.wrapping_add(thread));
    let patterns = seeds.map(|seed| measured_pattern(args, volume.namespace(), seed, max_depth));
    let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
    check_json(args.json.as_deref())?;
    // The connections of an engine or of a disconnected association cannot be counted.
    let granted = workload::granted(&volume.connections()).unwrap_or(volume.info().negotiated.lanes);
    warn_about_cores_without_lanes(&cores, granted);
    let patterns = patterns.into_iter().zip(args.threads.thread_cores()).collect();
    let stop = stop_at_signal(|| {})?;
    let observation = begin_observation(args, uri, || volume.snapshot())?;
    let pace = Pace::new(args, threads, &stop)?;
    let (measured, threads) = threads::measure(&volume, patterns, &pace, args.fua)?;
    let workload = Workload::new(args, (granted, max_depth), &cores);
    let placement = Placement::new(threads, &volume.connections(), volume.engine());
    let explained = observation.map(|observation| {
        let stages = OperationStages::list(&observation.numbers(&volume.snapshot()));
        std::thread::sleep(PUBLISHED_AFTER);
        (stages, observation.end(volume.snapshot(), &volume.connections()))
    });
    volume.close();
    Ok(Run { measured, workload, placement, explained, signal: stop.load(Ordering::Relaxed) })
}

/// Returns a number that is set to the first signal that ends a process; the next one ends it.
fn stop_at_signal(wake: impl Fn() + Send + 'static) -> Result<Arc<AtomicI32>, Failure> {
    let stop = Arc::<AtomicI32>::default();
    let stopped = Arc::clone(&stop);
    signals::at_signal(move |signal| {
        // The measurement ends even if this fails.
        let _ = signals::exit_on_next_signal();
        stopped.store(signal, Ordering::Relaxed);
        wake();
    })?;
    Ok(stop)
}

fn warn_about_cores_without_lanes(cores: &Cores, granted: LaneCounts) {
    let (all, used) = (cores.as_slice().len(), workload::cores_with_lanes(cores, granted).len());
    if used < all {
        log::warn!(
            "only the first {used} of the {all} cores {cores} have lanes, as many as the largest class; add lanes with \
             --lanes, or use fewer cores"
        );
    }
}

fn reject_errors(stats: &Stats) -> Result<(), Failure> {
    match (stats.errors(), stats.first_error()) {
        (0, _) => Ok(()),
        (count, error) => {
            Err(Failure::new(format!("{count} operations failed"), error.unwrap_or("unknown reason")))
        }
    }
}

fn pin(core: usize) -> Result<(), Failure> {
    cores::checked(&[core])?;
    isolane_reactor::cpu::pin(core).context(format!("cannot pin the thread to core {core}"))
}

fn options(args: &Args) -> Result<Options, Failure> {
    for (class, lanes) in [(LaneClass::Read, args.read_lanes), (LaneClass::Poll, args.poll_lanes)] {
        if args.class == Some(class) && lanes == 0 {
            log::warn!(
                "the {class} class has no lanes, so --class {class} uses other lanes; add some with --{class}-lanes"
            );
        }
    }
    let mut options = args.host.options()?;
    options.lanes = usize::from(args.lanes);
    options.read_lanes = usize::from(args.read_lanes);
    options.poll_lanes = usize::from(args.poll_lanes);
    options.exact_depth = args.depth.is_some();
    options.depth = args.depth(u16::MAX).saturating_add(args.background.map_or(0, |load| load.depth));
    options.mode = args.mode;
    options.coalesce = args.coalesce;
    options.via = args.via.clone();
    options.observe = args.observe;
    options.max_requests = options.max_requests.max(options.classes().total() * usize::from(options.depth));
    Ok(options)
}

fn check_options(args: &Args, uri: &Uri) -> Result<(), Failure> {
    if args.mix.is_some() && args.rw != Rw::Randrw {
        return Err(Failure::new("cannot use --mix", "only randrw mixes reads and writes")
            .with_hint("add --rw randrw, or remove --mix"));
    }
    if args.threads.threads.is_none() && !uri.cores.is_empty() {
        let reason = "a single thread drives the client with all its lanes";
        return Err(Failure::new("cannot place lanes on cores", reason)
            .with_hint("add --threads, or remove cores from the URI"));
    }
    if args.explain && !args.observe {
        return Err(
            Failure::new("cannot use --explain", "no stages are recorded").with_hint("remove --observe off")
        );
    }
    if args.coalesce.is_some() && (args.via.is_some() || uri.via.is_some()) {
        return Err(Failure::new("cannot use --coalesce", "an engine does not delay operations")
            .with_hint("remove --coalesce, or connect without an engine"));
    }
    Ok(())
}

/// Returns the measured operations.
fn measured_pattern(
    args: &Args,
    namespace: &NamespaceInfo,
    seed: u64,
    max_depth: u16,
) -> Result<AccessPattern, Failure> {
    let shape = (args.rw.kind(args.mix()), args.bs, args.depth(max_depth));
    let pattern = checked_pattern(args, namespace, "--bs", shape, seed)?;
    if args.verify && namespace.read_only {
        return Err(read_only("--verify"));
    }
    if args.verify && pattern.slots > u64::from(u32::MAX) {
        let reason = format!("it takes {} operations", pattern.slots);
        return Err(Failure::new("region too large for --verify", reason).with_hint("limit it with --size"));
    }
    Ok(pattern)
}

/// Checks sizes before anything is read or written.
fn checked_pattern(
    args: &Args,
    namespace: &NamespaceInfo,
    option: &str,
    (kind, bytes, depth): (Kind, u64, u16),
    seed: u64,
) -> Result<AccessPattern, Failure> {
    let block_bytes = u64::from(namespace.block_bytes);
    let capacity = namespace.blocks * block_bytes;
    let available = capacity.saturating_sub(args.offset);
    let region = args.size.unwrap_or(available);
    let invalid = |reason: String, hint: String| {
        Err(Failure::new(format!("cannot use {option} of {bytes} bytes"), reason).with_hint(hint))
    };
    if bytes == 0 || !bytes.is_multiple_of(block_bytes) {
        let reason = format!("the volume has blocks of {block_bytes} bytes");
        return invalid(reason, format!("choose a multiple of {block_bytes}"));
    }
    if bytes > 1 << 30 {
        return invalid("the maximum is 1 GiB".into(), "choose less".into());
    }
    if !args.offset.is_multiple_of(block_bytes) || available == 0 {
        let reason = format!("the volume has {capacity} bytes, in blocks of {block_bytes} bytes");
        return Err(Failure::new(format!("cannot use --offset of {} bytes", args.offset), reason)
            .with_hint("choose the offset of a block"));
    }
    if region > available {
        let reason = format!("the volume has {available} bytes from offset {}", args.offset);
        return Err(Failure::new(format!("cannot use --size of {region} bytes"), reason)
            .with_hint("choose at most that, or remove --size to use all of it"));
    }
    if region < bytes {
        let reason = format!("only {region} bytes of the volume are used");
        return invalid(reason, "choose less, or increase --size".into());
    }
    if namespace.read_only && kind.reads_percent < 100 {
        return Err(read_only(option));
    }
    let pattern = AccessPattern::new(kind, region / bytes, bytes, block_bytes, u32::from(depth), seed);
    Ok(pattern.starting_at(args.offset))
}

fn read_only(option: &str) -> Failure {
    let hint = match option {
        "--verify" => "remove --verify",
        "--background" => "use a background load of reads, as in --background read:1m:32",
        _ => "use --rw read or randread",
    };
    Failure::new("cannot write to the volume", "it is read-only").with_hint(hint)
}

/// Rejects a file that cannot be written before the measurement.
fn check_json(path: Option<&Path>) -> Result<(), Failure> {
    match path {
        Some(path) if path.as_os_str() != "-" => {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map(drop).io_context(format_args!("cannot write {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn show(args: &Args, report: &Report) -> Result<(), Failure> {
    let json_only = args.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    if json_only {
        return output::write_stdout(&output::to_json(report)?);
    }
    let placement = if args.show_placement { report.placement.to_text() } else { String::new() };
    output::write_stdout((report.to_text() + &placement).as_bytes())?;
    match &args.json {
        Some(path) => {
            let written = std::fs::write(path, output::to_json(report)?);
            written.io_context(format_args!("cannot write {}", path.display()))
        }
        None => Ok(()),
    }
}
