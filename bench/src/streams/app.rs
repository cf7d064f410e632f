//! The application's work on its connection.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::options::Work;
use super::transport::Transport;

/// The application: its connection and one message.
pub struct App {
    transport: Transport,
    message: Vec<u8>,
    pub round_trips_ns: Histogram<u64>,
}

impl App {
    /// Returns an application that moves messages of `size` bytes.
    pub fn new(transport: Transport, size: usize) -> App {
        let round_trips_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        App { transport, message: vec![7; size], round_trips_ns }
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

    fn transmit(&mut self, messages: usize) -> io::Result<u64> {
        for _ in 0..messages {
            self.transport.write(&self.message)?;
        }
        Ok((messages * self.message.len()) as u64)
    }

    fn receive(&mut self) -> io::Result<u64> {
        let mut bytes = 0;
        for _ in 0..MESSAGES_PER_CLOCK_READ {
            match self.transport.read(&mut self.message)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes += count as u64,
            }
        }
        Ok(bytes)
    }

    fn echo(&mut self) -> io::Result<u64> {
        let start = Instant::now();
        self.transport.write(&self.message)?;
        self.transport.read_spinning(&mut self.message)?;
        self.round_trips_ns.saturating_record(start.elapsed().as_nanos() as u64);
        Ok(self.message.len() as u64)
    }
}

const MESSAGES_PER_CLOCK_READ: usize = 32;
const PACED_PER_MS: usize = 20;
