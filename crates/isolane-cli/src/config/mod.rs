//! `isolane config`: checks, differences, and the format of configuration files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isolane_config::{Change, Config, Effect, Gap, diff, gaps, schema};

use crate::config_file::{kinds, load};
use crate::failure::{Failure, printable};
use crate::output;
use crate::serve;

/// Check, compare, and print configuration files of targets
///
/// A file describes a target: its ports, hosts, subsystems, and namespaces.
/// docs/CONFIG.md has every key. No command here changes a file or a target.
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
    /// effect. Volumes are not opened, and addresses are not used.
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
    #[command(about = DUMP_ABOUT, long_about = DUMP_LONG_ABOUT)]
    Dump(Box<serve::Args>),
    /// Print the JSON Schema of the file, for editors
    Schema,
}

const DUMP_ABOUT: &str = "Print the file that has the same meaning as arguments of `isolane serve`";
const DUMP_LONG_ABOUT: &str = "\
Print the file that has the same meaning as arguments of `isolane serve`

The volumes are not opened, so --nqn is needed unless all of them are in memory. Paths of files become
absolute, except in volumes made of others. With --config, prints that file in order. `isolane serve --help` explains the arguments.";

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let text = match &args.action {
        Action::Check { file, strict } => return check(file, *strict),
        Action::Diff { old, new } => show_diff(&diff(&load(old)?, &load(new)?)),
        Action::Dump(args) => serve::model::of_args(args, &kinds())?.to_toml(),
        Action::Schema => {
            return output::write_stdout(&output::to_json(&schema())?).map(|()| ExitCode::SUCCESS);
        }
    };
    output::write_stdout(printable(&text).as_bytes()).map(|()| ExitCode::SUCCESS)
}

fn check(path: &Path, strict: bool) -> Result<ExitCode, Failure> {
    let config = load(path)?;
    let gaps = gaps(&config);
    output::write_stdout(printable(&show_check(path, &config, &gaps)).as_bytes())?;
    let is_open = gaps.iter().any(|gap| gap.is_open);
    Ok(if strict && is_open { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show_check(path: &Path, config: &Config, gaps: &[Gap]) -> String {
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
    text
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn show_diff(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "no changes\n".to_owned();
    }
    let mut text = String::new();
    for effect in [Effect::Live, Effect::NewAssociations, Effect::Restart] {
        let group: Vec<&Change> = changes.iter().filter(|change| change.effect == effect).collect();
        if !group.is_empty() {
            text += &format!("{} ({}):\n", effect.name(), counted(group.len(), "change"));
        }
        group.iter().for_each(|change| text += &format!("  {change}\n"));
    }
    text
}
