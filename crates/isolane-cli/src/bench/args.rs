//! Arguments of `isolane bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use isolane_host::{Coalesce, Cores, LaneClass, Mode, Options, Uri, Via};

use super::access_pattern::{OPERATION_KINDS, Rw};
use super::background::BackgroundLoad;
use super::coalesce::parse_coalesce;
use crate::choice::{Choice, one_of};
use crate::host_args::{HostArgs, MODES};
use crate::units::{parse_bytes, parse_time, parse_time_above_zero};

/// Measure a volume, or verify it with patterns
///
/// Keeps `--depth` operations in flight on each of `--lanes` connections for `--time`, all from one thread. Prints
/// operations and MiB (1,048,576 bytes) per second, and the distribution of latencies in microseconds.
///
/// WRITES DESTROY THE DATA OF THE VOLUME: --rw or --background with write, randwrite, or randrw, and --verify need a
/// volume without valuable data.
///
/// The first write of memory is slow, because the system allocates and clears each page, and reads of unwritten memory
/// are fast, because all of it is one page of zeros. Write a new memory volume or sparse file once before measuring
/// it: `--rw write --bs 1m --time 10s`, longer for a large one. `--size` limits the used part.
///
/// Ctrl-C ends the measurement and prints the results so far; with `--verify`, data is not read back then, and the exit
/// status is 130. If the target is unreachable when the time has passed, the operations in flight count as errors, and
/// the exit status is 1.
///
/// With `--verify`, every written block carries its address and a sequence number, which each read checks. Finally,
/// all written data is read back. A workload with reads first writes the whole volume, or --size of it. A write without
/// an acknowledgment (because the connection to the target was lost) may read as old or new; anything else is an error,
/// and the exit status is 1.
///
/// With `--threads`, several threads share one volume and keep `--depth` operations in flight each. `--cores` then
/// places its lanes on several cores: `--threads 2 --thread-cores 0,1 --cores 0,1 --lanes 2 --show-placement`.
///
/// With `--background`, other operations run on the same lanes and are reported separately. For example,
/// `--depth 16 --background write:1m:32` shows how bulk writes on a connection affect its small reads. Lanes by class
/// separate them: compare `--depth 16 --background write:1m:32 --share-depth` with `--lanes 4` and with
/// `--lanes 2 --read-lanes 2`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Volume: nvme+tcp://HOST[:4420]/NQN[?nsid=N][&cores=LIST][&via=engine]
    #[arg(value_name = "URI")]
    pub uri: String,
    /// Kind of operations
    #[arg(long, value_parser = one_of(&OPERATION_KINDS), default_value = "randread")]
    pub rw: Rw,
    /// Share of reads in randrw, in percent (default: 70)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: Option<u8>,
    /// Size of one operation in bytes, as 512, 4k, or 1M
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_bytes)]
    pub bs: u64,
    /// Operations in flight on each lane, at most the queue's entries - 1 (default: 32, or as many as the queue holds)
    #[arg(long, visible_alias = "iodepth", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub depth: Option<u16>,
    /// Lanes of the default class: I/O queue pairs, each on its own TCP connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub lanes: u16,
    /// Lanes only for reads; with 0, reads share the default class. If the target grants fewer lanes in total, the poll
    /// class loses lanes first, then this one; the output shows the granted lanes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub read_lanes: u16,
    /// Lanes for operations of the poll class, see --class
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub poll_lanes: u16,
    /// Class of the measured operations (default: read for reads, default for writes)
    #[arg(long, value_parser = one_of(&LANE_CLASSES))]
    pub class: Option<LaneClass>,
    /// Share --depth and the depth of --background between all lanes; each operation uses the next lane of its class
    #[arg(long)]
    pub share_depth: bool,
    /// Idle behavior of the host
    #[arg(long, value_parser = one_of(&MODES), default_value = "adaptive")]
    pub mode: Mode,
    /// Duration of the measurement, as 500ms, 10s, or 2m. With --verify, wait for a lost target as long as --reconnect
    /// allows
    #[arg(long, visible_alias = "runtime", value_name = "TIME", default_value = "10s", value_parser = parse_time_above_zero)]
    pub time: Duration,
    /// Run this long before the measurement starts (default: 0s)
    #[arg(long, visible_alias = "ramp-time", value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = parse_time)]
    pub warm_up: Duration,
    /// Start at most N operations per second, on all lanes and threads together (default: no limit)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Use only this many bytes of the volume (default: all up to its end)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Use the volume from this offset in bytes
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    pub offset: u64,
    /// Write patterns and check them
    #[arg(long)]
    pub verify: bool,
    /// Run this background load on every lane and report it separately: read, write, randread, or randwrite, size, and
    /// operations in flight
    #[arg(long, value_name = "KIND:SIZE:DEPTH", conflicts_with = "verify")]
    pub background: Option<BackgroundLoad>,
    /// While others are in flight, delay operations until a limit is reached: number of operations, bytes of write
    /// data (with k or M in powers of 1024), or time (in us, ms, or s). Without a value, 16:64k:50us. Not with an engine
    #[arg(long, value_name = "REQUESTS:SIZE:TIME", num_args = 0..=1, require_equals = true, default_missing_value = "16:64k:50us", value_parser = parse_coalesce)]
    pub coalesce: Option<Coalesce>,
    /// Make every write durable before it completes (FUA)
    #[arg(long)]
    pub fua: bool,
    /// Pin the thread, or all of --threads, to this core
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Show the core of each thread, and for each connection its class, queue, port, assigned core (with --cores),
    /// driving core at the end, and the core where its packets arrive; for an engine, its socket and core. The JSON
    /// always has these under `placement`
    #[arg(long)]
    pub show_placement: bool,
    /// End with the stages of the operations at both ends, and one verdict. This host measures its stages, including the
    /// warm-up and all other loads:
    /// waiting for the thread that sends (inbox), for capacity or --coalesce (held), for the kernel to accept the
    /// command (send), for the response (wait) and the rest of its data (data), for the other responses of the turn
    /// (deliver), and for the thread (wake). An Isolane target shows this host the stages of the same operations; the
    /// time of `wait` and `data` that it does not account for is the network's. The JSON has `stages` and `both_ends`
    #[arg(long)]
    pub explain: bool,
    /// Record latencies and their stages
    #[arg(long, value_parser = one_of(&OBSERVE), default_value = "on", action = clap::ArgAction::Set)]
    pub observe: bool,
    /// Seed of the random offsets; the same seed gives the same sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write the results as JSON to this file; with -, print only JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Connect through an isolated engine: `engine`, or the path of its socket (default: via= of the URI, else connect
    /// from this process)
    #[arg(long, value_name = "engine|PATH", value_parser = parse_via)]
    pub via: Option<Via>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// Returns the share of reads in randrw, in percent.
    pub fn mix(&self) -> u8 {
        self.mix.unwrap_or(70)
    }

    /// Returns the operations in flight on each lane of a queue that holds `max` commands.
    pub fn depth(&self, max: u16) -> u16 {
        self.depth.unwrap_or(DEFAULT_DEPTH.min(max))
    }
}

/// Operations in flight on each lane, if the queue holds as many commands.
const DEFAULT_DEPTH: u16 = 32;

const OBSERVE: [Choice<bool>; 2] = [
    ("on", "Time the stages of each operation", true),
    ("off", "Record nothing, to measure the cost of the above", false),
];

/// Classes of lanes.
const LANE_CLASSES: [Choice<LaneClass>; 3] = [
    ("default", "All operations", LaneClass::Default),
    ("read", "Only reads", LaneClass::Read),
    ("poll", "Urgent operations", LaneClass::Poll),
];

/// Parses a value as in a URI, or a relative path.
fn parse_via(text: &str) -> Result<Via, String> {
    if text.contains('/') && !text.starts_with('/') {
        std::path::absolute(text).map(Via::EngineAt).map_err(|error| error.to_string())
    } else {
        text.parse().map_err(|error: isolane_host::UriError| error.to_string())
    }
}

/// Several threads instead of one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several threads")]
pub struct ThreadArgs {
    /// Share one volume between N threads, each with --depth operations in flight
    #[arg(long, visible_alias = "numjobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with_all = ["verify", "background", "share_depth"])]
    pub threads: Option<u16>,
    /// Let a waiting thread drive the connections while no other thread does
    #[arg(long, value_parser = one_of(&SWITCH), default_value = "on", action = ArgAction::Set, requires = "threads")]
    pub inline: bool,
    /// Place the lanes on these cores, as 0,1 or 0-3: one association per core, driven only there, with the lanes of
    /// each class dealt out from the first core upward. An operation goes to the core of its thread, if there is a
    /// lane of its class. The URI may set this also: ?cores=LIST
    #[arg(long, value_name = "LIST", requires = "threads")]
    pub cores: Option<Cores>,
    /// Pin the threads to these cores in turn
    #[arg(long, value_name = "LIST", requires = "threads", conflicts_with = "core")]
    thread_cores: Option<Cores>,
}

/// States of a feature that can be disabled.
const SWITCH: [Choice<bool>; 2] = [("on", "Enable", true), ("off", "Disable", false)];

impl ThreadArgs {
    /// Sets the options of a volume with `total` operations in flight.
    pub fn apply(&self, options: &mut Options, total: u32) {
        options.inline_submit = self.inline;
        options.cores = self.cores.clone().unwrap_or_default();
        options.max_requests = options.max_requests.max(total as usize);
        let per_lane = (total as usize).div_ceil(options.lanes);
        options.depth = u16::try_from(per_lane).unwrap_or(u16::MAX);
    }

    /// Returns the cores of lanes and threads.
    pub fn all_cores(&self, uri: &Uri) -> Vec<usize> {
        let lists = [self.cores.as_ref(), self.thread_cores.as_ref(), Some(&uri.cores)];
        lists.into_iter().flatten().flat_map(Cores::as_slice).copied().collect()
    }

    /// Returns the core of each thread, without an end.
    pub fn thread_cores(&self) -> impl Iterator<Item = Option<usize>> {
        let cores = self.thread_cores.as_ref().map_or(&[][..], Cores::as_slice);
        let count = cores.len();
        (0..).map(move |thread: usize| cores.get(thread % count.max(1)).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_absolute_and_relative_engine_paths() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(parse_via("./run/sock"), Ok(Via::EngineAt(here.join("run/sock"))));
        assert_eq!(parse_via("/run/sock"), Ok(Via::EngineAt("/run/sock".into())));
        assert_eq!(parse_via("engine"), Ok(Via::Engine));
        assert!(parse_via("engin").is_err_and(|error| error.contains("absolute path")));
    }
}
