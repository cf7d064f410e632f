//! `isolane bench`: measure a volume, or check it with patterns.
//!
//! [`args`] has the arguments, their checks are here; [`plan`] says what is done next and [`pace`] when, [`driver`] does it,
//! [`ledger`] and [`pattern`] judge what comes back, [`report`] sums it up, [`workload`] says how it was
//! asked for and [`place`] where it was.

mod args;
mod beside;
mod driver;
mod hold;
mod lanes;
mod ledger;
mod pace;
mod pattern;
mod place;
mod plan;
mod report;
mod tally;
mod threads;
mod verifier;
mod workload;

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use isolane_host::{BlockingVolume, Class, Classes, Cores, NamespaceInfo, Options, Uri};

use crate::failure::{Context, Failure};
use crate::output;
use crate::remote;
use crate::signals;

pub use args::Args;
use args::{ClassArg, Rw};
use beside::Beside;
use driver::Driver;
use lanes::Lanes;
use pace::Pace;
use place::{Placement, ThreadPlace};
use plan::{Kind, Plan};
use report::Report;
use tally::Tallies;
use verifier::Verdict;
use workload::Workload;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    check_mix(args)?;
    if let Some(core) = args.core {
        pin(core)?;
    }
    match args.threads.threads {
        Some(threads) => run_threads(args, threads),
        None => run_one_thread(args),
    }
}

/// Drives a client.
fn run_one_thread(args: &Args) -> Result<(), Failure> {
    let uri = remote::parse_uri(&args.uri)?;
    if !uri.cores.is_empty() {
        return Err(Failure::new(
            "cannot place lanes on cores",
            "one thread drives a client, with all its lanes",
        )
        .remedy("give --threads, or leave cores out of the URI"));
    }
    check_hold(args, &uri)?;
    let mut client = remote::connect(&uri, options(args)?)?;
    let waker = client.waker();
    let Stop { stopped, signal } = stop_at_signal(move || waker.wake())?;
    let plan = plan(args, client.namespace(), args.seed)?;
    check_json(args.json.as_deref())?;
    let beside = args.beside.map(|beside| beside_plan(args, &beside, client.namespace())).transpose()?;
    let granted = client.lanes();
    let lanes = |class: Option<Class>| Lanes::new(&granted, class, args.spread);
    let plan = (plan, lanes(args.class.map(ClassArg::class)));
    let beside = beside.map(|plan| (plan, lanes(None)));
    let mut driver = Driver::new(&mut client, plan, beside, args.verify, args.fua, &stopped)?;
    driver.prepare()?;
    let mut pace = Pace::new(args, 1, &stopped)?;
    driver.measure(&mut pace, live_line(args))?;
    let measured = driver.finish()?;
    let tally = &measured.tally;
    let workload = Workload::new(args, granted, &Cores::default());
    let mut report = tally.report(measured.elapsed, &measured.verdict, workload)?;
    let beside = measured.beside.as_ref().map(Tallies::sum).transpose()?;
    report.beside = beside.map(|tally| tally.stream_report(measured.elapsed));
    let placement = Placement::new(vec![ThreadPlace::here()], &client.connections());
    report.placement = Some(placement.at(client.engine()));
    show(args, &report)?;
    measured.verdict.into_result()?;
    measured.read_back?;
    measured.beside.iter().chain([tally]).try_for_each(reject_errors)?;
    match measured.unread {
        Some(what) => Err(Failure::new("interrupted", what).by_signal(signal.load(Ordering::Relaxed))),
        None => Ok(()),
    }
}

/// Drives a volume that threads share.
fn run_threads(args: &Args, threads: u16) -> Result<(), Failure> {
    let mut options = options(args)?;
    args.threads.apply(&mut options, u32::from(args.depth) * u32::from(threads));
    let uri = remote::parse_uri(&args.uri)?;
    check_hold(args, &uri)?;
    if options.cores.is_empty() {
        options.cores = uri.cores.clone();
    }
    let cores = options.cores.clone();
    let mut volume = BlockingVolume::connect(&uri, options).context(format!("cannot connect to {uri}"))?;
    if let Some(class) = args.class {
        volume = volume.of_class(class.class());
    }
    let plans =
        (0..threads).map(|thread| plan(args, volume.namespace(), args.seed.wrapping_add(u64::from(thread))));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    check_json(args.json.as_deref())?;
    // An association that is down at the moment has no connections to count, nor has an engine's.
    let granted = workload::granted(&volume.connections()).unwrap_or(volume.info().negotiated.lanes);
    warn_of_cores_without_lanes(&cores, granted);
    let plans = plans.into_iter().zip(args.threads.homes()).collect();
    let pace = Pace::new(args, threads, &stop_at_signal(|| {})?.stopped)?;
    let measured = threads::measure(&volume, plans, &pace, args.fua)?;
    let workload = Workload::new(args, granted, &cores);
    let mut report = measured.tally.report(measured.elapsed, &Verdict::default(), workload)?;
    let placement = Placement::new(measured.places, &volume.connections());
    report.placement = Some(placement.at(volume.engine()));
    volume.close();
    show(args, &report)?;
    reject_errors(&measured.tally)
}

/// What the first signal that ends a process sets.
struct Stop {
    stopped: Arc<AtomicBool>,
    signal: Arc<AtomicI32>,
}

/// Stops at the first signal; the next one ends the process.
fn stop_at_signal(wake: impl Fn() + Send + 'static) -> Result<Stop, Failure> {
    let stop = Stop { stopped: Arc::default(), signal: Arc::default() };
    let (flag, number) = (Arc::clone(&stop.stopped), Arc::clone(&stop.signal));
    signals::at_signal(move |signal| {
        // Without it the measurement ends as well.
        let _ = signals::end_at_next_signal();
        number.store(signal, Ordering::Relaxed);
        flag.store(true, Ordering::Relaxed);
        wake();
    })?;
    Ok(stop)
}

fn warn_of_cores_without_lanes(cores: &Cores, granted: Classes) {
    let (all, used) = (cores.as_slice().len(), workload::with_lanes(cores, granted).len());
    if used < all {
        log::warn!(
            "only the first {used} of the {all} cores {cores} have lanes, as many as the largest class; give more \
             with --lanes, or name fewer cores"
        );
    }
}

fn reject_errors(tally: &Tallies) -> Result<(), Failure> {
    match tally.errors() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} operations failed"), driver_error(tally))),
    }
}

fn pin(core: usize) -> Result<(), Failure> {
    isolane_reactor::core::pin(core).map_err(|why| {
        let usable = isolane_reactor::core::usable().unwrap_or_default();
        Failure::new(format!("cannot pin the thread to core {core}"), why)
            .remedy(format!("choose from {usable:?}"))
    })
}

fn driver_error(tally: &Tallies) -> String {
    tally.first_error().unwrap_or("no reason was given").to_owned()
}

fn options(args: &Args) -> Result<Options, Failure> {
    match args.class {
        Some(ClassArg::Read) if args.read_lanes == 0 => log::warn!("{}", no_lanes("read")),
        Some(ClassArg::Poll) if args.poll_lanes == 0 => log::warn!("{}", no_lanes("poll")),
        _ => {}
    }
    let mut options = args.host.options()?;
    options.lanes = usize::from(args.lanes);
    options.read_lanes = usize::from(args.read_lanes);
    options.poll_lanes = usize::from(args.poll_lanes);
    options.depth = args.depth.saturating_add(args.beside.map_or(0, |beside| beside.depth));
    options.mode = args.mode.mode();
    options.hold = args.hold;
    options.via = args.via.clone();
    options.requests_max = options.requests_max.max(options.classes().total() * usize::from(options.depth));
    Ok(options)
}

/// Only randrw mixes.
fn check_mix(args: &Args) -> Result<(), Failure> {
    match args.mix {
        Some(_) if args.rw != Rw::Randrw => {
            Err(Failure::new("--mix cannot be used", "only randrw has reads and writes to mix")
                .remedy("add --rw randrw, or leave --mix out"))
        }
        _ => Ok(()),
    }
}

/// What goes to an engine is not held back.
fn check_hold(args: &Args, uri: &Uri) -> Result<(), Failure> {
    match args.hold {
        Some(_) if args.via.is_some() || uri.via.is_some() => {
            Err(Failure::new("--hold cannot be used", "what goes through an engine is not held back")
                .remedy("leave --hold out, or connect without an engine"))
        }
        _ => Ok(()),
    }
}

/// What is measured.
fn plan(args: &Args, namespace: &NamespaceInfo, seed: u64) -> Result<Plan, Failure> {
    let kind = match args.rw {
        Rw::Read => Kind { random: false, reads_percent: 100 },
        Rw::Write => Kind { random: false, reads_percent: 0 },
        Rw::Randread => Kind { random: true, reads_percent: 100 },
        Rw::Randwrite => Kind { random: true, reads_percent: 0 },
        Rw::Randrw => Kind { random: true, reads_percent: args.mix() },
    };
    let plan = checked_plan(args, namespace, "--bs", kind, args.bs, args.depth, seed)?;
    if args.verify && namespace.is_read_only {
        return Err(read_only("--verify"));
    }
    if args.verify && plan.slots > u64::from(u32::MAX) {
        return Err(Failure::new(
            "cannot verify so large a region",
            format!("{} operations cover it", plan.slots),
        )
        .remedy("limit it with --size"));
    }
    Ok(plan)
}

/// What goes on beside it.
fn beside_plan(args: &Args, beside: &Beside, namespace: &NamespaceInfo) -> Result<Plan, Failure> {
    checked_plan(args, namespace, "--beside", beside.kind, beside.bytes, beside.depth, args.seed)
}

/// Checks sizes before anything is read or written.
fn checked_plan(
    args: &Args,
    namespace: &NamespaceInfo,
    option: &str,
    kind: Kind,
    bytes: u64,
    depth: u16,
    seed: u64,
) -> Result<Plan, Failure> {
    let block_bytes = u64::from(namespace.block_bytes);
    let what = || format!("{option} of {bytes} bytes cannot be used");
    if bytes == 0 || !bytes.is_multiple_of(block_bytes) {
        return Err(Failure::new(what(), format!("the volume has blocks of {block_bytes} bytes"))
            .remedy(format!("choose a multiple of {block_bytes}")));
    }
    if bytes > 1 << 30 {
        return Err(Failure::new(what(), "it is more than 1 GiB").remedy("choose less"));
    }
    let capacity = namespace.blocks * block_bytes;
    let region = args.size.unwrap_or(capacity);
    if region > capacity {
        let what = format!("--size of {region} bytes cannot be used");
        return Err(Failure::new(what, format!("the volume holds {capacity} bytes"))
            .remedy("choose at most that, or leave --size out to use all of it"));
    }
    if region < bytes {
        return Err(Failure::new(what(), format!("only {region} bytes of the volume are used"))
            .remedy("choose less, or more with --size"));
    }
    if namespace.is_read_only && kind.reads_percent < 100 {
        return Err(read_only(option));
    }
    Ok(Plan::new(kind, region / bytes, bytes, block_bytes, u32::from(depth), seed))
}

fn no_lanes(class: &str) -> String {
    format!(
        "the {class} class has no lanes, so --class {class} goes to others; give it some with --{class}-lanes"
    )
}

fn read_only(option: &str) -> Failure {
    let remedy = match option {
        "--verify" => "leave --verify out",
        "--beside" => "read beside it, as in --beside read:1m:32",
        _ => "use --rw read or randread",
    };
    Failure::new("cannot write to the volume", "it is read only").remedy(remedy)
}

fn live_line(args: &Args) -> bool {
    std::io::stderr().is_terminal() && args.time > Duration::from_secs(1)
}

/// Refuses a file that cannot be written before the time is spent.
fn check_json(path: Option<&Path>) -> Result<(), Failure> {
    match path {
        Some(path) if path.as_os_str() != "-" => {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map(drop).map_err(|why| json_failure(path, &why))
        }
        _ => Ok(()),
    }
}

fn json_failure(path: &Path, why: &std::io::Error) -> Failure {
    Failure::of_system(format!("cannot write {}", path.display()), why)
}

fn show(args: &Args, report: &Report) -> Result<(), Failure> {
    let text = || {
        let places = report.placement.as_ref().filter(|_| args.is_where_shown).map(Placement::to_text);
        report.to_text() + &places.unwrap_or_default()
    };
    match &args.json {
        Some(path) if path.as_os_str() == "-" => output::write_stdout(&output::to_json(report)?),
        Some(path) => {
            output::write_stdout(text().as_bytes())?;
            let json = output::to_json(report)?;
            std::fs::write(path, json).map_err(|why| json_failure(path, &why))
        }
        None => output::write_stdout(text().as_bytes()),
    }
}
