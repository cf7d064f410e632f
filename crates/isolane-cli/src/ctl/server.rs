//! `isolane ctl server`: the table `[server]` of the configuration file of a running target.

use serde_json::json;

use super::Running;
use super::object::{Options, change, parse_key, to_map};
use crate::failure::Failure;

/// Change keys of the target itself in the configuration file and the target
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Set keys of [server]; some of them have no effect before a restart, as the output says
    Set {
        /// Keys, as in docs/CONFIG.md: stall-after=5s, and KEY= restores the default
        #[arg(value_name = "KEY=VALUE", value_parser = parse_key, required = true)]
        keys: Vec<(String, String)>,
    },
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let Action::Set { keys } = &args.action;
    change(target, json!({ "kind": "server", "action": "set", "keys": to_map(keys) }), args.options)
}
