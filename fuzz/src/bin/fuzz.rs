//! Runs fuzz targets, or replays one input.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use isolane_fuzz::{Target, replay, run, targets};

/// Run fuzz targets, or replay one input
#[derive(Parser)]
struct Args {
    /// Run only this target
    #[arg(long, value_parser = target)]
    target: Option<&'static Target>,
    /// Mutated inputs for each target
    #[arg(long, default_value_t = 1_000_000)]
    iterations: u64,
    /// Seed of the mutations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this input on the target, as a finding printed it
    #[arg(long, value_name = "HEX", requires = "target", value_parser = hex)]
    input: Option<Input>,
    /// Print the names of the targets
    #[arg(long)]
    list: bool,
}

#[derive(Clone)]
struct Input(Vec<u8>);

fn main() -> ExitCode {
    let args = Args::parse();
    for target in targets().filter(|target| args.target.is_none_or(|only| only.name == target.name)) {
        if args.list {
            println!("{}", target.name);
            continue;
        }
        let result = match &args.input {
            Some(Input(input)) => replay(target, input),
            None => run(target, args.iterations, args.seed),
        };
        if let Err(finding) = result {
            eprintln!("{finding}");
            return ExitCode::FAILURE;
        }
        println!("{}: no finding", target.name);
    }
    ExitCode::SUCCESS
}

fn target(name: &str) -> Result<&'static Target, String> {
    targets().find(|target| target.name == name).ok_or("unknown target; use `--list`".into())
}

fn hex(text: &str) -> Result<Input, String> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2)).ok_or("not hexadecimal")?;
    Ok(Input(digits.as_chunks().0.iter().map(|[high, low]| (high * 16 + low) as u8).collect()))
}
