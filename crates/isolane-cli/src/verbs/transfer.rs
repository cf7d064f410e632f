//! `isolane verbs read` and `write`: copy between memory of a peer and a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use isolane_verbs::{Device, DeviceConfig, QueuePair, Registration, SendOperation, SharedKey};

use super::bench::resolve;
use super::serve::parse_key;
use super::session::{self, Session};
use crate::failure::{Context, Failure, IoContext};
use crate::output;
use crate::units;

/// Memory of a peer.
#[derive(Debug, clap::Args)]
struct Remote {
    /// Peer, as `isolane verbs serve` prints it: HOST[:18515]
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Key of the memory, as 0x5eed
    #[arg(long, value_parser = parse_key, value_name = "RKEY")]
    rkey: u32,
    /// Offset of the first byte
    #[arg(long, default_value = "0", value_parser = units::parse_bytes, value_name = "BYTES")]
    offset: u64,
}

/// Read memory of `isolane verbs serve`, and write it to standard output
#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    #[command(flatten)]
    remote: Remote,
    /// Number of bytes
    #[arg(long, value_parser = units::parse_bytes)]
    bytes: u64,
}

/// Write a file to memory of `isolane verbs serve`
#[derive(Debug, clap::Args)]
pub struct WriteArgs {
    #[command(flatten)]
    remote: Remote,
    /// File (default: standard input)
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Runs `isolane verbs read`.
pub fn read(args: &ReadArgs) -> Result<(), Failure> {
    let mut transfer = Transfer::connect(&args.remote)?;
    let mut left = args.bytes;
    while left > 0 {
        let len = left.min(CHUNK_BYTES as u64) as usize;
        let (address, rkey) = (transfer.offset, args.remote.rkey);
        transfer.run(SendOperation::Read { address, rkey }, len)?;
        output::write_stdout(&transfer.memory.region().to_vec(0, len))?;
        left -= len as u64;
    }
    Ok(())
}

/// Runs `isolane verbs write`.
pub fn write(args: &WriteArgs) -> Result<(), Failure> {
    let mut transfer = Transfer::connect(&args.remote)?;
    let (name, mut input): (_, Box<dyn Read>) = match &args.file {
        Some(path) => (path.display().to_string(), Box::new(File::open(path).io_context(path.display())?)),
        None => ("standard input".to_owned(), Box::new(io::stdin())),
    };
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let len = input.read(&mut bytes).io_context(&name)?;
        if len == 0 {
            return Ok(());
        }
        transfer.memory.region().copy_in(0, &bytes[..len]);
        let (address, rkey) = (transfer.offset, args.remote.rkey);
        transfer.run(SendOperation::Write { address, rkey, immediate: None }, len)?;
    }
}

/// A connection, with memory for one chunk.
struct Transfer {
    pair: QueuePair,
    session: Session,
    memory: Arc<Registration>,
    peer: String,
    offset: u64,
    _device: Device,
}

impl Transfer {
    fn connect(remote: &Remote) -> Result<Transfer, Failure> {
        let address = resolve(&remote.address)?;
        let key = SharedKey::from_environment().map_err(Failure::from_error)?;
        let config = DeviceConfig { key, ..DeviceConfig::default() };
        let device = Device::open(config).io_context("cannot open a device")?;
        let session = Session::new(&device)?;
        let memory = session.register(CHUNK_BYTES as u64)?;
        let pair =
            device.connect(address, &session.config).context(format!("cannot connect to {address}"))?;
        let peer = remote.address.clone();
        Ok(Transfer { pair, session, memory, peer, offset: remote.offset, _device: device })
    }

    /// Executes an operation on the next bytes of the peer.
    fn run(&mut self, operation: SendOperation, len: usize) -> Result<(), Failure> {
        let posted = session::post(&self.pair, 0, operation, &self.memory, len as u64);
        let done = posted.and_then(|()| self.session.next());
        done.map_err(|failure| {
            let (peer, offset) = (&self.peer, self.offset);
            Failure::new(format!("cannot access {len} bytes at offset {offset} of {peer}"), failure)
                .with_hint("use the address, rkey, and size that `isolane verbs serve` prints")
        })?;
        self.offset = self.offset.saturating_add(len as u64);
        Ok(())
    }
}

const CHUNK_BYTES: usize = 1 << 20;
