//! `isolane heatmap`: a drawing of time x latency x number of operations.

use std::ffi::OsStr;
use std::path::PathBuf;

use isolane_inspect::heatmap::{By, HeatMap, html};
use isolane_inspect::source::Parts;
use isolane_observe::snapshot::Snapshot;
use isolane_observe::verdict;

use crate::choice::{Choice, one_of};
use crate::failure::{Failure, IoContext};
use crate::source_args::SourceArgs;

/// Draw the latencies of the last minutes as a heat map
///
/// Time goes to the right and latency, on a logarithmic axis, up; a darker cell has more operations. Each item has a
/// strip, all on one scale. An item that is slower than its peers is marked in red, also above the times at which it is
/// slow. An HTML file has the heat maps of all kinds of items, a table of stages, and the verdict, without references to
/// other files.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Items
    #[arg(long, value_parser = one_of(&KINDS), default_value = "device")]
    by: By,
    /// File to write, .svg, .png, or .html
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

const KINDS: [Choice<By>; 4] = [
    ("device", "Members of stripes and mirrors, and other volumes; those on one disk are one", By::Device),
    ("volume", "Volumes that hosts see", By::Volume),
    ("core", "Cores of the program", By::Core),
    ("host", "Hosts", By::Host),
];

/// Form of the file.
#[derive(Clone, Copy)]
enum Format {
    Svg,
    Png,
    Html,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let format = format_of(args)?;
    let snapshot = args.source.local()?.read(Parts::All).map_err(Failure::from_error)?;
    let drawing = draw(&snapshot, args.by, format)?;
    std::fs::write(&args.output, drawing).io_context(format_args!("cannot write {}", args.output.display()))
}

fn format_of(args: &Args) -> Result<Format, Failure> {
    match args.output.extension().and_then(OsStr::to_str) {
        Some("svg") => Ok(Format::Svg),
        Some("png") => Ok(Format::Png),
        Some("html" | "htm") => Ok(Format::Html),
        _ => Err(Failure::new(args.output.display(), "not the name of a drawing")
            .with_hint("end it with .svg, .png, or .html")),
    }
}

fn draw(snapshot: &Snapshot, by: By, format: Format) -> Result<Vec<u8>, Failure> {
    let Some(map) = HeatMap::new(snapshot, by) else {
        let reason = format!("no operation of a {} in {} recorded steps", by.name(), snapshot.steps.len());
        return Err(Failure::new("cannot draw", reason).with_hint("try again after some seconds of I/O"));
    };
    Ok(match format {
        Format::Svg => map.to_svg().into_bytes(),
        Format::Png => map.to_png(),
        Format::Html => html::document(snapshot, by, Some(&verdict_of(snapshot))).into_bytes(),
    })
}

/// Returns the verdict over all recorded steps.
fn verdict_of(snapshot: &Snapshot) -> String {
    let ms = snapshot.steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.length_ms));
    let options = verdict::Options { window_s: ms as f64 / 1000.0, ..verdict::Options::default() };
    verdict::to_text(&verdict::explain(snapshot, options))
}
