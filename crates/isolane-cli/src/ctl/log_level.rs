//! `isolane ctl log-level`: the level of the log of a running target.

use serde_json::{Value, json};

use super::Running;
use crate::failure::Failure;
use crate::output;

/// Show or set the level of the log, until the target ends
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Level (default: show the present one)
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    level: Option<String>,
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let answer = match &args.level {
        Some(level) => target.execute("POST", "/v1/log-level", &json!({ "level": level }))?,
        None => target.execute("GET", "/v1/log-level", &Value::Null)?,
    };
    output::write_stdout(format!("{}\n", answer["level"].as_str().unwrap_or_default()).as_bytes())
}
