//! `isolane verbs bench`: arguments and output.

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isolane_reactor::SocketOptions;
use isolane_verbs::wire::Hello;
use isolane_verbs::{Device, DeviceConfig, ProgressMode, SharedKey};

use super::client::{self, Load, Row};
use super::server;
use super::session::Operation;
use crate::choice::{Choice, one_of};
use crate::control;
use crate::cores;
use crate::failure::{Context, Failure, IoContext};
use crate::output;
use crate::signals;
use crate::units;

/// Measure verbs between two programs
///
/// Run it with --server on one machine, and with the address of that machine on the other. With --depth 1, a SEND is
/// answered by a SEND, and the latency is half of a round trip. Otherwise it is the time to the completion.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Server: HOST[:18515]
    #[arg(value_name = "ADDRESS", required_unless_present = "server")]
    address: Option<String>,
    /// Serve clients until a signal, one after the other; ADDRESS is where to listen (default: 127.0.0.1:18515)
    #[arg(long)]
    server: bool,
    /// Operation: send, write, read, compare-swap, or fetch-add
    #[arg(long, default_value = "send", value_parser = one_of(&OPERATIONS), value_name = "NAME", hide_possible_values = true)]
    operation: Operation,
    /// Size of an operation in bytes, up to 64M; several sizes separated by commas are measured one after the other
    #[arg(long, default_value = "64", value_delimiter = ',', value_parser = units::parse_bytes, value_name = "SIZES")]
    size: Vec<u64>,
    /// Operations in flight, 1 to 256
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    depth: u16,
    /// Time to measure each size
    #[arg(long, default_value = "2s", value_parser = units::parse_time_above_zero)]
    time: Duration,
    /// Core on which to poll
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Driver of the connections: `polling`, or `thread:CORE` for one thread that never sleeps
    #[arg(long, default_value = "polling", value_name = "MODE")]
    progress: ProgressMode,
    /// TCP connections of a queue pair, 1 to 8
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(Hello::MAX_LANES)), value_name = "N")]
    lanes: u8,
    /// Protect each segment with a CRC32C; one of both ends is enough
    #[arg(long)]
    crc: bool,
    /// File with the key that both ends have, as `isolane key gen` writes it (default: ISOLANE_VERBS_KEY)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Options of the sockets, as for `isolane serve --listen`, separated by commas
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    socket: SocketOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const OPERATIONS: [Choice<Operation>; 5] = [
    ("send", "SEND to a receive", Operation::Send),
    ("write", "WRITE to memory", Operation::Write),
    ("read", "READ of memory", Operation::Read),
    ("compare-swap", "Compare and swap of 8 bytes", Operation::CompareSwap),
    ("fetch-add", "Fetch and add of 8 bytes", Operation::FetchAdd),
];

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    cores::check_progress(args.progress)?;
    if let Some(core) = args.core {
        isolane_reactor::cpu::pin(core).io_context(format!("cannot run on core {core}"))?;
    }
    let address = resolve(args.address.as_deref().unwrap_or("127.0.0.1"))?;
    let mut config =
        DeviceConfig { progress: args.progress, socket: args.socket.clone(), ..DeviceConfig::default() };
    // A server takes as many lanes as its client wants.
    (config.address, config.lanes) =
        if args.server { (address.ip(), Hello::MAX_LANES) } else { (config.address, args.lanes) };
    control::open("verbs", args.core)?;
    config.observed = control::is_open();
    if config.observed {
        // A signal removes the socket.
        signals::report_on_signal(|| None)?;
    }
    config.checksums = args.crc;
    config.key = match &args.key {
        Some(file) => SharedKey::read(file).map(|key| Some(Arc::new(key))),
        None => SharedKey::from_environment(),
    }
    .map_err(Failure::from_error)?;
    let device = Device::open(config).io_context("cannot open a device")?;
    if args.server {
        return server::run(&device, address);
    }
    let mut rows = Vec::new();
    for bytes in sizes(args)? {
        let load = Load { operation: args.operation, bytes, depth: args.depth.into(), time: args.time };
        let row = client::run(&device, address, &load).context(format!("cannot measure at {address}"))?;
        rows.push(row);
    }
    output::show(&rows, args.json, || to_text(&rows))
}

fn sizes(args: &Args) -> Result<Vec<u64>, Failure> {
    if matches!(args.operation, Operation::CompareSwap | Operation::FetchAdd) {
        return Ok(vec![8]);
    }
    match args.size.iter().find(|size| !(1..=server::MAX_BYTES).contains(*size)) {
        Some(size) => Err(Failure::new(format!("--size {size}"), "a size is 1 to 64M")),
        None => Ok(args.size.clone()),
    }
}

/// Resolves an address that can lack the port.
pub(super) fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let with_port = (text, DEFAULT_PORT).to_socket_addrs().or_else(|_| text.to_socket_addrs());
    let mut found = with_port.io_context(format!("cannot find {text}"))?;
    found.next().ok_or_else(|| Failure::new(format!("cannot find {text}"), "it has no address"))
}

fn to_text(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>9} {:>12} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "bytes", "operations/s", "MiB/s", "mean us", "p50", "p99", "p99.9", "max"
    );
    for row in rows {
        let Row { bytes, operations_per_s, mib_per_s, mean_us, p50_us, p99_us, p99_9_us, max_us } = row;
        let _ = writeln!(
            text,
            "{bytes:>9} {operations_per_s:>12.0} {mib_per_s:>10.1} {mean_us:>9.2} {p50_us:>9.2} {p99_us:>9.2} \
             {p99_9_us:>9.2} {max_us:>9.2}"
        );
    }
    text
}

/// The port of perftest.
const DEFAULT_PORT: u16 = 18515;
