//! Times a Deallocate of 1 GiB alone and alongside random reads and writes of 4 KiB, and how much of the rate of
//! the reads is left meanwhile. `scripts/deallocate-load` starts a target for it.
//!
//! ```console
//! $ cargo run --release -p isolane-host --example deallocate_load -- nvme+tcp://127.0.0.1:4420
//! ```
//!
//! The contents of the volume are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolane_host::{BlockingVolume, Buffer, Error, Options, Request, Uri};

const RANGE_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 5;
const BASE: Duration = Duration::from_secs(2);
/// Commands in flight on one connection.
const DEPTH: usize = 128;

fn main() -> Result<(), Error> {
    let uri: Uri = std::env::args().nth(1).unwrap_or_default().parse()?;
    let volume = connect(&uri)?;
    let alone = median((0..ROUNDS).map(|_| deallocate(&volume)).collect::<Result<_, _>>()?);
    println!("alone            {alone:.3} s");
    for (depth, writes) in [(32, false), (128, false), (512, false), (512, true)] {
        let load = Load::start(&uri, depth, writes)?;
        // A second to get going.
        thread::sleep(Duration::from_secs(1));
        let pause = || {
            thread::sleep(BASE);
            Ok(())
        };
        let rate = load.rate_during(pause)?.1;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            fill(&volume)?;
            rounds.push(load.rate_during(|| punch(&volume))?);
        }
        load.stop()?;
        let time = median(rounds.iter().map(|(time, _)| *time).collect());
        let share = median(rounds.iter().map(|(_, rate)| *rate).collect()) / rate;
        let kind = if writes { "reads, writes" } else { "reads" };
        println!("QD{depth:<4} {kind:<14} {time:.3} s, {:.2} x alone; reads keep {share:.2}", time / alone);
    }
    volume.close();
    Ok(())
}

fn connect(uri: &Uri) -> Result<BlockingVolume, Error> {
    let options = Options { command_timeout: Duration::from_secs(120), ..Options::default() };
    Ok(BlockingVolume::connect(uri, options)?)
}

/// Writes the range, so that there is something to deallocate.
fn fill(volume: &BlockingVolume) -> Result<(), Error> {
    let bytes = vec![1; 1 << 20];
    (0..RANGE_BYTES).step_by(bytes.len()).try_for_each(|offset| volume.write_at(&bytes, offset))?;
    Ok(volume.flush()?)
}

fn punch(volume: &BlockingVolume) -> Result<(), Error> {
    Ok(volume.deallocate(0, RANGE_BYTES)?)
}

fn deallocate(volume: &BlockingVolume) -> Result<f64, Error> {
    fill(volume)?;
    let start = Instant::now();
    punch(volume)?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Random requests of 4 KiB over the whole volume.
struct Load {
    reads: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Result<(), Error>>>,
}

impl Load {
    fn start(uri: &Uri, depth: usize, writes: bool) -> Result<Load, Error> {
        let (reads, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut threads = Vec::new();
        for at in 0..depth.div_ceil(DEPTH) {
            let (volume, reads, is_over) = (connect(uri)?, Arc::clone(&reads), Arc::clone(&is_over));
            let depth = depth.min(DEPTH);
            threads.push(thread::spawn(move || run(&volume, depth, writes, at as u64, &reads, &is_over)));
        }
        Ok(Load { reads, is_over, threads })
    }

    /// How long something takes, in seconds, and how many reads a second there are meanwhile.
    fn rate_during(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<(f64, f64), Error> {
        let (start, before) = (Instant::now(), self.reads.load(Ordering::Relaxed));
        work()?;
        let time = start.elapsed().as_secs_f64();
        Ok((time, (self.reads.load(Ordering::Relaxed) - before) as f64 / time))
    }

    fn stop(self) -> Result<(), Error> {
        self.is_over.store(true, Ordering::Relaxed);
        let end = |thread: thread::JoinHandle<_>| thread.join().expect("the load does not panic");
        self.threads.into_iter().try_for_each(end)
    }
}

fn run(
    volume: &BlockingVolume,
    depth: usize,
    writes: bool,
    seed: u64,
    reads: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<(), Error> {
    let mut submitter = volume.submitter(depth);
    let (block_bytes, pages) = (u64::from(volume.block_size()), volume.size() / 4096);
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut completions = Vec::new();
    let mut idle: Vec<Buffer> = (0..depth).map(|_| Buffer::contiguous(4096)).collect();
    loop {
        while let Some(buffer) = idle.pop().filter(|_| !is_over.load(Ordering::Relaxed)) {
            // Xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (lba, is_write) = (random % pages * 4096 / block_bytes, writes && random >> 63 == 1);
            let request = match is_write {
                true => Request::Write { lba, buffer, fua: false },
                false => Request::Read { lba, buffer },
            };
            submitter.submit(request, u64::from(!is_write)).expect("depth is bounded");
        }
        if submitter.outstanding() == 0 {
            return Ok(());
        }
        submitter.wait(&mut completions);
        for completion in completions.drain(..) {
            completion.result?;
            reads.fetch_add(completion.tag, Ordering::Relaxed);
            idle.extend(completion.buffer);
        }
    }
}
