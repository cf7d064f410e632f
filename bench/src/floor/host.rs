//! The asking side: every lane keeps `depth` operations under way at all times.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::batch::Gather;
use super::connection::Connection;
use super::memory::{Block, blocks};
use super::units::Units;
use super::work::{COMMAND_BYTES, H2C_DATA_PDU, HEADER_BYTES, R2T_PDU, Work, encode_command, header};
use crate::turns::turn_for;

/// What the measured time brought.
pub struct Outcome {
    /// Operations completed, by connection.
    pub operations: Vec<u64>,
    /// Time they took.
    pub elapsed: Duration,
    /// Round trips in nanoseconds, taken at depth 1 only: a clock read an operation would lower the floor.
    pub round_trips_ns: Histogram<u64>,
}

/// Drives all connections for `warm_up`, then for `measured`.
pub fn drive(
    connections: Vec<Connection>,
    work: Work,
    depth: usize,
    warm_up: Duration,
    measured: Duration,
) -> io::Result<Outcome> {
    let mut lanes = Vec::new();
    for (seed, connection) in (1..).zip(connections) {
        lanes.push(Lane::start(connection, work, depth, seed)?);
    }
    answered_once(&mut lanes)?;
    turn_for(&mut lanes, warm_up, Lane::turn)?;
    lanes.iter_mut().for_each(|lane| lane.clock.round_trips_ns.reset());
    let begun = Instant::now();
    let operations = turn_for(&mut lanes, measured, Lane::turn)?;
    let elapsed = begun.elapsed();
    let mut round_trips_ns = histogram();
    lanes.iter().for_each(|lane| round_trips_ns.add(&lane.clock.round_trips_ns).expect("same bounds"));
    Ok(Outcome { operations, elapsed, round_trips_ns })
}

/// The target prepares its blocks before it serves: time starts when every lane has had an answer. All lanes take
/// turns, because the target serves the next one only when the host has taken what is sent on this one.
fn answered_once(lanes: &mut [Lane]) -> io::Result<()> {
    let mut is_answered = vec![false; lanes.len()];
    while is_answered.contains(&false) {
        for (lane, is_answered) in lanes.iter_mut().zip(&mut is_answered) {
            *is_answered |= lane.turn()? > 0;
        }
    }
    Ok(())
}

struct Lane {
    connection: Connection,
    asker: Asker,
    clock: Clock,
}

impl Lane {
    fn start(mut connection: Connection, work: Work, depth: usize, seed: u64) -> io::Result<Lane> {
        let mut asker = Asker::new(work, depth, seed)?;
        asker.start(&mut connection, depth)?;
        Ok(Lane { connection, asker, clock: Clock::new(depth) })
    }

    /// Receives once, asks for as much as was answered, returns the number of operations completed.
    fn turn(&mut self) -> io::Result<u64> {
        let completed = match &mut self.asker {
            Asker::Read(asker) => asker.turn(&mut self.connection),
            Asker::Capsule(asker) => asker.turn(&mut self.connection),
            Asker::Granted(asker) => asker.turn(&mut self.connection),
        }?;
        self.clock.on_completed(completed);
        Ok(completed as u64)
    }
}

/// Round trips of a lane of depth 1.
struct Clock {
    is_running: bool,
    sent_at: Instant,
    round_trips_ns: Histogram<u64>,
}

impl Clock {
    fn new(depth: usize) -> Clock {
        Clock { is_running: depth == 1, sent_at: Instant::now(), round_trips_ns: histogram() }
    }

    fn on_completed(&mut self, completed: usize) {
        if self.is_running && completed > 0 {
            let now = Instant::now();
            self.round_trips_ns.saturating_record(now.duration_since(self.sent_at).as_nanos() as u64);
            self.sent_at = now;
        }
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(10_000_000_000, 3).expect("valid bounds")
}

enum Asker {
    Read(ReadAsker),
    Capsule(CapsuleAsker),
    Granted(GrantedAsker),
}

impl Asker {
    fn new(work: Work, depth: usize, seed: u64) -> io::Result<Asker> {
        let commands = Commands::new(work, depth, seed);
        let ring = blocks(depth, work.block_bytes())?;
        let replies = Replies::new(2 * depth);
        Ok(match work {
            Work::Read4k | Work::Read128k => {
                Asker::Read(ReadAsker { commands, units: Units::new(HEADER_BYTES, depth), ring })
            }
            Work::Write4k => {
                Asker::Capsule(CapsuleAsker { commands, replies, ring, gather: Gather::default() })
            }
            Work::Write128k => {
                Asker::Granted(GrantedAsker { commands, replies, ring, front: 0, gather: Gather::default() })
            }
        })
    }

    fn start(&mut self, connection: &mut Connection, depth: usize) -> io::Result<()> {
        match self {
            Asker::Read(asker) => connection.send_commands(asker.commands.fresh(depth)),
            Asker::Capsule(asker) => asker.ask(connection, depth),
            Asker::Granted(asker) => connection.send_commands(asker.commands.fresh(depth)),
        }
    }
}

/// Commands that lie one behind the other and name random blocks. Each connection has its own sequence: what
/// one has just read would be in the cache for the others.
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

    fn fresh(&mut self, count: usize) -> &[u8] {
        let bytes = &mut self.bytes[..count * COMMAND_BYTES];
        for command in bytes.chunks_exact_mut(COMMAND_BYTES) {
            encode_command(command, self.random.usize(..self.blocks));
        }
        bytes
    }
}

/// Replies that are only a header.
struct Replies {
    bytes: Vec<u8>,
    filled: usize,
}

impl Replies {
    fn new(count: usize) -> Replies {
        Replies { bytes: vec![0; count * HEADER_BYTES], filled: 0 }
    }

    /// One `readv`; returns the bytes of whole replies.
    fn receive(&mut self, connection: &mut Connection) -> io::Result<usize> {
        self.filled += connection.receive(&mut [IoSliceMut::new(&mut self.bytes[self.filled..])])?;
        Ok(self.filled / HEADER_BYTES * HEADER_BYTES)
    }

    fn advance(&mut self, whole: usize) {
        self.bytes.copy_within(whole..self.filled, 0);
        self.filled -= whole;
    }
}

struct ReadAsker {
    commands: Commands,
    units: Units,
    ring: Vec<Block>,
}

impl ReadAsker {
    fn turn(&mut self, connection: &mut Connection) -> io::Result<usize> {
        let completed = self.units.receive(connection, &mut self.ring)?;
        if completed > 0 {
            self.units.advance(completed, self.ring[0].len());
            connection.send_commands(self.commands.fresh(completed))?;
        }
        Ok(completed)
    }
}

struct CapsuleAsker {
    commands: Commands,
    replies: Replies,
    ring: Vec<Block>,
    gather: Gather,
}

impl CapsuleAsker {
    fn turn(&mut self, connection: &mut Connection) -> io::Result<usize> {
        let whole = self.replies.receive(connection)?;
        let completed = whole / HEADER_BYTES;
        if completed > 0 {
            self.replies.advance(whole);
            self.ask(connection, completed)?;
        }
        Ok(completed)
    }

    fn ask(&mut self, connection: &mut Connection, count: usize) -> io::Result<()> {
        let mut batch = self.gather.take();
        for (command, block) in self.commands.fresh(count).chunks_exact(COMMAND_BYTES).zip(&self.ring) {
            batch.push(IoSlice::new(command));
            batch.push(IoSlice::new(block));
        }
        let sent = connection.send_blocks(&mut batch);
        self.gather.put(batch);
        sent
    }
}

struct GrantedAsker {
    commands: Commands,
    replies: Replies,
    ring: Vec<Block>,
    front: usize,
    gather: Gather,
}

impl GrantedAsker {
    fn turn(&mut self, connection: &mut Connection) -> io::Result<usize> {
        let whole = self.replies.receive(connection)?;
        let replies = self.replies.bytes[..whole].chunks_exact(HEADER_BYTES);
        let granted = replies.filter(|reply| reply[0] == R2T_PDU).count();
        let completed = whole / HEADER_BYTES - granted;
        if whole > 0 {
            self.replies.advance(whole);
            self.answer(connection, granted, completed)?;
        }
        Ok(completed)
    }

    /// New commands first: their grants travel while the data does.
    fn answer(&mut self, connection: &mut Connection, granted: usize, completed: usize) -> io::Result<()> {
        let commands = self.commands.fresh(completed);
        let mut batch = self.gather.take();
        if connection.is_single() {
            connection.send_commands(commands)?;
        } else if completed > 0 {
            batch.push(IoSlice::new(commands));
        }
        for place in self.front..self.front + granted {
            batch.push(IoSlice::new(&DATA_HEADER));
            batch.push(IoSlice::new(&*self.ring[place % self.ring.len()]));
        }
        let sent = connection.send_blocks(&mut batch);
        self.gather.put(batch);
        self.front = (self.front + granted) % self.ring.len();
        sent
    }
}

const DATA_HEADER: [u8; HEADER_BYTES] = header(H2C_DATA_PDU);
