//! Random programs over lanes that are cut, delayed, and opened again, and that change bytes, against a model that
//! executes requests one after the other.
//!
//! Programs are slow to take completions and to post receives. Their completion queues can overrun, and requests can
//! fail for lack of a receive. An end can be killed, or destroy its queue pair, and start again: with other keys and on
//! other or the same memory, while its old bytes and hellos are in flight. The same seed repeats the same run.
//!
//! `ISOLANE_TEST_SEEDS=1000000 cargo test --release -p isolane-verbs --lib simulation` runs more seeds, and
//! `ISOLANE_TEST_SEED=7` a single one.

mod connections;
mod end;
mod link;
mod model;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use fastrand::Rng;

use self::connections::{Connection, Stage};
use self::end::{End, Process};
use self::link::Link;
use super::*;

// Places in the area of each end.
const SOURCE: u64 = 0;
const TARGET: u64 = 16 * 1024;
const WORDS: u64 = 32 * 1024;
const RESULTS: u64 = 33 * 1024;
const RECEIVES: u64 = 50 * 1024;
const AREA_BYTES: usize = 64 * 1024;
const RECEIVE_BYTES: u32 = 300;
const RESULT_BYTES: u64 = 400;
/// Number of requests of each end in a life.
const REQUESTS: u64 = 40;

/// More rounds than all requests of a run need.
const MAX_ROUNDS: u32 = 20_000;

/// Something that happens in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A lane is cut.
    Cut,
    /// A lane was cut in the payload of a segment.
    CutSegment,
    /// A bit is changed in flight.
    Changed,
    /// Data of one lane arrives before earlier data of another.
    Reordered,
    /// A completion queue is full.
    Overrun,
    /// A request waits for a receive.
    AwaitedReceive,
    /// A request fails for lack of a receive.
    MissingReceive,
    /// An end is killed, or destroys its queue pair, and starts again.
    Killed,
    Destroyed,
    /// An end does not start again.
    Lost,
    /// A hello reaches another life of the queue pair.
    OtherLife,
    /// The last byte of an old life arrives after the first one of the next.
    OldBytes,
}

const EVENTS: usize = Event::OldBytes as usize + 1;

/// Terms of a life that both ends share.
struct Terms {
    resources: usize,
    rnr_retries: u8,
    checksums: bool,
    authenticated: bool,
    segment_bytes: u32,
}

struct Simulation {
    seed: u64,
    rng: Rng,
    now: Instant,
    /// Number of times that a pipe was filled.
    clock: u64,
    events: [bool; EVENTS],
    areas: usize,
    processes: [Process; 2],
    /// The lives of the queue pairs, oldest first.
    links: Vec<Link>,
    connections: Vec<Connection>,
}

impl Simulation {
    fn new(seed: u64, mut rng: Rng, restarts: usize) -> Simulation {
        let areas = restarts + 1;
        let processes = [(); 2].map(|()| Process::new(areas, &mut rng));
        // No deadline of the system's clock passes.
        let now = Instant::now() + Duration::from_secs(3600);
        let link = new_link(&processes, 0, &mut rng);
        Simulation {
            seed,
            rng,
            now,
            clock: 0,
            events: [false; EVENTS],
            areas,
            processes,
            links: vec![link],
            connections: Vec::new(),
        }
    }

    fn count(&mut self, event: Event, happened: bool) {
        self.events[event as usize] |= happened;
    }

    /// The program of an end is killed, or destroys its queue pairs.
    fn end_life(&mut self, victim: usize, is_killed: bool) {
        for link in 0..self.links.len() {
            if !self.links[link].ends[victim].is_dead {
                self.end_queue_pair(link, victim, is_killed);
            }
        }
        if is_killed {
            self.processes[victim] = Process::new(self.areas, &mut self.rng);
        } else {
            self.processes[victim].register_again();
        }
    }

    fn end_queue_pair(&mut self, link: usize, victim: usize, is_killed: bool) {
        let lanes: Vec<usize> = (0..self.connections.len())
            .filter(|index| self.connections[*index].owner(victim) == Some(link))
            .collect();
        if !is_killed {
            for index in &lanes {
                while self.deliver(*index, victim, usize::MAX) > 0 {}
            }
            self.links[link].ends[victim].settle();
            self.links[link].ends[victim].context.connection.announce_end();
            for index in &lanes {
                let bytes = self.rng.usize(0..4096);
                self.transmit(*index, victim, bytes);
            }
        }
        for index in lanes {
            // The system drops data that has not arrived, and sends data that is queued.
            self.connections[index].pipes[1 - victim].clear();
            self.connections[index].is_cut = true;
            if is_killed && self.rng.bool() {
                self.cut(index);
            }
        }
        for connection in self.connections.iter_mut().filter(|connection| connection.link == link) {
            connection.is_abandoned |= victim == 0 && connection.owner(0).is_none();
        }
        let end = &mut self.links[link].ends[victim];
        end.is_dead = true;
        end.context.drop_lanes();
        self.notice_drops();
    }

    /// Both programs create new queue pairs. The old one of the survivor stays.
    fn start_life(&mut self) {
        let link = new_link(&self.processes, self.links.len(), &mut self.rng);
        self.links.push(link);
    }

    fn restart(&mut self, is_followed: bool) {
        let (victim, is_killed) = (self.rng.usize(0..2), self.rng.bool());
        self.count(if is_killed { Event::Killed } else { Event::Destroyed }, is_followed);
        self.count(Event::Lost, !is_followed);
        self.end_life(victim, is_killed);
        if is_followed {
            self.start_life();
        }
    }

    fn step(&mut self) {
        // Mostly the last life.
        let newest = self.links.len() - 1;
        let link = if self.rng.u8(0..4) == 0 { self.rng.usize(0..=newest) } else { newest };
        let side = self.rng.usize(0..2);
        let bytes = 1 << self.rng.u32(0..15);
        let connection = self.rng.choice(0..self.connections.len());
        match (self.rng.u8(0..46), connection) {
            (0..4, _) => self.links[link].post(side, &mut self.rng),
            (4..7, _) if !self.links[link].ends[side].is_slow || self.rng.u8(0..8) == 0 => {
                self.post_receive(link, side);
            }
            (7..18, Some(index)) => drop(self.transmit(index, side, bytes)),
            (18..30, Some(index)) => {
                let is_old = self.connections[index].owner(side).is_some_and(|link| link < newest);
                let count = self.deliver(index, side, bytes);
                self.count(Event::OldBytes, is_old && count > 0);
            }
            (30, Some(index)) => self.cut(index),
            (31..34, Some(index)) => self.notice(index, side),
            (34..37, _) => {
                let missing: Vec<u8> = self.links[link].ends[0].context.missing_lanes().collect();
                if let Some(lane) = self.rng.choice(missing) {
                    self.start_lane(link, lane);
                }
            }
            (37..40, _) => {
                let index = self.connections.iter().position(|connection| connection.stage != Stage::Done);
                if let Some(index) = index.or(connection) {
                    self.advance(index);
                }
            }
            (40, Some(index)) => self.flip(index, side),
            (41..44, _) => self.take_completions(link, side),
            (44, _) => {
                let time = Duration::from_micros(self.rng.u64(0..2000));
                self.pass_time(time);
            }
            _ => {}
        }
        for link in &mut self.links {
            link.ends.iter_mut().for_each(End::settle);
        }
        let waits = self.living().any(|end| end.context.connection.awaits_receive());
        self.count(Event::AwaitedReceive, waits);
        self.connections.retain(|connection| !connection.is_over());
    }

    fn living(&self) -> impl Iterator<Item = &End> {
        self.links.iter().flat_map(|link| &link.ends).filter(|end| !end.is_dead)
    }

    fn post_receive(&mut self, link: usize, index: usize) {
        let end = &mut self.links[link].ends[index];
        if end.receives < REQUESTS && !end.is_dead {
            end.post_receive();
        }
    }

    fn context(&self, link: usize, index: usize) -> String {
        format!("seed {}, life {link} of {}, end {index}", self.seed, self.links.len())
    }

    fn take_completions(&mut self, link: usize, index: usize) {
        if !self.links[link].ends[index].is_dead {
            let context = self.context(link, index);
            self.links[link].take_completions(index, &context);
        }
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends).filter(|end| !end.is_dead) {
            end.context.connection.handle_timeout(self.now);
            end.context.drop_closed_lanes();
        }
        self.notice_drops();
    }

    /// Lets everything end, with only a few further cuts.
    fn drain(&mut self) {
        let newest = self.links.len() - 1;
        for side in 0..2 {
            while self.links[newest].is_alive() && self.links[newest].ends[side].receives < REQUESTS {
                self.post_receive(newest, side);
            }
        }
        self.run_until_idle(20);
        // The program of an end that has lost its peer can notice only if it has requests.
        for link in self.links.iter_mut().filter(|link| !link.is_alive()) {
            if self.rng.bool() {
                (0..2).for_each(|index| link.post(index, &mut self.rng));
            }
        }
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends).filter(|end| !end.is_dead) {
            end.pass_lane_timeout();
        }
        self.notice_drops();
        self.run_until_idle(0);
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends).filter(|end| !end.is_dead) {
            end.pass_lane_timeout();
        }
        self.run_until_idle(0);
    }

    /// Moves everything until nothing is left. Lanes can be cut in the first rounds.
    fn run_until_idle(&mut self, rounds_with_cuts: u32) {
        let (mut idle_rounds, mut rounds) = (0, 0);
        while idle_rounds < 3 {
            let mut moved = 0;
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "seed {}: the ends never become idle", self.seed);
            self.pass_time(Duration::from_millis(1));
            for link in 0..self.links.len() {
                let missing: Vec<u8> = self.links[link].ends[0].context.missing_lanes().collect();
                missing.into_iter().for_each(|lane| self.start_lane(link, lane));
            }
            for index in 0..self.connections.len() {
                while self.connections[index].stage != Stage::Done {
                    moved += usize::from(self.advance(index));
                }
                moved += (0..2).map(|side| self.transmit(index, side, usize::MAX)).sum::<usize>();
                if rounds < rounds_with_cuts && self.rng.u8(0..8) == 0 {
                    self.cut(index);
                }
                moved += (0..2).map(|side| self.deliver(index, side, usize::MAX)).sum::<usize>();
                (0..2).for_each(|side| self.notice(index, side));
            }
            for link in 0..self.links.len() {
                (0..2).for_each(|index| self.take_completions(link, index));
            }
            self.connections.retain(|connection| !connection.is_over());
            idle_rounds = if moved > 0 { 0 } else { idle_rounds + 1 };
        }
    }

    fn check(&mut self) {
        for link in 0..self.links.len() {
            for index in 0..2 {
                let (end, context) = (&self.links[link].ends[index], self.context(link, index));
                let is_missing = end.sent.iter().any(|(_, status)| *status == Status::RnrRetryExceeded);
                let has_overrun = end.has_overrun;
                self.count(Event::MissingReceive, is_missing);
                self.count(Event::Overrun, has_overrun);
                self.links[link].check(index, &context);
            }
        }
    }
}

fn new_link(processes: &[Process; 2], area: usize, rng: &mut Rng) -> Link {
    let terms = Terms {
        resources: rng.usize(1..4),
        rnr_retries: if rng.u8(0..4) == 0 { rng.u8(0..4) } else { 7 },
        checksums: rng.bool(),
        authenticated: rng.bool(),
        segment_bytes: rng.u32(64..3000),
    };
    let ends = [0, 1].map(|index| {
        let first_message = rng.u32(..);
        End::new(&processes[index], area, &terms, first_message, rng)
    });
    Link::new(ends, terms.rnr_retries == 7)
}

/// Returns the events of a run.
fn run(seed: u64) -> [bool; EVENTS] {
    let mut rng = Rng::with_seed(seed);
    let (restarts, is_lost) = match rng.u8(0..16) {
        0 => (0, true),
        1..5 => (1, false),
        5 => (2, false),
        _ => (0, false),
    };
    let mut simulation = Simulation::new(seed, rng, restarts);
    for life in 0..=restarts {
        for _ in 0..simulation.rng.u32(100..1500) {
            simulation.step();
        }
        if life < restarts || is_lost {
            simulation.restart(life < restarts);
        }
    }
    simulation.drain();
    simulation.check();
    simulation.events
}

/// `ISOLANE_TEST_SEEDS` has the number of seeds, and `ISOLANE_TEST_SEED` a single one.
#[test]
fn every_byte_and_completion_survives_cut_lanes_and_restarts() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = variable("ISOLANE_TEST_SEED") {
        run(seed);
        return;
    }
    let (counts, next) = ([const { AtomicU64::new(0) }; EVENTS], AtomicU64::new(0));
    let seeds = variable("ISOLANE_TEST_SEEDS").unwrap_or(2000);
    let work = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds) {
            for (count, happened) in counts.iter().zip(run(seed)) {
                count.fetch_add(happened.into(), Ordering::Relaxed);
            }
            if (seed + 1).is_multiple_of(50_000) {
                println!("{} of {seeds} seeds", seed + 1);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no seed fails"));
    });
    let counts = counts.map(AtomicU64::into_inner);
    println!("runs of {seeds} with each event: {counts:?}");
    // Each kind of event occurs.
    assert!(seeds < 1000 || counts.iter().all(|count| *count > seeds / 1000), "{counts:?}");
}
