//! `isolane doctor`: checks of the system for settings and neighbors that delay I/O.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isolane_host::Cores;
use isolane_inspect::doctor::{self, Check, Context, Finding, State};
use isolane_inspect::source::Source;
use isolane_inspect::system::{Accesses, Root};

use crate::failure::{Failure, IoContext};
use crate::output;

/// Check the system for settings and neighbors that delay I/O
///
/// Reads files of /proc and /sys, and changes nothing; only --capture writes, to its directory. Takes about one second, because counters are read twice. Without
/// SOCKET, run it as the user and in the control group of the target, since the limits of this process are checked. A check that cannot read
/// its data is not good. docs/DOCTOR.md lists all checks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of a running target, whose cores, volumes, and counters are checked also
    #[arg(value_name = "SOCKET", conflicts_with = "root")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List the checks, and run none
    #[arg(long)]
    list: bool,
    /// Run only this check or area, as cpu.quota or irq; can be repeated
    #[arg(long, value_name = "ID", value_parser = selection)]
    only: Vec<Selection>,
    /// Cores of the reactors (default: all cores of this process)
    #[arg(long, value_name = "LIST")]
    cores: Option<Cores>,
    /// Read files below this directory, a copy of another system, instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Copy the files that the checks read to this new directory, for --root on another machine
    ///
    /// Lists the files on stderr first. The copy has what the checks read, and nothing else: no environment, arguments,
    /// or memory of a process. With SOCKET, it also has names of hosts and volumes.
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    capture: Option<PathBuf>,
    /// Print a shell script with all remedies
    #[arg(long, conflicts_with_all = ["json", "list"])]
    fix: bool,
}

/// Checks with one ID or of one area.
#[derive(Debug, Clone)]
struct Selection(Vec<&'static Check>);

fn selection(name: &str) -> Result<Selection, String> {
    doctor::select(name).map(Selection).ok_or("no such check or area; use `isolane doctor --list`".into())
}

/// Runs the subcommand. Returns the exit status: 0 fine, 3 warnings, 4 errors.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let checks: Vec<&'static Check> = doctor::checks()
        .filter(|check| {
            args.only.is_empty() || args.only.iter().any(|only| only.0.iter().any(|one| one.id == check.id))
        })
        .collect();
    if args.list {
        output::show(&to_json_list(&checks), args.json, || to_text_list(&checks))?;
        return Ok(ExitCode::SUCCESS);
    }
    // The checks take a second.
    if let Some(dir) = args.capture.as_ref().filter(|dir| dir.symlink_metadata().is_ok()) {
        return Err(cannot_copy(dir, &ErrorKind::AlreadyExists.into()));
    }
    let root = Root::open(&args.root).io_context(format!("cannot read {}", args.root.display()))?;
    let root = if args.capture.is_some() { root.recorded() } else { root };
    let cores = args.cores.as_ref().map(|cores| cores.as_slice().iter().map(|core| *core as u32).collect());
    let mut context = Context::new(root, cores);
    if let Some(socket) = &args.socket {
        let source = Source::choose(Some(socket), None).map_err(Failure::from_error)?;
        context = context.with_target(source).map_err(Failure::from_error)?;
    }
    let findings = doctor::run(&mut context, &checks);
    if let Some(dir) = &args.capture {
        capture(&context.accesses(), dir)?;
    }
    if args.fix {
        output::write_stdout(doctor::script(&findings).as_bytes())?;
    } else {
        output::show(&to_json(&findings), args.json, || to_text(&findings))?;
    }
    Ok(ExitCode::from(doctor::exit_status(&findings)))
}

/// Lists the files that the checks have read, and copies them.
fn capture(accesses: &Accesses, dir: &Path) -> Result<(), Failure> {
    let mut text = format!("These files are copied to {}:\n", dir.display());
    text.extend(accesses.files().map(|(path, _)| format!("{}\n", path.escape_debug())));
    io::stderr().write_all(text.as_bytes()).io_context("cannot write to stderr")?;
    doctor::capture(accesses, dir).map_err(|error| cannot_copy(dir, &error))
}

fn cannot_copy(dir: &Path, error: &io::Error) -> Failure {
    let failure = Failure::from_io(format_args!("cannot copy to {}", dir.display()), error);
    match error.kind() {
        ErrorKind::AlreadyExists => failure.with_hint("name a new directory"),
        _ => failure,
    }
}

fn to_json(findings: &[Finding]) -> serde_json::Value {
    serde_json::json!({ "version": 1, "exit_status": doctor::exit_status(findings), "findings": findings })
}

fn to_json_list(checks: &[&Check]) -> serde_json::Value {
    let check = |check: &&Check| {
        serde_json::json!({
            "id": check.id,
            "severity": check.severity,
            "reads": check.reads,
            "good": check.good,
            "reason": check.reason,
        })
    };
    serde_json::json!({ "checks": checks.iter().map(check).collect::<Vec<_>>() })
}

fn to_text_list(checks: &[&Check]) -> String {
    let line = |check: &&Check| format!("{:<14} {:<11} {}\n", check.id, check.severity.name(), check.good);
    checks.iter().map(line).collect()
}

/// Shows the worst findings first.
fn to_text(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| rank(finding));
    let mut text: String = sorted.iter().map(|finding| describe(finding)).collect();
    let count = |name: &str| findings.iter().filter(|finding| label(finding) == name).count();
    let counts = LABELS.map(|name| (name, count(name))).into_iter().filter(|(_, count)| *count > 0).map(
        |(name, count)| format!("{count} {name}{}", if count > 1 && is_countable(name) { "s" } else { "" }),
    );
    text += &format!("{}\n", counts.collect::<Vec<_>>().join(", "));
    text
}

/// Words for findings, the worst first.
const LABELS: [&str; 6] = ["error", "warning", "unseen", "information", "good", "absent"];

fn is_countable(label: &str) -> bool {
    ["error", "warning"].contains(&label)
}

fn label(finding: &Finding) -> &'static str {
    match (finding.state, finding.severity) {
        (State::Bad, severity) => severity.name(),
        (State::Unseen, _) => "unseen",
        (State::Good, _) => "good",
        (State::Absent, _) => "absent",
    }
}

fn rank(finding: &Finding) -> usize {
    LABELS.iter().position(|name| *name == label(finding)).unwrap_or(LABELS.len())
}

fn describe(finding: &Finding) -> String {
    let mut text = format!("{:<11} {:<14} {}\n", label(finding), finding.id, finding.value);
    if [State::Bad, State::Unseen].contains(&finding.state) {
        text += &format!("{:<26} good: {}; {}\n", "", finding.good, finding.reason);
    }
    text.extend(
        finding.remedy.iter().map(|remedy| format!("{:<26} fix: {}\n", "", remedy.trim_start_matches("# "))),
    );
    text
}
