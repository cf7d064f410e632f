//! `isolane explain`: the cause of the slow operations of a running program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use isolane_inspect::source::Parts;
use isolane_inspect::system::Root;
use isolane_inspect::{text, topology};
use isolane_observe::snapshot::Snapshot;
use isolane_observe::verdict::{self, NotSeen, Options, Verdict};

use crate::deep;
use crate::failure::{Failure, IoContext};
use crate::output;
use crate::remote::{Page, RemoteTarget, not_isolane};
use crate::source_args::SourceArgs;
use crate::units::parse_time_above_zero;

/// Explain which stage, volume, core, connection, or host causes the slow operations
///
/// The recorder of the program keeps the last 5 minutes, so the verdict covers the time
/// before the command. The operations beyond the quantile are the tail; the time that
/// they lose is divided among the stages. Each cause with a tenth of it or more is a
/// finding, with evidence and a remedy. The grades of evidence are:
///
///   shares      the same hardware or core, as the topology shows
///   moves with  a correlation in time
///   measured    a measured difference
///
/// The last lines list the suspects that were cleared, and the data that could not be
/// read, with the requirement for each.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Time before now, or before the end of a file, that the verdict covers; at most 5m, in steps of 1s, except for a URI
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_window)]
    window: Duration,
    /// Quantile at which the tail begins, from 0.5 to 0.99999
    #[arg(long, value_name = "Q", default_value_t = 0.999, value_parser = parse_quantile)]
    quantile: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Exit with status 3 if there is a finding
    #[arg(long)]
    check: bool,
    /// Also measure interrupt handlers, tasks, and disk requests for 2 s, or for TIME up to 10s; needs root
    ///
    /// The command creates an instance of tracefs, which counts events of the kernel, and removes
    /// it at the end. It adds neighbors with the grade measured to the findings. Without root, the
    /// verdict lists these times as not seen.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = deep::parse_duration,
        conflicts_with_all = ["from", "topology"]
    )]
    deep: Option<Duration>,
    /// Print the hardware of this volume instead: a name, path, or namespace ID
    ///
    /// From the volume to its device, PCI function, interrupt lines, and cores; the cores
    /// of the program with the tasks and interrupts on them; and its connections with their
    /// network devices.
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["window", "quantile", "check"])]
    topology: Option<String>,
    /// Read /proc and /sys below this directory, a copy of the program's system
    #[arg(long, value_name = "DIR", default_value = "/", requires = "topology")]
    root: PathBuf,
}

/// Length of a step of a recorder.
const MIN_LOCAL_WINDOW: Duration = Duration::from_secs(1);
/// Time that a recorder keeps.
const MAX_WINDOW: Duration = Duration::from_secs(300);
/// Exit status with --check if there is a finding.
const FOUND: u8 = 3;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(volume) = &args.topology {
        return show_topology(args, volume);
    }
    let window_s = args.window.as_secs_f64();
    let options = Options { window_s, quantile: args.quantile, ..Options::default() };
    let verdict = match args.source.remote()? {
        Some(target) if args.deep.is_none() => explain_remote(args, &target, options),
        _ => explain_local(args, options),
    }?;
    let is_found = args.check && !verdict.findings.is_empty();
    Ok(if is_found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

fn explain_local(args: &Args, options: Options) -> Result<Verdict, Failure> {
    let source = args.source.local()?;
    if args.window < MIN_LOCAL_WINDOW {
        let window = format_args!("--window {:?}", args.window);
        return Err(Failure::new(window, "recorded steps have 1 s").with_hint("use 1s or more"));
    }
    let measured = args.deep.map(|duration| deep::measure(&source, duration)).transpose()?;
    // Read after the measurement, which the window covers.
    let snapshot = source.read(Parts::All).map_err(Failure::from_error)?;
    let verdict = verdict::explain_measured(&snapshot, options, measured.as_ref());
    output::show(&verdict, args.json, || to_text(&snapshot, &verdict, args.window))?;
    Ok(verdict)
}

/// Explains the connections of one host at a target on another machine.
fn explain_remote(args: &Args, target: &RemoteTarget, options: Options) -> Result<Verdict, Failure> {
    let verdict = match target.observe(args.window)? {
        Page::Isolane { snapshot, not_seen } => verdict_of_page(target, &snapshot, not_seen, options),
        Page::Other { address, model } => {
            let not_seen =
                NotSeen { what: not_isolane(address, &model), needs: String::from("an Isolane target") };
            Verdict { version: verdict::VERSION, not_seen: vec![not_seen], ..Verdict::default() }
        }
    };
    output::show(&verdict, args.json, || verdict::to_text(&verdict))?;
    Ok(verdict)
}

fn verdict_of_page(
    target: &RemoteTarget,
    snapshot: &Snapshot,
    not_seen: Vec<NotSeen>,
    options: Options,
) -> Verdict {
    let mut verdict = verdict::explain(snapshot, options);
    if verdict.operations == 0 {
        verdict.not_seen.push(NotSeen {
            what: format!("operations of {}: a target shows a host only its own", target.identity()),
            needs: String::from("--host-nqn and --host-id of the host that does the I/O"),
        });
    }
    verdict.not_seen.extend(not_seen);
    verdict
}

fn show_topology(args: &Args, name: &str) -> Result<ExitCode, Failure> {
    let snapshot = args.source.local()?.read(Parts::Now).map_err(Failure::from_error)?;
    let root = Root::open(&args.root).io_context(format!("cannot read {}", args.root.display()))?;
    let found = topology::find(&snapshot, name).ok_or_else(|| unknown_volume(&snapshot, name))?;
    let mut topology = topology::describe(&root, &snapshot, found);
    let origin = &snapshot.program.machine;
    let is_own = rustix::system::uname().nodename().to_string_lossy() == **origin;
    if root.is_system() && !origin.is_empty() && !is_own {
        let what = format!("/proc and /sys of {origin}: this is another machine; give a copy with --root");
        topology.not_seen.push(what);
    }
    output::show(&topology, args.json, || topology::to_text(&topology))?;
    Ok(ExitCode::SUCCESS)
}

fn unknown_volume(snapshot: &Snapshot, name: &str) -> Failure {
    const MAX_NAMES: usize = 16;
    let failure = Failure::from_error(format_args!("no volume {}", text::shown_name(name, 60)));
    if snapshot.volumes.is_empty() {
        return failure.with_hint("the program has no volumes; name the socket of another one");
    }
    let names = snapshot.volumes.iter().take(MAX_NAMES).map(|at| text::shown_name(&at.name, 60));
    let names = names.collect::<Vec<_>>().join(", ");
    failure.with_hint(format_args!("use a name, path, or namespace ID, as of one of these: {names}"))
}

fn to_text(snapshot: &Snapshot, verdict: &Verdict, window: Duration) -> String {
    let uptime_ms = snapshot.program.uptime_ms;
    let is_young = u128::from(uptime_ms) < window.as_millis();
    let note = is_young.then(|| format!("the program has run for only {:.1} s\n", uptime_ms as f64 / 1000.0));
    verdict::to_text(verdict) + &note.unwrap_or_default()
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_time_above_zero(text)?;
    if window > MAX_WINDOW {
        Err("the recorder keeps 5 minutes: write 5m or less".into())
    } else {
        Ok(window)
    }
}

fn parse_quantile(text: &str) -> Result<f64, String> {
    let quantile: f64 =
        text.parse().map_err(|_| format!("`{text}` is not a number: write for example 0.999"))?;
    if (0.5..=0.99999).contains(&quantile) { Ok(quantile) } else { Err("write 0.5 to 0.99999".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_windows_and_quantiles_out_of_range() {
        assert_eq!(parse_window("5m"), Ok(MAX_WINDOW));
        assert!(parse_window("301s").is_err() && parse_window("0s").is_err());
        assert_eq!(parse_quantile("0.99"), Ok(0.99));
        for invalid in ["1", "0.4", "NaN", "99", "x"] {
            assert!(parse_quantile(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn names_the_age_of_a_young_program() {
        let mut snapshot = Snapshot::default();
        snapshot.program.uptime_ms = 4_200;
        let verdict = verdict::explain(&snapshot, Options::default());
        let text = to_text(&snapshot, &verdict, Duration::from_secs(10));
        assert!(text.ends_with("the program has run for only 4.2 s\n"), "{text}");
        assert!(!to_text(&snapshot, &verdict, Duration::from_secs(3)).contains("only"));
    }
}
