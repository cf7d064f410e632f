//! `isolane top`: volumes, devices, connections, cores, and slow operations of a running program.

mod panels;
mod plain;
#[cfg(test)]
#[path = "../../../isolane-inspect/src/sample.rs"]
mod sample;
mod screen;
mod state;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::Duration;

use isolane_inspect::source::{Parts, Source};

use self::panels::View;
use crate::failure::Failure;
use crate::output;
use crate::source_args::SourceArgs;
use crate::units::parse_time_above_zero;

/// Show latencies, rates, and slow operations of a running program
///
/// Shows quantiles and rates over the last second, twice a second: volumes with
/// the stages in which their operations spend time, devices next to their peers,
/// connections, cores, and slow operations. From a file of `isolane snapshot`, it
/// shows the last recorded seconds.
///
/// Keys: q ends the program; Tab and 1 to 5 select a table; s sorts by the next
/// column, and r reverses the order; / filters the rows; Space pauses; arrows,
/// PgUp, and PgDn scroll. In a file, [ goes a second back, and ] forward.
/// NO_COLOR turns colors off. If standard output is not a terminal, the command
/// prints all tables once.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Print all tables once, as text
    #[arg(long)]
    once: bool,
    /// Time over which quantiles and rates are computed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time_above_zero)]
    window: Duration,
}

/// Columns if the output is not a terminal.
const PLAIN_WIDTH: usize = 160;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let source = args.source.source()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_plain = args.once || is_dumb || !std::io::stdout().is_terminal();
    let view = first_view(&source, args.window, is_plain)?;
    if !is_plain {
        let answers = source.is_live().then(|| terminal::read_in_thread(reader(source, args.source.clone())));
        return terminal::run(view, answers, args.window);
    }
    let is_terminal = std::io::stdout().is_terminal();
    let columns =
        is_terminal.then(ratatui::crossterm::terminal::size).and_then(Result::ok).map(|size| size.0);
    let width = columns.map_or(PLAIN_WIDTH, |columns| usize::from(columns.max(80)));
    output::write_stdout(plain::text(&view, width).as_bytes())
}

/// Returns a reader of the program. If no socket was named, another program that runs replaces it after its end.
fn reader(mut source: Source, args: SourceArgs) -> impl FnMut() -> terminal::Answer + Send + 'static {
    move || {
        let answer = source.read(Parts::Now);
        if answer.is_err()
            && let Ok(found) = args.source()
        {
            source = found;
        }
        answer
    }
}

/// Returns the last steps of a file, or the numbers of a program: over `window` if the view is the only one, otherwise
/// since its start.
fn first_view(source: &Source, window: Duration, is_only: bool) -> Result<View, Failure> {
    let read = |parts| source.read(parts).map_err(Failure::from_error);
    if !source.is_live() {
        return Ok(View::of_last_steps(read(Parts::All)?, window.as_secs().max(1), 0));
    }
    let earlier = read(Parts::Now)?;
    if !is_only {
        return Ok(View::between(None, earlier));
    }
    std::thread::sleep(window);
    Ok(View::between(Some(&earlier), read(Parts::Now)?))
}
