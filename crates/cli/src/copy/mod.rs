//! `isolane copy`: between files, pipes and volumes.
//!
//! A [`source`] yields pieces in order, a [`sink`] takes them; each keeps as many operations in flight as its
//! side likes. Sizes are checked before anything is written. [`fingerprint`] is how `--verify` compares.

mod fingerprint;
mod progress;
mod side;
mod sink;
mod source;

use isolane_host::Options;

use crate::failure::Failure;
use crate::remote::HostArgs;

use fingerprint::Fingerprint;
use progress::Progress;
use side::{Side, SideInfo};
use sink::Sink;
use source::Source;

/// Copy between files and volumes
///
/// SRC and DST are each a file, a block device, `-` or a path for a pipe, or a volume URI
/// (nvme+tcp://HOST[:4420]/NQN[?nsid=N]). Holes of a file become Write Zeroes on a volume (they are never
/// skipped: the volume may hold something else), and zeroes become holes again in a file. Everything is made
/// durable before the command ends: a file is synced, a volume flushed. A volume whose URI has via=engine is
/// connected to by an isolated engine.
///
/// Before anything is written it is checked that the source consists of whole blocks and fits. A destination
/// that is larger keeps what it has behind the end. An existing regular file is replaced, unless a running
/// target or another program holds a lock on it; a block device must not be in use. Of a pipe nobody knows
/// the size before its end.
///
/// With `--verify` the destination is read again and compared with what was read from the source.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to copy from
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to copy to
    #[arg(value_name = "DST")]
    destination: String,
    /// Read the destination again and compare
    #[arg(long)]
    verify: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let from = Side::parse(&args.source)?;
    let to = Side::parse(&args.destination)?;
    check_sides(&from, &to, args.verify)?;
    let options = args.host.options()?;
    let mut source = Source::open(&from, options.clone())?;
    let target = to.inspect(options.clone())?;
    check_sizes(&from, source.length(), &to, &target)?;
    let mut sink = Sink::open(&to, target, source.length())?;
    let copied = transfer(&mut source, &mut sink, args.quiet)?;
    sink.finish(copied.length())?;
    if args.verify { verify(&to, options, &copied, args.quiet) } else { Ok(()) }
}

/// Refuses pairs that cannot work.
fn check_sides(from: &Side, to: &Side, verify: bool) -> Result<(), Failure> {
    if from.is_same(to) {
        return Err(Failure::new(
            format!("cannot copy {from} to itself"),
            "source and destination are the same",
        )
        .remedy("name another destination"));
    }
    if verify && to.is_stream() {
        return Err(Failure::new(format!("cannot verify {to}"), "what went there cannot be read again")
            .remedy("leave --verify out"));
    }
    Ok(())
}

/// Refuses what would not fit, before anything is written.
fn check_sizes(from: &Side, length: Option<u64>, to: &Side, target: &SideInfo) -> Result<(), Failure> {
    let Some(length) = length else { return Ok(()) };
    let what = || format!("cannot copy {from} to {to}");
    if let Some(block_bytes) = target.block_bytes
        && !length.is_multiple_of(block_bytes)
    {
        return Err(Failure::new(
            what(),
            format!("{length} bytes are not whole blocks of {block_bytes} bytes"),
        )
        .remedy(format!("pad the source, for example with truncate -s %{block_bytes}")));
    }
    match target.capacity {
        Some(capacity) if length > capacity => Err(Failure::new(
            what(),
            format!("the source has {length} bytes, the destination holds {capacity}"),
        )
        .remedy("choose a larger destination")),
        _ => Ok(()),
    }
}

/// Moves every piece. Gives the fingerprint of all that was read.
fn transfer(source: &mut Source, sink: &mut Sink, quiet: bool) -> Result<Fingerprint, Failure> {
    let mut progress = Progress::new("copying", source.length(), quiet);
    let mut fingerprint = Fingerprint::default();
    while let Some(piece) = source.next()? {
        fingerprint.add(&piece);
        let length = piece.length();
        sink.put(piece)?;
        progress.advance(length);
    }
    progress.finish();
    fingerprint.close();
    Ok(fingerprint)
}

/// Reads the destination again, as far as it was written.
fn verify(to: &Side, options: Options, copied: &Fingerprint, quiet: bool) -> Result<(), Failure> {
    let mut source = Source::open(to, options)?;
    source.limit(copied.length());
    let mut progress = Progress::new("verifying", Some(copied.length()), quiet);
    let mut read_back = Fingerprint::default();
    while let Some(piece) = source.next()? {
        progress.advance(piece.length());
        read_back.add(&piece);
    }
    progress.finish();
    read_back.close();
    match copied.first_difference(&read_back) {
        None => Ok(()),
        Some(offset) => Err(Failure::new(
            format!("verify: {to} differs from what was copied"),
            format!("the first difference is in the {} bytes at offset {offset}", fingerprint::GRANULE_BYTES),
        )
        .remedy("do not trust this copy")),
    }
}
