//! `isolane snapshot`: all data of a running program, as one document.

use std::path::{Path, PathBuf};

use isolane_inspect::source::Parts;

use crate::failure::{Failure, IoContext};
use crate::output;
use crate::source_args::SourceArgs;

/// Write all data of a running program to a file
///
/// The file is one JSON document: volumes, latencies and stages since the start and in
/// the last minutes, slow operations, connections, cores, and readings of the system.
/// It has names of volumes, hosts, and processes, and no data of volumes. `isolane
/// explain`, `slow`, and other commands read it with --from. Its JSON schema is
/// docs/snapshot.schema.json.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Write to this file (default: stdout)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let text = args.source.source()?.read_text(Parts::All).map_err(Failure::from_error)?;
    match &args.output {
        Some(path) if path != Path::new("-") => {
            std::fs::write(path, text).io_context(format_args!("cannot write {}", path.display()))
        }
        _ => output::write_stdout(&text),
    }
}
