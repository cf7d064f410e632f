//! `paired`: Isolane beside the raw TCP floor, in turn, in one run.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use isolane_bench::paired::{Pair, Programs, ROWS, Row, measure, print};
use serde::Serialize;

/// Measure Isolane and the raw TCP floor in turn and print their ratios
#[derive(Parser)]
struct Arguments {
    /// Rows to measure, by name; all by default
    rows: Vec<String>,
    /// Samples of each side for each row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    samples: u16,
    /// Seconds of each sample
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Write all figures to this file as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print the names of the rows and end
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    programs: Programs,
}

/// Everything that was measured, and on what.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    mode: String,
    samples: u16,
    seconds: f64,
    pairs: Vec<Pair>,
}

#[derive(Serialize)]
struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        ROWS.iter().for_each(|row| println!("{}", row.name));
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paired: cannot measure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let mut pairs = Vec::new();
    for row in chosen(&arguments.rows)? {
        eprintln!("measuring {} …", row.name);
        pairs.push(measure(row, &arguments.programs, arguments.samples.into(), arguments.seconds)?);
    }
    print(&pairs);
    let Some(path) = &arguments.json else { return Ok(()) };
    let (samples, seconds) = (arguments.samples, arguments.seconds);
    let report =
        Report { machine: machine(), mode: arguments.programs.mode.clone(), samples, seconds, pairs };
    std::fs::write(path, serde_json::to_vec_pretty(&report)?)
}

fn chosen(names: &[String]) -> io::Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let find = |name: &String| {
        Row::named(name).ok_or_else(|| io::Error::other(format!("there is no row {name}; see paired --list")))
    };
    names.iter().map(find).collect()
}

fn machine() -> Machine {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let system = rustix::system::uname();
    Machine {
        processor: model.trim_start_matches([' ', '\t', ':']).to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: system.release().to_string_lossy().into_owned(),
    }
}
