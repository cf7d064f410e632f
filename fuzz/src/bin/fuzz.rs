//! Runs fuzz targets for as long as wanted, or one input again.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use isolane_fuzz::{TARGETS, Target, replay, run, target};

const HELP: &str = "\
Usage: fuzz [--target NAME] [--iterations N] [--seed S] [--input HEX] [--list]

  --target NAME    one target only (default: all of them, one after the other)
  --iterations N   changed inputs for each target (default: 1000000)
  --seed S         where the changes start (default: 1)
  --input HEX      run this input on the target, as a finding printed it
  --list           print the names of the targets";

struct Options {
    targets: Vec<&'static Target>,
    iterations: u64,
    seed: u64,
    input: Option<Vec<u8>>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    match parse(&arguments) {
        Ok(options) => fuzz(&options),
        Err(error) => {
            eprintln!("fuzz: {error}\n\n{HELP}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(options: &Options) -> ExitCode {
    for target in &options.targets {
        let result = match &options.input {
            Some(input) => replay(target, input),
            None => run(target, options.iterations, options.seed),
        };
        if let Err(finding) = result {
            eprintln!("{finding}");
            return ExitCode::FAILURE;
        }
        println!("{}: nothing found", target.name);
    }
    ExitCode::SUCCESS
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options =
        Options { targets: TARGETS.iter().collect(), iterations: 1_000_000, seed: 1, input: None };
    let (pairs, rest) = arguments.as_chunks::<2>();
    if let [flag] = rest {
        return Err(format!("{flag} needs a value"));
    }
    for [flag, value] in pairs {
        match flag.as_str() {
            "--target" => {
                options.targets = vec![target(value).ok_or(format!("no target is called {value}"))?]
            }
            "--iterations" => options.iterations = number(value)?,
            "--seed" => options.seed = number(value)?,
            "--input" => options.input = Some(hex(value)?),
            _ => return Err(format!("{flag} is not known")),
        }
    }
    Ok(options)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits =
        digits.filter(|digits| digits.len().is_multiple_of(2)).ok_or("the input is not hexadecimal")?;
    Ok(digits.as_chunks().0.iter().map(|[high, low]| (high * 16 + low) as u8).collect())
}
