//! The floor of RDMA operations: plain TCP that moves the same bytes, with two threads that spin.
//!
//! A SEND is a ping-pong of its bytes. A WRITE is a stream of its bytes, answered by 8 bytes each. A READ is a request of
//! 16 bytes, answered by its bytes. All data is sent from one buffer and received into one, as with registered memory.
//! There are no headers, keys, or checks.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use rustix::net::sockopt::set_socket_send_buffer_size;
use serde::Serialize;

use crate::cpu;

/// Arguments of the program.
#[derive(Debug, Parser)]
pub struct Options {
    /// Operation whose bytes are moved
    #[arg(long, value_enum)]
    operation: Operation,
    /// Size of an operation in bytes
    #[arg(long)]
    size: usize,
    /// Operations in flight
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Cores of the two ends
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cores: Vec<usize>,
}

/// Operation whose bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Send,
    Write,
    Read,
}

impl Operation {
    /// Returns the lengths of a request and of its answer, in bytes.
    fn lengths(self, size: usize) -> (usize, usize) {
        match self {
            Operation::Send => (size, size),
            Operation::Write => (size, ANSWER_BYTES),
            Operation::Read => (REQUEST_BYTES, size),
        }
    }
}

/// Result, with the names that `isolane verbs bench` uses.
#[derive(Debug, Serialize)]
pub struct Report {
    operations_per_s: f64,
    mib_per_s: f64,
    /// Median of half a round trip for a SEND, otherwise of a request and its answer, in microseconds.
    p50_us: f64,
}

/// Runs the program.
///
/// # Errors
/// If the arguments are wrong, or the system refuses a socket or a thread.
pub fn run(options: &Options) -> io::Result<Report> {
    if options.size == 0 || options.depth == 0 || options.cores.len() != 2 {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "--size and --depth are above 0; --cores names 2",
        ));
    }
    measure(options)
}

fn measure(options: &Options) -> io::Result<Report> {
    let (request, answer) = options.operation.lengths(options.size);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let core = options.cores[0];
    let server = std::thread::spawn(move || {
        cpu::pin(core)?;
        End::new(far, request, answer)?.answer()
    });
    cpu::pin(options.cores[1])?;
    let time = Duration::from_secs_f64(options.seconds);
    let end = End::new(near, answer, request)?;
    let (count, elapsed, latencies) = end.request(options.depth, time)?;
    server.join().map_err(|_| io::Error::other("the server has panicked"))??;
    let halves = if options.operation == Operation::Send { 2.0 } else { 1.0 };
    let operations_per_s = count as f64 * halves / elapsed.as_secs_f64();
    Ok(Report {
        operations_per_s,
        mib_per_s: operations_per_s * options.size as f64 / f64::from(1 << 20),
        p50_us: latencies.value_at_quantile(0.5) as f64 / 1000.0 / halves,
    })
}

/// One end: messages of one length in each direction.
struct End {
    stream: TcpStream,
    incoming: usize,
    outgoing: usize,
    received: Vec<u8>,
    sent: Vec<u8>,
    /// Number of received bytes of an incomplete message.
    partial: usize,
    /// Number of bytes to send.
    unsent: usize,
}

impl End {
    fn new(stream: TcpStream, incoming: usize, outgoing: usize) -> io::Result<End> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Data in flight stays in the caches.
        set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
        let received = vec![0; incoming.max(RECEIVE_BYTES)];
        Ok(End { stream, incoming, outgoing, received, sent: vec![1; outgoing], partial: 0, unsent: 0 })
    }

    /// Receives with one call. Returns the number of complete messages, `None` at the end of the stream.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        // Large messages go to their place; of small ones, a call takes as many as there are.
        let range =
            if self.incoming < RECEIVE_BYTES { 0..RECEIVE_BYTES } else { self.partial..self.incoming };
        match self.stream.read(&mut self.received[range]) {
            Ok(0) => Ok(None),
            Ok(count) => {
                self.partial += count;
                let complete = self.partial / self.incoming;
                self.partial %= self.incoming;
                Ok(Some(complete))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends with one call.
    fn send(&mut self) -> io::Result<()> {
        if self.unsent == 0 {
            return Ok(());
        }
        let first = (self.unsent - 1) % self.outgoing + 1;
        let further = (self.unsent - first).min(MAX_SEND_BYTES) / self.outgoing;
        let first = &self.sent[self.outgoing - first..];
        let first = &first[..first.len().min(MAX_SEND_BYTES)];
        let sent = match further {
            0 => self.stream.write(first),
            _ => {
                let all = std::iter::repeat_n(IoSlice::new(&self.sent), further.min(MAX_SLICES));
                let slices: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(first)).chain(all).collect();
                self.stream.write_vectored(&slices)
            }
        };
        match sent {
            Ok(count) => self.unsent -= count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Answers each message until the peer ends.
    fn answer(mut self) -> io::Result<()> {
        while let Some(complete) = self.receive()? {
            self.unsent += complete * self.outgoing;
            match self.send() {
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                    break;
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Keeps `depth` requests in flight for `time`, after a tenth of it. Returns their number, their duration, and the
    /// latencies in nanoseconds.
    fn request(mut self, depth: usize, time: Duration) -> io::Result<(u64, Duration, Histogram<u64>)> {
        let mut latencies = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).map_err(io::Error::other)?;
        let begin = Instant::now();
        let (mut count, mut oldest, mut posted) = (0, 0, vec![begin; depth]);
        let mut start = None;
        self.unsent = depth * self.outgoing;
        loop {
            self.send()?;
            let complete = self.receive()?.ok_or(ErrorKind::UnexpectedEof)?;
            if complete == 0 {
                continue;
            }
            let now = Instant::now();
            for _ in 0..complete {
                if start.is_some() {
                    latencies.saturating_record((now - posted[oldest]).as_nanos() as u64);
                    count += 1;
                }
                posted[oldest] = now;
                oldest = (oldest + 1) % depth;
            }
            self.unsent += complete * self.outgoing;
            match start {
                None if now - begin > time / 10 => start = Some(now),
                Some(start) if now - start > time => return Ok((count, now - start, latencies)),
                _ => {}
            }
        }
    }
}

const REQUEST_BYTES: usize = 16;
const ANSWER_BYTES: usize = 8;
/// Maximum length of a receive of small messages.
const RECEIVE_BYTES: usize = 64 * 1024;
const SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Maximum length of a send.
const MAX_SEND_BYTES: usize = 256 * 1024;
/// Number of messages that a call sends.
const MAX_SLICES: usize = 512;
const MAX_LATENCY_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_each_kind_of_bytes() {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            for (size, depth) in [(1, 1), (64, 32), (100_000, 4), (1 << 20, 2)] {
                let cores = vec![0, 1];
                let report = measure(&Options { operation, size, depth, seconds: 0.01, cores }).unwrap();
                assert!(
                    report.operations_per_s > 0.0 && report.p50_us > 0.0,
                    "{operation:?} {size}: {report:?}"
                );
            }
        }
    }
}
