//! `isolane ctl subsystem`, `host`, `port`, and `referral`: objects of the configuration file of a running target.

use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use serde_json::{Map, Value, json};

use super::Running;
use crate::completions::names;
use crate::config::show_applied;
use crate::failure::{Failure, printable};
use crate::output;

/// Change of an object.
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    action: Action,
}

/// How a change is made.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Options {
    /// Check and print the changes, and make none
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// Change only the target, and leave the configuration file as it is until the target ends, or the file is applied
    #[arg(long, global = true)]
    pub runtime: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add an object
    Add {
        /// Name in the file; NQN of a subsystem
        name: String,
        /// Keys, as in docs/CONFIG.md; a list is a,b, or as in the file: 'qos={iops=500}'
        #[arg(value_name = "KEY=VALUE", value_parser = parse_key, add = ArgValueCompleter::new(names::keys))]
        keys: Vec<(String, String)>,
    },
    /// Remove an object
    Remove {
        /// Name in the file; NQN of a subsystem
        #[arg(add = ArgValueCandidates::new(names::objects))]
        name: String,
    },
    /// Set keys of an object
    Set {
        /// Name in the file; NQN of a subsystem
        #[arg(add = ArgValueCandidates::new(names::objects))]
        name: String,
        /// Keys, as in docs/CONFIG.md; a list is a,b, or as in the file: 'qos={iops=500}', and KEY= restores the default
        #[arg(value_name = "KEY=VALUE", value_parser = parse_key, required = true, add = ArgValueCompleter::new(names::keys))]
        keys: Vec<(String, String)>,
    },
}

/// Runs the subcommand for objects of this kind.
pub fn run(kind: &str, args: &Args, target: &Running) -> Result<(), Failure> {
    let (action, name, keys) = match &args.action {
        Action::Add { name, keys } => ("add", name, &keys[..]),
        Action::Remove { name } => ("remove", name, &[][..]),
        Action::Set { name, keys } => ("set", name, &keys[..]),
    };
    let edit = json!({ "kind": kind, "name": name, "action": action, "keys": to_map(keys) });
    change(target, edit, args.options)
}

/// Makes one edit of the file and the target, and prints the changes.
pub fn change(target: &Running, edit: Value, Options { dry_run, runtime }: Options) -> Result<(), Failure> {
    let body = json!({ "edits": [edit], "dry_run": dry_run, "runtime": runtime });
    let applied = target.execute("POST", "/v1/config/edit", &body)?;
    output::write_stdout(printable(&show_applied(&applied)).as_bytes())
}

/// Returns keys with their values.
pub fn to_map(keys: &[(String, String)]) -> Map<String, Value> {
    keys.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect()
}

/// Parses `KEY=VALUE`.
pub fn parse_key(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, as listen=10.0.0.1:4420")?;
    Ok((key.to_owned(), value.to_owned()))
}
