//! What the application does with its ends.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::options::Work;
use super::way::Way;

/// The application: its ends, one message, and a lock that nobody else wants.
pub struct App {
    ways: Vec<Way>,
    message: Vec<u8>,
    lock: Option<Mutex<()>>,
    pub round_trips_ns: Histogram<u64>,
}

impl App {
    /// An application that moves messages of `size` bytes: transmits them on all ends in turn, or works on one.
    pub fn new(ways: Vec<Way>, size: usize, takes_lock: bool) -> App {
        let round_trips_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        App { ways, message: vec![7; size], lock: takes_lock.then(Mutex::default), round_trips_ns }
    }

    /// Works for so long. Returns how many bytes were moved.
    pub fn work(&mut self, work: Work, time: Duration) -> io::Result<u64> {
        let begun = Instant::now();
        let mut bytes = 0;
        while begun.elapsed() < time {
            bytes += match work {
                Work::Transmit => self.transmit(MESSAGES_PER_LOOK)?,
                Work::Receive => self.receive()?,
                Work::Echo => self.echo()?,
                Work::Compute => {
                    thread::sleep(Duration::from_millis(1));
                    self.transmit(PACED_PER_MS)?
                }
            };
        }
        Ok(bytes)
    }

    fn transmit(&mut self, messages: usize) -> io::Result<u64> {
        let App { ways, message, lock, .. } = self;
        // As many on each: a round over all of them is finished.
        let rounds = messages.div_ceil(ways.len());
        for _ in 0..rounds {
            for way in &mut *ways {
                let _guard = lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
                way.write(message)?;
            }
        }
        Ok((rounds * ways.len() * message.len()) as u64)
    }

    fn receive(&mut self) -> io::Result<u64> {
        let mut bytes = 0;
        for _ in 0..MESSAGES_PER_LOOK {
            let _guard = self.lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
            match self.ways[0].read(&mut self.message)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes += count as u64,
            }
        }
        Ok(bytes)
    }

    fn echo(&mut self) -> io::Result<u64> {
        let begun = Instant::now();
        self.ways[0].write(&self.message)?;
        self.ways[0].spin(&mut self.message)?;
        self.round_trips_ns.saturating_record(begun.elapsed().as_nanos() as u64);
        Ok(self.message.len() as u64)
    }
}

/// Messages between two looks at the clock.
const MESSAGES_PER_LOOK: usize = 32;
/// Messages that a paced application writes in a millisecond.
const PACED_PER_MS: usize = 20;
