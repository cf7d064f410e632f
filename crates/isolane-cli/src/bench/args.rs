//! The arguments of `isolane bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use isolane_host::{Class, Hold, Via};

use super::beside::Beside;
use super::hold::parse_hold;
use super::threads::ThreadArgs;
use crate::remote::{HostArgs, ModeArg};
use crate::units::{parse_bytes, parse_time, parse_time_above_zero};

/// Measure a volume, or check it with patterns
///
/// Keeps `--depth` operations in flight on each of `--lanes` connections for `--time`, all from one thread,
/// and prints operations and MiB (1,048,576 bytes) a second and the distribution of latencies in
/// microseconds.
///
/// Memory that nobody has written yet is slow at its first write, because the system makes and clears each
/// page then, and fast at reads, because all of it is one page of zeroes. A fresh memory volume, or a sparse
/// file, is therefore written once before it is measured: `--rw write --bs 1m --time 10s`, or longer for a
/// large one; `--size` makes it small.
///
/// Ctrl-C ends the measurement and prints the results so far; with `--verify` nothing more is read back then, and the
/// exit status is 130. A target that is away when the time is over is not
/// waited for: the operations in flight count as errors, and the exit status is 1.
///
/// WRITES DESTROY WHAT IS ON THE VOLUME: write, randwrite, randrw, as --rw and as --beside, and --verify need
/// a volume without data worth keeping.
///
/// With `--verify` every block that is written carries its address and a sequence number, and is checked
/// whenever it is read; at the end everything that was written is read back. A workload that reads writes the
/// whole volume, or --size of it, once before the measurement. A write that was never
/// acknowledged (because the target went away) may read as old or new; anything else is an error and the exit
/// status is 1.
///
/// With `--threads` that many threads share one volume and keep `--depth` operations in flight each. Then
/// `--cores` places its lanes on several cores:
/// `--threads 2 --thread-cores 0,1 --cores 0,1 --lanes 2 --where`.
///
/// With `--beside` other operations are kept in flight on the same lanes, and both are measured apart:
/// `--depth 16 --beside write:1m:32` shows what small reads suffer from bulk on their connection. With lanes
/// by class they need not share one: `--depth 16 --beside write:1m:32 --spread` with `--lanes 4` against
/// `--lanes 2 --read-lanes 2`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The volume: nvme+tcp://HOST[:4420]/NQN[?nsid=N][&cores=LIST][&via=engine]
    #[arg(value_name = "URI")]
    pub uri: String,
    /// Kind of operations
    #[arg(long, value_enum, default_value_t = Rw::Randread)]
    pub rw: Rw,
    /// Share of reads in randrw, in percent (default: 70)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: Option<u8>,
    /// Bytes of one operation, as 512, 4k or 1M
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_bytes)]
    pub bs: u64,
    /// Operations in flight on each lane; at most the queue's entries - 1
    #[arg(long, visible_alias = "iodepth", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub depth: u16,
    /// Lanes of the default class; each is one connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub lanes: u16,
    /// Lanes for reads alone; without any, reads share the default class. A target that grants fewer lanes
    /// altogether takes them from the poll class and then from here; what it granted is shown
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub read_lanes: u16,
    /// Lanes for operations that ask for the poll class, as --class poll does
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub poll_lanes: u16,
    /// The class that the measured operations ask for; without it, reads go to the read class and writes to
    /// the default class
    #[arg(long, value_enum)]
    pub class: Option<ClassArg>,
    /// Let --depth and the depth of --beside count on all lanes together, and each operation go to the next
    /// lane of its class
    #[arg(long)]
    pub spread: bool,
    /// What the host does while it waits
    #[arg(long, value_enum, default_value_t = ModeArg::Adaptive)]
    pub mode: ModeArg,
    /// How long to measure, as 500ms, 10s or 2m. With --verify a target that went away is waited for as long as
    /// --reconnect allows
    #[arg(long, visible_alias = "runtime", value_name = "TIME", default_value = "10s", value_parser = parse_time_above_zero)]
    pub time: Duration,
    /// Run this long before the measurement starts
    #[arg(long, visible_alias = "ramp-time", value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = parse_time)]
    pub warm_up: Duration,
    /// Start at most N operations a second, on all lanes and threads together (default: no limit)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Use only this much of the volume, from its start (default: all of it)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Write patterns and check them
    #[arg(long)]
    pub verify: bool,
    /// Keep these in flight as well, on each lane, and measure them apart:
    /// read|write|randread|randwrite:SIZE:DEPTH
    #[arg(long, value_name = "KIND:SIZE:DEPTH", conflicts_with = "verify")]
    pub beside: Option<Beside>,
    /// While others are in flight, hold operations back until one of three is reached: a number of
    /// operations, bytes of write data (with k or M for powers of 1024), or a time (with us, ms or s; seconds
    /// without). 16:64k:50us if nothing is said. Not through an engine
    #[arg(long, value_name = "REQUESTS:SIZE:TIME", num_args = 0..=1, require_equals = true, default_missing_value = "16:64k:50us", value_parser = parse_hold)]
    pub hold: Option<Hold>,
    /// Make every write durable before it completes (FUA)
    #[arg(long)]
    pub fua: bool,
    /// Pin the thread, or all of --threads, to this core
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Also show where it ran: the core of each thread, and each connection's class, queue, port, the core
    /// that it was placed on, with --cores, the one that it was driven on at the end, and the one that its
    /// packets arrive on; of an engine's connections, its socket and its core. The JSON always has it, as
    /// placement
    #[arg(long = "where")]
    pub is_where_shown: bool,
    /// Seed of the random offsets; the same seed gives the same sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write the figures as JSON into this file; with - only JSON goes to stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Have an isolated engine connect to the volume: `engine`, or the path of its socket (default: as the
    /// URI's via= says, else this process connects itself)
    #[arg(long, value_name = "engine|PATH", value_parser = parse_via)]
    pub via: Option<Via>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// The share of reads in randrw, in percent.
    pub fn mix(&self) -> u8 {
        self.mix.unwrap_or(70)
    }
}

/// A class of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClassArg {
    /// Everything together
    Default,
    /// Reads alone
    Read,
    /// What is urgent
    Poll,
}

impl ClassArg {
    /// The library's word for it.
    pub fn class(self) -> Class {
        match self {
            ClassArg::Default => Class::Default,
            ClassArg::Read => Class::Read,
            ClassArg::Poll => Class::Poll,
        }
    }
}

/// Kind of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rw {
    /// Reads at rising addresses
    Read,
    /// Writes at rising addresses
    Write,
    /// Reads at random addresses
    Randread,
    /// Writes at random addresses
    Randwrite,
    /// Reads and writes at random addresses
    Randrw,
}

/// As in a URI, or a path from here.
fn parse_via(text: &str) -> Result<Via, String> {
    match text.contains('/') && !text.starts_with('/') {
        true => std::path::absolute(text).map(Via::EngineAt).map_err(|error| error.to_string()),
        false => text.parse().map_err(|error: isolane_host::UriError| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_named_by_a_path_from_here_or_from_the_root() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(parse_via("./run/sock"), Ok(Via::EngineAt(here.join("run/sock"))));
        assert_eq!(parse_via("/run/sock"), Ok(Via::EngineAt("/run/sock".into())));
        assert_eq!(parse_via("engine"), Ok(Via::Engine));
        assert!(parse_via("engin").is_err_and(|why| why.contains("absolute path")));
    }
}
