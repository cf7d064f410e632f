//! The host side, which keeps `depth` operations in flight on each connection.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::memory::{Block, blocks};
use super::units::{Gather, Headers, Units};
use super::work::{H2C_DATA_PDU, R2T_PDU, Work, encode_command, header};
use crate::round_robin::measure;
use crate::socket::{COMMAND_BYTES, HEADER_BYTES, Socket};

/// The result of the measured time.
pub struct Outcome {
    /// Completed operations by connection.
    pub operations: Vec<u64>,
    /// Their duration.
    pub elapsed: Duration,
    /// Round trips in nanoseconds at depth 1; at other depths clock reads per operation would lower the floor.
    pub round_trips_ns: Histogram<u64>,
}

/// Drives all connections for `measured`, after a warm-up.
pub fn drive(sockets: Vec<Socket>, work: Work, depth: usize, measured: Duration) -> io::Result<Outcome> {
    let mut conns = Vec::new();
    for (seed, socket) in (1..).zip(sockets) {
        conns.push(Conn::start(socket, work, depth, seed)?);
    }
    complete_one_each(&mut conns)?;
    let reset = |conn: &mut Conn| conn.round_trips_ns.reset();
    let (operations, elapsed) = measure(&mut conns, measured, Conn::turn, reset)?;
    let mut round_trips_ns = histogram();
    conns.iter().for_each(|conn| round_trips_ns.add(&conn.round_trips_ns).expect("same bounds"));
    Ok(Outcome { operations, elapsed, round_trips_ns })
}

/// Waits until each connection has completed an operation, because the target prepares its blocks before it serves.
/// All take turns: the target serves the next connection only when the host has received the data of this one.
fn complete_one_each(conns: &mut [Conn]) -> io::Result<()> {
    let mut completed = vec![false; conns.len()];
    while completed.contains(&false) {
        for (conn, completed) in conns.iter_mut().zip(&mut completed) {
            *completed |= conn.turn()? > 0;
        }
    }
    Ok(())
}

struct Conn {
    socket: Socket,
    workload: Box<dyn Workload>,
    /// At depth 1, the time of the last send.
    sent_at: Option<Instant>,
    round_trips_ns: Histogram<u64>,
}

impl Conn {
    fn start(mut socket: Socket, work: Work, depth: usize, seed: u64) -> io::Result<Conn> {
        let mut workload = workload(work, depth, seed)?;
        workload.start(&mut socket, depth)?;
        let sent_at = (depth == 1).then(Instant::now);
        Ok(Conn { socket, workload, sent_at, round_trips_ns: histogram() })
    }

    /// Receives once, submits an operation for each that completed, and returns their number.
    fn turn(&mut self) -> io::Result<u64> {
        let completed = self.workload.turn(&mut self.socket)?;
        if let Some(sent_at) = &mut self.sent_at
            && completed > 0
        {
            let now = Instant::now();
            self.round_trips_ns.saturating_record(now.duration_since(*sent_at).as_nanos() as u64);
            *sent_at = now;
        }
        Ok(completed as u64)
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(10_000_000_000, 3).expect("valid bounds")
}

/// The host's end of one kind of traffic.
trait Workload {
    /// Submits the first `depth` operations.
    fn start(&mut self, socket: &mut Socket, depth: usize) -> io::Result<()>;
    /// Receives once, submits an operation for each that completed, and returns their number.
    fn turn(&mut self, socket: &mut Socket) -> io::Result<usize>;
}

fn workload(work: Work, depth: usize, seed: u64) -> io::Result<Box<dyn Workload>> {
    let commands = Commands::new(work, depth, seed);
    let ring = blocks(depth, work.block_bytes())?;
    let replies = Headers::new(HEADER_BYTES, 2 * depth);
    Ok(match work {
        Work::Read4k | Work::Read128k => {
            Box::new(ReadClient { commands, units: Units::new(HEADER_BYTES, depth), ring })
        }
        Work::Write4k => Box::new(CapsuleClient { commands, replies, ring }),
        Work::Write128k => Box::new(R2tWriteClient { commands, replies, ring, front: 0 }),
    })
}

/// Adjacent commands for random blocks. Each connection has its own sequence, because blocks that one has just read
/// would be in the cache for the others.
struct Commands {
    bytes: Vec<u8>,
    blocks: usize,
    random: fastrand::Rng,
}

impl Commands {
    fn new(work: Work, depth: usize, seed: u64) -> Commands {
        let bytes = vec![0; depth * COMMAND_BYTES];
        Commands { bytes, blocks: work.blocks(), random: fastrand::Rng::with_seed(seed) }
    }

    fn next(&mut self, count: usize) -> &[u8] {
        let bytes = &mut self.bytes[..count * COMMAND_BYTES];
        for command in bytes.chunks_exact_mut(COMMAND_BYTES) {
            encode_command(command, self.random.usize(..self.blocks));
        }
        bytes
    }
}

struct ReadClient {
    commands: Commands,
    units: Units,
    ring: Vec<Block>,
}

impl Workload for ReadClient {
    fn start(&mut self, socket: &mut Socket, depth: usize) -> io::Result<()> {
        socket.send_commands(self.commands.next(depth))
    }

    fn turn(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let completed = self.units.receive(socket, &mut self.ring)?;
        if completed > 0 {
            self.units.advance(completed, self.ring[0].len());
            socket.send_commands(self.commands.next(completed))?;
        }
        Ok(completed)
    }
}

struct CapsuleClient {
    commands: Commands,
    replies: Headers,
    ring: Vec<Block>,
}

impl Workload for CapsuleClient {
    fn start(&mut self, socket: &mut Socket, count: usize) -> io::Result<()> {
        let mut batch = Gather::new();
        for (command, block) in self.commands.next(count).chunks_exact(COMMAND_BYTES).zip(&self.ring) {
            batch.push(IoSlice::new(command));
            batch.push(IoSlice::new(block));
        }
        socket.send_blocks(&mut batch)
    }

    fn turn(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let completed = self.replies.receive(socket)?;
        if completed > 0 {
            self.replies.advance(completed);
            self.start(socket, completed)?;
        }
        Ok(completed)
    }
}

struct R2tWriteClient {
    commands: Commands,
    replies: Headers,
    ring: Vec<Block>,
    front: usize,
}

impl Workload for R2tWriteClient {
    fn start(&mut self, socket: &mut Socket, depth: usize) -> io::Result<()> {
        socket.send_commands(self.commands.next(depth))
    }

    fn turn(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let replies = self.replies.receive(socket)?;
        let r2ts = self.replies.first(replies).filter(|reply| reply[0] == R2T_PDU).count();
        let completed = replies - r2ts;
        if replies > 0 {
            self.replies.advance(replies);
            self.submit(socket, r2ts, completed)?;
        }
        Ok(completed)
    }
}

impl R2tWriteClient {
    /// Sends new commands first, so that their R2Ts travel with the data.
    fn submit(&mut self, socket: &mut Socket, r2ts: usize, completed: usize) -> io::Result<()> {
        let commands = self.commands.next(completed);
        let mut batch = Gather::new();
        if socket.unbatched {
            socket.send_commands(commands)?;
        } else if completed > 0 {
            batch.push(IoSlice::new(commands));
        }
        for position in self.front..self.front + r2ts {
            batch.push(IoSlice::new(&DATA_HEADER));
            batch.push(IoSlice::new(&*self.ring[position % self.ring.len()]));
        }
        socket.send_blocks(&mut batch)?;
        self.front = (self.front + r2ts) % self.ring.len();
        Ok(())
    }
}

const DATA_HEADER: [u8; HEADER_BYTES] = header(H2C_DATA_PDU);
