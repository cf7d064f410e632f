//! A computing thread, alongside a stream or alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu::pin;

/// A thread that counts its rounds until the drop.
pub struct ComputeThread {
    rounds: Arc<AtomicU64>,
}

impl ComputeThread {
    /// Starts the thread on a core.
    pub fn start(core: usize) -> io::Result<ComputeThread> {
        let rounds = Arc::<AtomicU64>::default();
        let counted = Arc::downgrade(&rounds);
        let compute = move || {
            // If it cannot run there, it is slower, and the figure shows that.
            let _ = pin(core);
            let mut value = 1u64;
            while let Some(rounds) = counted.upgrade() {
                for _ in 0..1000 {
                    value = std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(1));
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("compute".to_owned()).spawn(compute)?;
        Ok(ComputeThread { rounds })
    }

    /// Returns the number of rounds so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Returns the rounds per second of a thread that computes alone for `time`.
    pub fn alone(core: usize, time: Duration) -> io::Result<f64> {
        let compute = ComputeThread::start(core)?;
        thread::sleep(time / 10);
        let (start, rounds) = (Instant::now(), compute.rounds());
        thread::sleep(time);
        Ok((compute.rounds() - rounds) as f64 / start.elapsed().as_secs_f64())
    }
}
