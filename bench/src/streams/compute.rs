//! A thread that computes, beside a stream or alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::core::pin;

/// A thread that counts its rounds until it is dropped.
pub struct Computing {
    rounds: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Computing {
    /// Starts it on a core.
    pub fn start(core: usize) -> io::Result<Computing> {
        let (rounds, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (Arc::clone(&rounds), Arc::clone(&is_over));
        let life = move || {
            // Where it may not run there, it is slower, and the figure shows it.
            let _ = pin(core);
            let mut value = 1u64;
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..1000 {
                    value = std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(1));
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let thread = Some(thread::Builder::new().name("computing".to_owned()).spawn(life)?);
        Ok(Computing { rounds, is_over, thread })
    }

    /// Rounds so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Rounds a second of a thread that computes alone for so long.
    pub fn alone(core: usize, time: Duration) -> io::Result<f64> {
        let computing = Computing::start(core)?;
        thread::sleep(time / 10);
        let (begun, rounds) = (Instant::now(), computing.rounds());
        thread::sleep(time);
        Ok((computing.rounds() - rounds) as f64 / begun.elapsed().as_secs_f64())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
