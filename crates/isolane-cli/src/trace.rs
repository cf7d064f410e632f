//! `isolane trace`: slow operations as a file for ui.perfetto.dev.

use std::path::PathBuf;

use isolane_inspect::source::Parts;
use isolane_inspect::trace;

use crate::failure::{Context, Failure, IoContext};
use crate::source_args::SourceArgs;

/// Write slow operations and stuck turns as Chrome trace events
///
/// Open the file in ui.perfetto.dev or chrome://tracing. Each core is a row; an operation contains its stages. The
/// file has the slowest operations of each second of the last minutes, not all of them.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let snapshot = args.source.source()?.read(Parts::Now).map_err(Failure::from_error)?;
    let json = serde_json::to_vec(&trace::document(&snapshot)).context("cannot encode JSON")?;
    std::fs::write(&args.output, json).io_context(format_args!("cannot write {}", args.output.display()))
}
