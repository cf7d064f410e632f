//! `isolane copy`: copies between files, pipes, and volumes.
//!
//! A [`source`] yields chunks in order to a [`sink`]; each has its own operations in flight. Sizes are checked before
//! anything is written. [`fingerprint`] is the comparison of `--verify`.

mod endpoint;
mod fingerprint;
mod partial;
mod progress;
mod sink;
mod source;

use std::time::{Duration, Instant};

use isolane_host::Options;

use crate::control;
use crate::failure::Failure;
use crate::host_args::HostArgs;
use crate::output;
use crate::units::show_bytes;

use endpoint::{Endpoint, EndpointInfo, is_same_volume};
use fingerprint::Fingerprint;
use partial::Partial;
use progress::Progress;
use sink::Sink;
use source::{Chunk, Source};

/// Copy between files and volumes
///
/// SRC and DST are each a file, a block device, `-` or a path for a pipe, or a volume URI
/// (nvme+tcp://HOST[:4420]/NQN[?nsid=N]). Holes of a file become Write Zeroes on a volume, whose old data they replace,
/// and zeros become holes in a file. All data is durable before the command ends: a file is synced, a volume flushed.
/// With via=engine in its URI, an isolated engine connects to a volume.
///
/// Before the first write, the command checks that the source consists of whole blocks and fits; `--pad` fills the last
/// block with zeros. The size of a pipe is unknown before its end. A larger destination keeps its data after the end. A
/// block device must not be in use.
///
/// A regular file is written under a temporary name in the same directory and renamed at the end, so that a failed or
/// interrupted copy leaves an existing file unchanged. Files that a running target or another program has locked, and
/// mount points, are not replaced. The new file has the mode of the replaced one, and its owner if this user may set
/// it. Access control lists and extended attributes are lost, and other hard links keep the old data.
///
/// With `--verify`, the destination is read again and compared with the source data. At the end, the command prints the
/// number of copied and verified bytes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Source
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::AnyPath)]
    source: String,
    /// Destination
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    destination: String,
    /// Read the destination again and compare
    #[arg(long)]
    verify: bool,
    /// Fill the last block of a volume with zeros if the source ends within it
    #[arg(long)]
    pad: bool,
    /// Print no progress and no result
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let from = Endpoint::parse(&args.source)?;
    let to = Endpoint::parse(&args.destination)?;
    check_endpoints(&from, &to, args)?;
    let options = args.host.options()?;
    control::open("copy", [])?;
    let mut source = Source::open(&from, options.clone())?;
    let target = to.inspect(options.clone())?;
    if let (Source::Volume(source), Some(client)) = (&source, &target.client)
        && is_same_volume(source.client(), client)
    {
        return Err(same_endpoint(&from));
    }
    source.align_to(target.block_bytes.unwrap_or(1));
    let pad_to = target.block_bytes.filter(|_| args.pad).unwrap_or(1);
    check_sizes(&from, source.length().map(|length| length.next_multiple_of(pad_to)), &to, &target)?;
    let started = Instant::now();
    let mut sink = Sink::open(&to, target, source.length())?;
    let copied = transfer(&mut source, "copying", pad_to, args.quiet, |chunk| sink.put(chunk))?;
    let partial = sink.finish(copied.length())?;
    let elapsed = started.elapsed();
    if args.verify {
        let temporary = partial.as_ref().map(|partial| Endpoint::File(partial.temporary.clone()));
        verify(temporary.as_ref().unwrap_or(&to), &to, options, &copied, args.quiet)?;
    }
    partial.map_or(Ok(()), Partial::publish)?;
    if args.quiet { Ok(()) } else { report(&to, copied.length(), elapsed, args.verify) }
}

/// Prints the result, to stderr if the data is on stdout.
fn report(to: &Endpoint, bytes: u64, elapsed: Duration, verified: bool) -> Result<(), Failure> {
    let rate = bytes as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
    let text = format!(
        "copied {bytes} bytes ({}) to {to} in {:.2} s, {}/s{}\n",
        show_bytes(bytes as f64),
        elapsed.as_secs_f64(),
        show_bytes(rate),
        if verified { "; verified all of them" } else { "" },
    );
    match to {
        Endpoint::Pipe => {
            log::write_stderr(text);
            Ok(())
        }
        _ => output::write_stdout(text.as_bytes()),
    }
}

fn same_endpoint(from: &Endpoint) -> Failure {
    Failure::new(format!("cannot copy {from} to itself"), "source and destination are the same")
        .with_hint("name another destination")
}

/// Rejects invalid pairs.
fn check_endpoints(from: &Endpoint, to: &Endpoint, args: &Args) -> Result<(), Failure> {
    if from.is_same_file(to) {
        return Err(same_endpoint(from));
    }
    if args.pad && !matches!(to, Endpoint::Volume(_)) {
        return Err(Failure::new("cannot use --pad", format!("{to} has no blocks")).with_hint("remove --pad"));
    }
    if args.verify && to.is_stream() {
        return Err(Failure::new(format!("cannot verify {to}"), "its data cannot be read again")
            .with_hint("remove --verify"));
    }
    Ok(())
}

/// Rejects data that does not fit, before anything is written.
fn check_sizes(
    from: &Endpoint,
    length: Option<u64>,
    to: &Endpoint,
    target: &EndpointInfo,
) -> Result<(), Failure> {
    let Some(length) = length else { return Ok(()) };
    let what = || format!("cannot copy {from} to {to}");
    if let Some(block_bytes) = target.block_bytes
        && !length.is_multiple_of(block_bytes)
    {
        return Err(Failure::new(
            what(),
            format!("{length} bytes are not whole blocks of {block_bytes} bytes"),
        )
        .with_hint("add --pad to fill the last one with zeros"));
    }
    match target.capacity {
        Some(capacity) if length > capacity => Err(Failure::new(
            what(),
            format!("the source has {length} bytes, the destination holds {capacity}"),
        )
        .with_hint("choose a larger destination")),
        _ => Ok(()),
    }
}

/// Passes every chunk to `put`, the last one padded with zeros. Returns the fingerprint of the data.
fn transfer(
    source: &mut Source,
    what: &'static str,
    pad_to: u64,
    quiet: bool,
    mut put: impl FnMut(Chunk) -> Result<(), Failure>,
) -> Result<Fingerprint, Failure> {
    let mut progress = Progress::new(what, source.length(), quiet);
    let mut fingerprint = Fingerprint::default();
    let mut next = source.next()?;
    while let Some(mut chunk) = next {
        next = source.next()?;
        if next.is_none() {
            chunk = chunk.padded(pad_to);
        }
        fingerprint.add(&chunk);
        let length = chunk.length();
        put(chunk)?;
        progress.advance(length);
    }
    progress.finish();
    fingerprint.close();
    Ok(fingerprint)
}

/// Reads the written data again, from the temporary name of `to` if there is one, and compares it.
fn verify(
    written: &Endpoint,
    to: &Endpoint,
    options: Options,
    copied: &Fingerprint,
    quiet: bool,
) -> Result<(), Failure> {
    let mut source = Source::open(written, options)?;
    source.limit(copied.length());
    let read_back = transfer(&mut source, "verifying", 1, quiet, |_| Ok(()))?;
    match copied.first_difference(&read_back) {
        None => Ok(()),
        Some(offset) => Err(Failure::new(
            format!("verify: {to} differs from the copied data"),
            format!("the first difference is in the {} bytes at offset {offset}", fingerprint::GRANULE_BYTES),
        )
        .with_hint("do not trust this copy")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The size of a hole is not a multiple of the block size.
    #[test]
    fn pads_only_the_end_of_a_sparse_file() {
        for block_bytes in [512, 4096, 16384, 65536] {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            let file = fs::File::create(&from).unwrap();
            for offset in [0, 8192, 36864, 200_000, 1_000_000] {
                file.write_all_at(&[offset as u8 | 1; 4096], offset).unwrap();
            }
            file.set_len(1_500_001).unwrap();
            let mut source = Source::open(&Endpoint::File(from.clone()), Options::default()).unwrap();
            source.align_to(block_bytes);
            let destination = Endpoint::File(to.clone());
            let info = destination.inspect(Options::default()).unwrap();
            let mut sink = Sink::open(&destination, info, source.length()).unwrap();
            let copied =
                transfer(&mut source, "copying", block_bytes, true, |chunk| sink.put(chunk)).unwrap();
            sink.finish(copied.length()).unwrap().unwrap().publish().unwrap();
            let mut expected = fs::read(&from).unwrap();
            expected.resize(1_500_001_usize.next_multiple_of(block_bytes as usize), 0);
            assert!(fs::read(&to).unwrap() == expected, "blocks of {block_bytes} bytes");
        }
    }
}
