//! Definition of the command line, the source of help, manual pages, and completions.

use clap::{Parser, Subcommand, ValueEnum};

use crate::sections;

/// NVMe/TCP target and host in user space
#[derive(Debug, Parser)]
#[command(name = "isolane", version, before_help = sections::BEFORE_HELP, long_about = LONG_ABOUT, propagate_version = true)]
pub struct Cli {
    /// Log to stderr: off, error, warn, info, debug, or trace (default: info for serve and engine, else warn)
    #[arg(long, global = true, value_enum, value_name = "LEVEL", hide_possible_values = true)]
    pub log_level: Option<LogLevel>,
    /// Subcommand
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, described with their arguments.
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
    /// Returns the default log level.
    pub fn log_level(&self) -> LogLevel {
        match self {
            Command::Serve(_) | Command::Engine(_) => LogLevel::Info,
            _ => LogLevel::Warn,
        }
    }
}

/// Amount of logging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// No messages
    Off,
    /// Lost data and rejected requests
    Error,
    /// Warnings and errors
    Warn,
    /// Connections and state changes also
    Info,
    /// Decisions of the control path also
    Debug,
    /// All messages
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
NVMe/TCP target and host in user space, in one program. It needs no kernel module, no root,
no huge pages, and no special network card.

A volume has a URI: nvme+tcp://HOST[:4420]/NQN[?nsid=N]. IPv6 addresses need brackets. The
default NQN is the only subsystem of the discovery log, the default nsid is the only namespace.
With via=engine, an isolated engine connects to the volume (see `isolane help engine`). Sizes are
in bytes, with k, M, G, or T in powers of 1024, or with kB, MB, GB, or TB in powers of 1000.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
