//! Definition of the command line, the source of help, manual pages, and completions.

use clap::{Parser, Subcommand};
use log::LevelFilter;

use crate::choice::{Choice, one_of};
use crate::logging::{LOG_FORMATS, LogFormat};
use crate::sections;

/// NVMe/TCP target and host, isolated TCP engine, and RDMA verbs over TCP, in user space
#[derive(Debug, Parser)]
#[command(name = "isolane", version = env!("ISOLANE_VERSION"), before_help = sections::BEFORE_HELP, long_about = LONG_ABOUT, propagate_version = true)]
pub struct Cli {
    /// Log to stderr: off, error, warn, info, debug, or trace (default: info for serve, export, and engine, else warn)
    #[arg(long, global = true, value_parser = one_of(&LOG_LEVELS), value_name = "LEVEL", hide_possible_values = true)]
    pub log_level: Option<LevelFilter>,
    /// Format of log lines: text, or json with one object per line (default: text)
    #[arg(long, global = true, value_parser = one_of(&LOG_FORMATS), value_name = "FORMAT", hide_possible_values = true)]
    pub log_format: Option<LogFormat>,
    /// Subcommand
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, described with their arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(Box<crate::serve::Args>),
    Export(crate::export::Args),
    Config(crate::config::Args),
    Ctl(crate::ctl::Args),
    Discover(crate::discover::Args),
    Doctor(crate::doctor::Args),
    Info(crate::info::Args),
    Copy(crate::copy::Args),
    Bench(Box<crate::bench::Args>),
    Engine(Box<crate::engine::Args>),
    Verbs(Box<crate::verbs::Args>),
    Top(crate::top::Args),
    Heatmap(crate::heatmap::Args),
    Explain(crate::explain::Args),
    Slow(crate::slow::Args),
    Snapshot(crate::snapshot::Args),
    Trace(crate::trace::Args),
    Light(crate::light::Args),
    Key(crate::key::Args),
    Man(crate::man::Args),
    Completions(crate::completions::Args),
}

impl Command {
    /// Returns the default log level.
    pub fn log_level(&self) -> LevelFilter {
        match self {
            Command::Serve(_) | Command::Export(_) | Command::Engine(_) => LevelFilter::Info,
            _ => LevelFilter::Warn,
        }
    }
}

/// Amounts of logging.
const LOG_LEVELS: [Choice<LevelFilter>; 6] = [
    ("off", "No messages", LevelFilter::Off),
    ("error", "Lost data and rejected requests", LevelFilter::Error),
    ("warn", "Warnings and errors", LevelFilter::Warn),
    ("info", "Connections and state changes also", LevelFilter::Info),
    ("debug", "Decisions of the control path also", LevelFilter::Debug),
    ("trace", "All messages", LevelFilter::Trace),
];

const LONG_ABOUT: &str = "\
NVMe/TCP target and host, isolated TCP engine, and RDMA verbs over TCP, in user space and in one
program. It needs no kernel module, no root, no huge pages, and no special network card.

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
