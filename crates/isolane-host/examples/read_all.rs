//! Reads a whole volume with 32 requests in flight and prints how fast that was.
//!
//! ```console
//! $ cargo run --release -p isolane-host --example read_all -- nvme+tcp://127.0.0.1:4420
//! ```

use std::time::Instant;

use isolane_host::{BlockingVolume, Buffer, Error, Options, Request};

const DEPTH: usize = 32;
const CHUNK_BYTES: u64 = 64 * 1024;

fn main() -> Result<(), Error> {
    let uri = std::env::args().nth(1).unwrap_or_default().parse()?;
    let volume = BlockingVolume::connect(&uri, Options::default())?;
    let (start, size, block_size) = (Instant::now(), volume.size(), u64::from(volume.block_size()));

    let mut submitter = volume.submitter(DEPTH);
    let mut completions = Vec::new();
    // Buffers of completed reads serve the next ones; only the last chunk may be shorter.
    let mut idle: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::contiguous(CHUNK_BYTES as usize)).collect();
    let mut offsets = (0..size).step_by(CHUNK_BYTES as usize).peekable();
    while offsets.peek().is_some() || submitter.outstanding() > 0 {
        while submitter.outstanding() < DEPTH
            && let Some(offset) = offsets.next()
        {
            let len = CHUNK_BYTES.min(size - offset) as usize;
            let buffer = idle.pop().filter(|buffer| buffer.len() == len).unwrap_or(Buffer::contiguous(len));
            let read = Request::Read { lba: offset / block_size, buffer };
            submitter.submit(read, offset).expect("depth is bounded");
        }
        submitter.wait(&mut completions);
        for completion in completions.drain(..) {
            completion.result?;
            idle.extend(completion.buffer);
        }
    }
    println!("{size} bytes, {:.0} MB/s", size as f64 / start.elapsed().as_secs_f64() / 1e6);
    drop(submitter);
    volume.close();
    Ok(())
}
