//! `isolane config`: checks, differences, and the format of configuration files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::engine::ArgValueCompleter;
use isolane_config::{Change, Config, Effect, Gap, diff, gaps, schema};

use serde_json::{Value, json};

use crate::completions::names;
use crate::config_file::{kinds, load, read_text};
use crate::ctl::Running;
use crate::failure::{Failure, printable};
use crate::output;
use crate::serve;

/// Check, compare, and print configuration files of targets
///
/// A file describes a target: its ports, hosts, subsystems, and namespaces.
/// docs/CONFIG.md has every key. Only apply changes a file and a target.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Report all errors of a file, and access without authentication
    ///
    /// Each error has the file, the line, the key, the value, and the remedy. Then follow gaps: hosts that have access
    /// from other machines without authentication, paths that depend on the working directory, and objects without
    /// effect. Volumes are not opened, and addresses are not used. The exit status is 1 if this version cannot serve the
    /// file.
    Check {
        /// Configuration file
        file: PathBuf,
        /// Fail also if a host on another machine has access without authentication
        #[arg(long)]
        strict: bool,
    },
    /// Print the changes from one file to another, and when each takes effect
    ///
    /// A change is live, or affects only associations that hosts make later, or needs a restart of the target.
    Diff {
        /// Configuration file of the target now
        old: PathBuf,
        /// New configuration file
        new: PathBuf,
    },
    /// Make a running target what a file describes
    ///
    /// All changes are made, or none: the target checks the file, opens volumes, reads keys, and makes the changes. Hosts get
    /// one notice. Prints the changes; those that need a restart are only in the file. FILE is the file with which the
    /// target was started, unless --overwrite is given. SIGHUP applies that file.
    Apply {
        /// Configuration file
        file: PathBuf,
        /// Control socket of the target (default: that of the only `isolane serve` that is found)
        #[arg(long, value_name = "PATH", add = ArgValueCompleter::new(names::sockets))]
        socket: Option<PathBuf>,
        /// Check and print the changes, and make none. Volumes are not opened
        #[arg(long)]
        dry_run: bool,
        /// Allow smaller volumes
        #[arg(long)]
        shrink: bool,
        /// Write the text of FILE into the file with which the target was started, if that is another one
        #[arg(long)]
        overwrite: bool,
    },
    #[command(about = DUMP_ABOUT, long_about = DUMP_LONG_ABOUT)]
    Dump(Box<DumpArgs>),
    /// Print the JSON Schema of the file, for editors
    Schema,
}

const DUMP_ABOUT: &str = "Print the file that has the same meaning as arguments of `isolane serve`";
const DUMP_LONG_ABOUT: &str = "\
Print the file that has the same meaning as arguments of `isolane serve`

The volumes are not opened, so --nqn is needed unless all of them are in memory. Paths of files become
absolute, except in volumes made of others. With --config, prints that file in order. `isolane serve --help` explains the arguments.

With --running, prints what a running target serves now, with all changes since its start, also if it was started without
a file. Namespaces that are offline are in it. Protection by `isolane ctl namespace read-only` is in it only for a target
without a file.";

/// Arguments of `dump`.
#[derive(Debug, clap::Args)]
struct DumpArgs {
    /// Print the configuration of a running target instead
    #[arg(long, conflicts_with = "config", conflicts_with_all = serve::FILE_OPTIONS)]
    running: bool,
    /// Control socket of the running target (default: that of the only `isolane serve` that is found)
    #[arg(long, value_name = "PATH", requires = "running", add = ArgValueCompleter::new(names::sockets))]
    socket: Option<PathBuf>,
    #[command(flatten)]
    serve: serve::Args,
}

impl DumpArgs {
    fn text(&self) -> Result<String, Failure> {
        if !self.running {
            return Ok(serve::model::of_args(&self.serve, &kinds())?.to_toml());
        }
        let running = Running::find(self.socket.as_deref())?.execute("GET", "/v1/config", &Value::Null)?;
        Ok(running["text"].as_str().unwrap_or_default().to_owned())
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let text = match &args.action {
        Action::Check { file, strict } => return check(file, *strict),
        Action::Apply { file, socket, dry_run, shrink, overwrite } => {
            let text = read_text(file)?;
            let target = Running::find(socket.as_deref())?;
            if !dry_run && !overwrite {
                check_file(file, &target)?;
            }
            let body = json!({ "text": text, "dry_run": dry_run, "shrink": shrink });
            show_applied(&target.execute("POST", "/v1/config/apply", &body)?)
        }
        Action::Diff { old, new } => show_diff(&diff(&load(old)?, &load(new)?)),
        Action::Dump(args) => args.text()?,
        Action::Schema => {
            return output::write_stdout(&output::to_json(&schema())?).map(|()| ExitCode::SUCCESS);
        }
    };
    output::write_stdout(printable(&text).as_bytes()).map(|()| ExitCode::SUCCESS)
}

/// Checks that a file is the one with which a target was started, if it has one.
fn check_file(file: &Path, target: &Running) -> Result<(), Failure> {
    let running = target.execute("GET", "/v1/upgrade", &Value::Null)?;
    let Some(of_target) = running["file"].as_str().map(Path::new) else { return Ok(()) };
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if real(file) == real(of_target) {
        return Ok(());
    }
    let (file, of_target) = (file.display(), of_target.display());
    let reason = format!("the target was started with {of_target}");
    Err(Failure::new(format!("cannot apply {file}"), reason)
        .with_hint(format_args!("apply that file, or write {file} into it with --overwrite")))
}

fn check(path: &Path, strict: bool) -> Result<ExitCode, Failure> {
    let config = load(path)?;
    let gaps = gaps(&config);
    let unreadable = serve::unreadable_state(&config);
    if unreadable.is_none() {
        serve::check_state(&config)?;
    }
    output::write_stdout(printable(&show_check(path, &config, &gaps, unreadable.as_deref())).as_bytes())?;
    let is_open = gaps.iter().any(|gap| gap.is_open);
    let is_strict = strict || config.server.strict == Some(true);
    let is_served = serve::unsupported(&config).is_empty();
    Ok(if is_strict && is_open || !is_served { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show_check(path: &Path, config: &Config, gaps: &[Gap], unreadable: Option<&str>) -> String {
    let namespaces = config.subsystems.values().map(|one| one.namespaces.iter().flatten().count()).sum();
    let mut text = format!(
        "{}: valid, {}, {}, {}, {}\n",
        path.display(),
        counted(config.ports.len(), "port"),
        counted(config.hosts.len(), "host"),
        counted(config.subsystems.len(), "subsystem"),
        counted(namespaces, "namespace"),
    );
    gaps.iter().for_each(|gap| text += &format!("gap: {gap}\n"));
    unreadable.iter().for_each(|state| text += &format!("not checked: {state}\n"));
    serve::unsupported(config)
        .iter()
        .for_each(|part| text += &format!("not served by this version: {part}\n"));
    text
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn show_diff(changes: &[Change]) -> String {
    let changes = changes.iter().map(|change| (change.to_string(), change.effect.name()));
    show_changes(&changes.collect::<Vec<_>>())
}

/// Returns the text of changes that a target has made.
pub fn show_applied(applied: &Value) -> String {
    let text = |change: &Value, key: &str| change[key].as_str().unwrap_or_default().to_owned();
    let changes = applied["changes"].as_array().cloned().unwrap_or_default();
    let effects = [Effect::Live, Effect::NewAssociations, Effect::Restart].map(Effect::name);
    let effect_of = |change: &Value| {
        let found = effects.into_iter().find(|effect| *effect == text(change, "effect"));
        found.unwrap_or(Effect::Restart.name())
    };
    let changes: Vec<_> = changes.iter().map(|change| (text(change, "change"), effect_of(change))).collect();
    let mut shown = show_changes(&changes);
    if applied["closed"] == false {
        shown += "some volumes are closed once their operations end (isolane ctl status)\n";
    }
    shown
}

/// Returns the text of changes with their effects.
fn show_changes(changes: &[(String, &'static str)]) -> String {
    if changes.is_empty() {
        return "no changes\n".to_owned();
    }
    let mut text = String::new();
    for effect in [Effect::Live, Effect::NewAssociations, Effect::Restart].map(Effect::name) {
        let group: Vec<&String> =
            changes.iter().filter(|(_, of)| *of == effect).map(|(change, _)| change).collect();
        if !group.is_empty() {
            text += &format!("{effect} ({}):\n", counted(group.len(), "change"));
        }
        group.iter().for_each(|change| text += &format!("  {change}\n"));
    }
    text
}
