//! `cargo xtask`: measure Isolane beside the floor and its peers, and print what was measured.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use isolane_bench::measure::{Lab, Plan, Report, Row, about, draw, list, read, rows, run, tables};
use isolane_bench::streams::{self, Suite, SuiteOptions};

/// Tasks around the repository
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure rows of the tables and print them
    Bench(Box<Bench>),
    /// Print the tables of a report again
    Table(Table),
    /// Measure streams natively and through an engine, and print them
    Streams(Streams),
    /// Name all rows and their entrants, and what is missing here
    List(Lab),
}

#[derive(Args)]
struct Bench {
    /// Rows to measure, by name; all by default
    rows: Vec<String>,
    /// Only these entrants, as floor,isolane,spdk; `isolane` stands for `isolane+digests`, too
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Samples of each entrant for each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    samples: u16,
    /// Seconds of each sample
    #[arg(long, value_name = "S", default_value = "2", value_parser = parse_seconds)]
    seconds: f64,
    /// The report; one that is there is added to, and what is measured again is replaced
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// Keep the samples that the report has already, and take those that lack
    #[arg(long)]
    resume: bool,
    /// Take the programs as they are instead of building them
    #[arg(long)]
    no_build: bool,
    #[command(flatten)]
    lab: Lab,
}

#[derive(Args)]
struct Table {
    /// The report
    report: PathBuf,
    /// Put the tables into this Markdown file, between its two lines that say `figures`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Draw the core rows into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Args)]
struct Streams {
    #[command(flatten)]
    options: SuiteOptions,
    /// The report; it is written anew
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// Do not measure: print the report that is there
    #[arg(long)]
    print: bool,
    /// Put the tables into this Markdown file, between its two lines that say `figures`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Take the programs as they are instead of building them
    #[arg(long)]
    no_build: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Bench(bench) => measure(*bench),
        Task::Table(table) => print(&table),
        Task::Streams(streams) => stream(&streams),
        Task::List(lab) => io::stdout().write_all(list(&rows(), |entrant| lab.missing(entrant)).as_bytes()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds without a unit, from 0.01 to 3600".into()),
    }
}

fn measure(bench: Bench) -> io::Result<()> {
    let rows = chosen(&bench.rows)?;
    for peer in &bench.peers {
        let is_known =
            |row: &Row| row.entrants.iter().any(|entrant| [entrant.name, entrant.peer()].contains(&&**peer));
        if !rows.iter().any(is_known) {
            let error = format!("no entrant {peer} is in these rows; see cargo xtask list");
            return Err(io::Error::other(error));
        }
    }
    if !bench.no_build {
        build()?;
    }
    let plan = Plan {
        rows,
        peers: bench.peers,
        samples: bench.samples.into(),
        seconds: bench.seconds,
        json: bench.json,
        is_resumed: bench.resume,
    };
    // Everything that the programs leave behind goes away with this folder.
    let scratch = tempfile::Builder::new().prefix("isolane-bench-").tempdir_in(&bench.lab.scratch)?;
    let lab = Lab { scratch: scratch.path().to_path_buf(), ..bench.lab };
    println!("{}", tables(&run(&plan, &lab)?));
    Ok(())
}

/// Builds what is measured.
fn build() -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["build", "--release", "--quiet", "-p", "isolane-cli", "-p", "isolane-bench"];
    match Command::new(cargo).args(arguments).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("the programs cannot be built")),
    }
}

fn chosen(names: &[String]) -> io::Result<Vec<Row>> {
    let find = |name: &String| {
        let row = rows().into_iter().find(|row| row.name == name);
        row.ok_or_else(|| io::Error::other(format!("there is no row {name}; see cargo xtask list")))
    };
    if names.is_empty() { Ok(rows()) } else { names.iter().map(find).collect() }
}

fn stream(arguments: &Streams) -> io::Result<()> {
    if !arguments.print {
        if !arguments.no_build {
            build()?;
        }
        let about = about("cargo xtask streams");
        streams::measure(&arguments.options, about)?.write(&arguments.json)?;
    }
    let tables = streams::tables(&Suite::read(&arguments.json)?);
    match &arguments.into {
        Some(path) => put(path, &tables),
        None => io::stdout().write_all(tables.as_bytes()),
    }
}

fn print(table: &Table) -> io::Result<()> {
    let report: Report = read(&table.report)?;
    if let Some(path) = &table.svg {
        let svg =
            draw(&report).ok_or_else(|| io::Error::other("without the floor there is nothing to draw"))?;
        fs::write(path, svg)?;
    }
    match &table.into {
        Some(path) => put(path, &tables(&report)),
        None => io::stdout().write_all(tables(&report).as_bytes()),
    }
}

const BEGIN: &str = "<!-- figures -->\n";
const END: &str = "<!-- end of figures -->";

fn put(path: &Path, tables: &str) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let Some((head, tail)) = parts else {
        return Err(io::Error::other(format!("{} has no lines {}and {END}", path.display(), BEGIN)));
    };
    fs::write(path, format!("{head}{BEGIN}\n{tables}\n{END}{tail}"))
}
