//! A computing thread, alongside a stream or alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cpu::pin;

/// A thread that counts its rounds until the drop.
pub struct ComputeThread {
    rounds: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ComputeThread {
    /// Starts the thread on a core.
    pub fn start(core: usize) -> io::Result<ComputeThread> {
        let (rounds, stopped) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (Arc::clone(&rounds), Arc::clone(&stopped));
        let compute = move || {
            // If it cannot run there, it is slower, and the figure shows that.
            let _ = pin(core);
            let mut value = 1u64;
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..1000 {
                    value = std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(1));
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let thread = Some(thread::Builder::new().name("compute".to_owned()).spawn(compute)?);
        Ok(ComputeThread { rounds, stopped, thread })
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

impl Drop for ComputeThread {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
