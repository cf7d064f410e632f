//! The one definition of the command line, from which help, manual pages and completions are made.

use clap::{Parser, Subcommand, ValueEnum};

use crate::sections;

/// Fast storage over plain TCP, in user space.
#[derive(Debug, Parser)]
#[command(name = "isolane", version, before_help = sections::BEFORE_HELP, long_about = LONG_ABOUT, propagate_version = true)]
pub struct Cli {
    /// Log to stderr: off, error, warn, info, debug or trace (default: info for serve and engine, else warn)
    #[arg(long, global = true, value_enum, value_name = "LEVEL", hide_possible_values = true)]
    pub log_level: Option<LogLevel>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. Each is described where its arguments are.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(Box<crate::serve::Args>),
    Discover(crate::discover::Args),
    Info(crate::info::Args),
    Copy(crate::copy::Args),
    Bench(Box<crate::bench::Args>),
    Engine(Box<crate::engine::Args>),
    Man(crate::man::Args),
    Completions(crate::completions::Args),
}

impl Command {
    /// What is logged unless told otherwise: a client has nothing to add to its output but warnings.
    pub fn log_level(&self) -> LogLevel {
        match self {
            Command::Serve(_) | Command::Engine(_) => LogLevel::Info,
            _ => LogLevel::Warn,
        }
    }
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing
    Off,
    /// What was lost or refused
    Error,
    /// And what looks wrong
    Warn,
    /// And what connects, disconnects and changes state
    Info,
    /// And every decision of the control path
    Debug,
    /// Everything
    Trace,
}

/// Sends log lines of `level` and above to stderr.
pub fn start_logging(level: LogLevel) {
    let filter = match level {
        LogLevel::Off => log::LevelFilter::Off,
        LogLevel::Error => log::LevelFilter::Error,
        LogLevel::Warn => log::LevelFilter::Warn,
        LogLevel::Info => log::LevelFilter::Info,
        LogLevel::Debug => log::LevelFilter::Debug,
        LogLevel::Trace => log::LevelFilter::Trace,
    };
    env_logger::Builder::new().filter_level(filter).format_target(false).init();
}

const LONG_ABOUT: &str = "\
Fast storage over plain TCP, in user space: an NVMe/TCP target and host in one program.
No kernel module, no root, no huge pages, no special network card.

A volume is named by a URI: nvme+tcp://HOST[:4420]/NQN[?nsid=N]. IPv6 addresses stand in
brackets. Without an NQN the only subsystem that discovery finds is meant, without nsid the only
namespace. With via=engine an isolated engine connects to it (see `isolane help engine`). Sizes are
in bytes, with k, M, G or T in powers of 1024, or with kB, MB, GB or TB in powers of 1000.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
