//! One I/O connection with reads in flight.

use std::io::{self, IoSliceMut};
use std::mem;
use std::net::TcpStream;
use std::time::Instant;

use hdrhistogram::Histogram;

use super::Options;
use super::connect::{Command, Namespace, SUCCESS, length, status};
use crate::socket::{C2H_DATA_PDU, COMMAND_BYTES, HEADER_BYTES, RESPONSE_PDU, Socket};

/// One I/O connection.
pub struct Lane {
    socket: Socket,
    /// Received bytes; between turns at most the start of a header.
    input: Vec<u8>,
    filled: usize,
    /// Missing bytes of the current data PDU.
    missing_data: usize,
    /// The command that these data complete, if no response follows.
    completed_by_data: Option<u16>,
    commands: Vec<Command>,
    completed: Vec<u16>,
    output: Vec<u8>,
    slots: u64,
    blocks_per_slot: u64,
    random: fastrand::Rng,
    namespaces: u32,
    /// Commands that count; those above are of the namespace beside.
    depth: u16,
    /// When each command was sent, if latencies are measured.
    sent: Option<Vec<Instant>>,
    latencies: Histogram<u64>,
}

impl Lane {
    /// Returns a connection without commands.
    pub fn new(stream: TcpStream, namespace: Namespace, options: &Options) -> io::Result<Lane> {
        let blocks_per_slot = u64::from(READ_BYTES / namespace.block_bytes).max(1);
        let length = (blocks_per_slot as u16 - 1).to_le_bytes();
        let depth = if options.idle { 1 } else { options.depth };
        let in_flight = depth + options.beside.map_or(0, |_| options.beside_depth);
        let command = |cid| {
            let nsid = options.beside.filter(|_| cid >= depth).unwrap_or(1);
            Command::new(0x02, cid).set(4, &nsid.to_le_bytes()).reading(READ_BYTES).set(48, &length)
        };
        Ok(Lane {
            socket: Socket::new(stream, options.unbatched, 0)?,
            input: vec![0; INPUT_BYTES.min(usize::from(in_flight) * (64 + READ_BYTES as usize))],
            filled: 0,
            missing_data: 0,
            completed_by_data: None,
            commands: (0..in_flight).map(command).collect(),
            completed: Vec::with_capacity(in_flight.into()),
            output: Vec::with_capacity(COMMAND_BYTES * usize::from(in_flight)),
            slots: namespace.blocks / blocks_per_slot,
            blocks_per_slot,
            random: fastrand::Rng::with_seed(1),
            namespaces: options.namespaces,
            depth,
            sent: options.latencies.then(|| vec![Instant::now(); in_flight.into()]),
            latencies: histogram(),
        })
    }

    /// Sends the first commands.
    pub fn start(&mut self) -> io::Result<()> {
        self.completed.extend(0..self.commands.len() as u16);
        self.submit()
    }

    /// Receives once and submits a command for each that completed. Returns the number of those that count.
    pub fn turn(&mut self) -> io::Result<u64> {
        self.receive()?;
        let completed = self.completed.iter().filter(|cid| **cid < self.depth).count() as u64;
        if !self.completed.is_empty() {
            self.record_latencies();
            self.submit()?;
        }
        Ok(completed)
    }

    /// Receives once, submits nothing, and returns whether a command completed.
    pub fn has_completed(&mut self) -> io::Result<bool> {
        self.receive()?;
        Ok(!self.completed.is_empty())
    }

    /// Nanoseconds of each read that counts.
    pub fn latencies(&self) -> &Histogram<u64> {
        &self.latencies
    }

    /// Begins the measurement.
    pub fn forget_latencies(&mut self) {
        self.latencies.reset();
    }

    fn record_latencies(&mut self) {
        let Some(sent) = &mut self.sent else { return };
        let now = Instant::now();
        for cid in &self.completed {
            let sent = mem::replace(&mut sent[usize::from(*cid)], now);
            if *cid < self.depth {
                self.latencies.saturating_record((now - sent).as_nanos() as u64);
            }
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.output.clear();
        for cid in self.completed.drain(..) {
            let slba = self.random.u64(0..self.slots) * self.blocks_per_slot;
            let command = &mut self.commands[usize::from(cid)];
            if self.namespaces > 1 && cid < self.depth {
                let nsid = self.random.u32(1..=self.namespaces);
                command.set_nsid(nsid);
            }
            command.0[48..56].copy_from_slice(&slba.to_le_bytes());
            self.output.extend_from_slice(&command.0);
        }
        self.socket.send_commands(&self.output)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.filled += self.socket.receive(&mut [IoSliceMut::new(&mut self.input[self.filled..])])?;
        let mut at = 0;
        loop {
            at += self.skip_data(self.filled - at);
            if self.missing_data > 0 || self.filled - at < HEADER_BYTES {
                break;
            }
            let header: [u8; HEADER_BYTES] = self.input[at..][..HEADER_BYTES].try_into().expect("24 bytes");
            self.on_header(&header)?;
            at += HEADER_BYTES;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn skip_data(&mut self, received: usize) -> usize {
        let skipped = received.min(self.missing_data);
        self.missing_data -= skipped;
        if self.missing_data == 0 {
            self.completed.extend(self.completed_by_data.take());
        }
        skipped
    }

    fn on_header(&mut self, header: &[u8; HEADER_BYTES]) -> io::Result<()> {
        match header[0] {
            C2H_DATA_PDU => {
                self.missing_data = length(header).saturating_sub(HEADER_BYTES);
                let cid = u16::from_le_bytes([header[8], header[9]]);
                self.completed_by_data = (header[1] & SUCCESS != 0).then_some(cid);
            }
            RESPONSE_PDU => {
                let cid = u16::from_le_bytes([header[20], header[21]]);
                if status(header) != 0 && cid < self.depth {
                    return Err(io::Error::other(format!("read failed with status {:#x}", status(header))));
                }
                self.completed.push(cid);
            }
            kind => return Err(io::Error::other(format!("PDU type {kind:#04x} instead of a response"))),
        }
        Ok(())
    }
}

const INPUT_BYTES: usize = 1 << 20;
/// Size of each read.
pub const READ_BYTES: u32 = 4096;

/// Returns an empty histogram of nanoseconds, up to a minute.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}
