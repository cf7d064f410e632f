//! The `isolane` command: one file per subcommand, no protocol logic.
//!
//! `main` parses, dispatches, and turns a [`failure::Failure`] into one line on stderr and an exit status.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod bench;
mod choice;
mod completions;
mod config;
mod config_file;
mod control;
mod copy;
mod cores;
mod ctl;
mod deep;
mod discover;
mod doctor;
mod engine;
mod explain;
mod export;
mod failure;
mod heatmap;
mod host_args;
mod info;
mod invocation;
mod key;
mod light;
mod locks;
mod logging;
mod man;
mod memory;
mod output;
mod preload;
mod remote;
mod sections;
mod see_also;
mod serve;
mod signals;
mod slow;
mod snapshot;
mod source_args;
mod top;
mod trace;
mod units;
mod verbs;
mod volume;

use std::io::Write;
use std::process::ExitCode;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    completions::complete_if_asked(Cli::command);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(text) => return show(&text),
    };
    logging::start(
        cli.log_level.unwrap_or_else(|| cli.command.log_level()),
        cli.log_format.unwrap_or_default(),
    );
    signals::ignore_meaningless();
    let done = |()| ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(*args).map(done),
        Command::Export(args) => export::run(&args).map(done),
        Command::Config(args) => config::run(&args),
        Command::Ctl(args) => ctl::run(&args).map(done),
        Command::Discover(args) => discover::run(&args).map(done),
        Command::Doctor(args) => doctor::run(&args),
        Command::Info(args) => info::run(&args).map(done),
        Command::Copy(args) => copy::run(&args).map(done),
        Command::Bench(args) => bench::run(&args).map(done),
        Command::Engine(args) => engine::run(&args).map(done),
        Command::Verbs(args) => verbs::run(&args).map(done),
        Command::Top(args) => top::run(&args).map(done),
        Command::Heatmap(args) => heatmap::run(&args).map(done),
        Command::Explain(args) => explain::run(&args),
        Command::Slow(args) => slow::run(&args).map(done),
        Command::Snapshot(args) => snapshot::run(&args).map(done),
        Command::Trace(args) => trace::run(&args).map(done),
        Command::Light(args) => light::run(&args).map(done),
        Command::Key(args) => key::run(&args).map(done),
        Command::Man(args) => man::run(&args, Cli::command()).map(done),
        Command::Completions(args) => completions::run(&args).map(done),
    };
    control::close();
    match outcome {
        Ok(status) => {
            logging::finish(None);
            status
        }
        Err(failure) => {
            logging::finish(Some(format!("isolane: {failure}\n")));
            let _ = std::io::stdout().flush();
            // No destructors of C++: a volume that did not open can have left threads of librados, which abort without
            // what these destroy.
            signal_hook::low_level::exit(failure.status().into())
        }
    }
}

/// Shows the help, the version, or an error of the arguments.
fn show(text: &clap::Error) -> ExitCode {
    let plain = text.render().to_string();
    let printable = failure::printable(&plain);
    let shown = if text.use_stderr() && printable != plain {
        std::io::stderr().write_all(printable.as_bytes())
    } else {
        text.print().and_then(|()| std::io::stdout().flush())
    };
    match shown {
        Err(error) if !text.use_stderr() && error.kind() != std::io::ErrorKind::BrokenPipe => {
            // Nothing is left to do if stderr fails as well.
            let _ = writeln!(std::io::stderr(), "isolane: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(1)),
    }
}
