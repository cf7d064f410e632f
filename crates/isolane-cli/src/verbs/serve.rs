//! `isolane verbs serve`: offers registered memory to any number of clients.

use std::io::Write;
use std::time::{Duration, Instant};

use isolane_verbs::wire::Hello;
use isolane_verbs::{Device, DeviceConfig, QueuePair, QueuePairState, SharedKey};

use super::bench::resolve;
use super::session::Session;
use crate::failure::{Failure, IoContext};
use crate::units;

/// Offer memory that RDMA clients write and read, for experiments
///
/// Prints the address, the rkey, and the size of the memory, and serves clients until a signal: `isolane verbs write`,
/// `isolane verbs read`, and programs with the library or the Python module. Clients address the memory by offsets from
/// 0 on. At most 1,024 are served at a time. Without a key (ISOLANE_VERBS_KEY), each program that reaches the port can
/// use the memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen: HOST[:18515]
    #[arg(default_value = "127.0.0.1", value_name = "ADDRESS")]
    address: String,
    /// Size of the memory in bytes
    #[arg(long, default_value = "1M", value_parser = units::parse_bytes, value_name = "SIZE")]
    bytes: u64,
    /// Key with which clients name the memory, the rkey of RDMA, as 0x5eed (default: random)
    #[arg(long, value_parser = parse_key, value_name = "RKEY")]
    rkey: Option<u32>,
}

/// Parses the key of memory.
pub(super) fn parse_key(text: &str) -> Result<u32, &'static str> {
    let digits = text.strip_prefix("0x");
    let key = digits.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
    key.ok().filter(|key| *key > 0).ok_or("not a key: write for example 0x5eed")
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let address = resolve(&args.address)?;
    let mut config =
        DeviceConfig { address: address.ip(), lanes: Hello::MAX_LANES, ..DeviceConfig::default() };
    config.key = SharedKey::from_environment().map_err(Failure::from_error)?;
    let device = Device::open(config).io_context("cannot open a device")?;
    let session = Session::new(&device)?;
    let memory = session.register_as(args.rkey, args.bytes)?;
    let what = || format!("cannot listen at {address}");
    let listener = device.listen(address).io_context(what())?;
    let address = listener.local_addr().io_context(what())?;
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "listening on {address}, rkey {:#010x}, {} bytes", memory.key(), args.bytes);
    let _ = stdout.flush();
    let mut pairs = Vec::new();
    loop {
        let deadline = Some(Instant::now() + CHECK_INTERVAL);
        let accepted = listener.accept_before(deadline, &session.config);
        pairs.retain(|pair: &QueuePair| pair.state() != QueuePairState::Error);
        match accepted {
            Ok(Some(_)) if pairs.len() >= MAX_CLIENTS => {
                log::warn!("closed a client: {MAX_CLIENTS} are connected");
            }
            Ok(accepted) => pairs.extend(accepted),
            Err(failure) => log::warn!("cannot accept a client: {failure}"),
        }
    }
}

/// Time after which clients that have gone are removed, unless others connect.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const MAX_CLIENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decimal_or_hexadecimal() {
        assert_eq!((parse_key("0x5eed"), parse_key("7")), (Ok(0x5eed), Ok(7)));
        for wrong in ["", "0", "0x", "x", "-1", "0x100000000"] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
