//! The application's work on its connections.

use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::options::Work;
use super::transport::Transport;

/// The application: its connections, one message, and an uncontended lock.
pub struct App {
    transports: Vec<Transport>,
    message: Vec<u8>,
    lock: Option<Mutex<()>>,
    pub round_trips_ns: Histogram<u64>,
}

impl App {
    /// Returns an application that moves messages of `size` bytes.
    pub fn new(transports: Vec<Transport>, size: usize, takes_lock: bool) -> App {
        let round_trips_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        App { transports, message: vec![7; size], lock: takes_lock.then(Mutex::default), round_trips_ns }
    }

    /// Works for `time`. Returns the number of moved bytes.
    pub fn work(&mut self, work: Work, time: Duration) -> io::Result<u64> {
        let start = Instant::now();
        let mut bytes = 0;
        while start.elapsed() < time {
            bytes += match work {
                Work::Transmit => self.transmit(MESSAGES_PER_CLOCK_READ)?,
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

    /// Transmits the same number of messages on all connections.
    fn transmit(&mut self, messages: usize) -> io::Result<u64> {
        let rounds = messages.div_ceil(self.transports.len());
        for _ in 0..rounds {
            for transport in &mut self.transports {
                let _guard = self.lock.as_ref().map(|lock| lock.lock().expect("no thread panics with it"));
                transport.write(&self.message)?;
            }
        }
        Ok((rounds * self.transports.len() * self.message.len()) as u64)
    }

    fn receive(&mut self) -> io::Result<u64> {
        let mut bytes = 0;
        for _ in 0..MESSAGES_PER_CLOCK_READ {
            let _guard = self.lock.as_ref().map(|lock| lock.lock().expect("no thread panics with it"));
            match self.transports[0].read(&mut self.message)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes += count as u64,
            }
        }
        Ok(bytes)
    }

    fn echo(&mut self) -> io::Result<u64> {
        let start = Instant::now();
        self.transports[0].write(&self.message)?;
        self.transports[0].read_spinning(&mut self.message)?;
        self.round_trips_ns.saturating_record(start.elapsed().as_nanos() as u64);
        Ok(self.message.len() as u64)
    }
}

const MESSAGES_PER_CLOCK_READ: usize = 32;
const PACED_PER_MS: usize = 20;
