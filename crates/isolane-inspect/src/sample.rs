//! Snapshots of a program that does not exist, for tests: two hosts read and write a stripe, and one member stalls.
//!
//! Equal parameters give equal snapshots.

use std::collections::BTreeMap;
use std::ops::Range;

use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{
    Connection, Core, Numbers, Program, Series, SeriesKey, SlowOperation, Snapshot, StageHistogram, Step,
    Tcp, VERSION, Volume,
};
use isolane_observe::stage::{Operation, Side, SizeClass, Stage};

/// Parameters of a snapshot.
pub struct Sample {
    /// Members of the stripe.
    pub members: u32,
    /// Steps of one second.
    pub steps: u64,
    /// Member that stalls.
    pub stalled: u32,
    /// Steps in which it stalls.
    pub stall: Range<u64>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { members: 8, steps: 300, stalled: 5, stall: 120..150 }
    }
}

/// Start of all samples: 2026-11-26 14:00:00 UTC.
#[allow(dead_code, reason = "tests of other crates include this file")]
pub const START_MS: u64 = 1_795_701_600_000;
const HOSTS: [&str; 2] = ["nqn.2014-08.org.nvmexpress:uuid:one", "nqn.2014-08.org.example:backup"];
const CORES: u32 = 2;
/// Reads of a member in a second, on each core.
const RATE: u64 = 400;
const STALL_NS: u64 = 20_000_000;

impl Sample {
    /// Returns the snapshot at the end.
    pub fn snapshot(&self) -> Snapshot {
        let mut random = Random(1);
        let mut snapshot = Snapshot {
            version: VERSION,
            program: Program {
                name: "serve".to_owned(),
                version: "0.1.0".to_owned(),
                pid: 4711,
                uptime_ms: self.steps * 1000,
                clock: "tsc".to_owned(),
                machine: "storage1".to_owned(),
                limits: BTreeMap::new(),
            },
            at_unix_ms: START_MS + self.steps * 1000,
            volumes: self.volumes(),
            ..Snapshot::default()
        };
        for number in 0..self.steps {
            let step = self.step(number, &mut random);
            snapshot.slow.extend(self.slow(number, &step));
            add(&mut snapshot.numbers, &step.numbers);
            snapshot.steps.push(step);
        }
        snapshot
    }

    fn volumes(&self) -> Vec<Volume> {
        let stripe = Volume {
            id: 0,
            nsid: Some(1),
            name: "stripe".to_owned(),
            kind: "stripe".to_owned(),
            bytes: u64::from(self.members) << 40,
            ..Volume::default()
        };
        let member = |id| Volume {
            id,
            parent: Some(0),
            name: format!("disk{id}"),
            kind: "file".to_owned(),
            path: Some(format!("/dev/nvme{id}n1")),
            bytes: 1 << 40,
            ..Volume::default()
        };
        let log = Volume {
            id: self.members + 1,
            nsid: Some(2),
            name: "log <b>\u{1b}[2J".to_owned(),
            kind: "memory".to_owned(),
            bytes: 1 << 30,
            ..Volume::default()
        };
        [stripe].into_iter().chain((1..=self.members).map(member)).chain([log]).collect()
    }

    fn step(&self, number: u64, random: &mut Random) -> Step {
        let mut numbers = Numbers::default();
        for core in 0..CORES {
            let mut stripe = series(0, core, Operation::Read, SizeClass::Small);
            for member in 1..=self.members {
                let mut at = series(member, core, Operation::Read, SizeClass::Small);
                for _ in 0..RATE / 10 {
                    record(&mut stripe, &mut at, random.latency(), 10);
                }
                if member == self.stalled && self.stall.contains(&number) {
                    record(&mut stripe, &mut at, STALL_NS + random.below(1_000_000), 12);
                }
                numbers.series.push(at);
            }
            numbers.series.push(stripe);
        }
        let mut log = series(self.members + 1, 1, Operation::Write, SizeClass::Large);
        for _ in 0..20 {
            let ns = random.latency() / 8;
            log.total.record(ns, 1);
            log.stages[1].times.record(ns, 1);
        }
        log.bytes = 20 << 20;
        log.max_ns = log.total.max_bound();
        numbers.series.push(log);
        numbers.series.iter_mut().for_each(|series| series.stages.retain(|at| at.times.count() > 0));
        numbers.connections = (0..4).map(|id| self.connection(id, number, &numbers)).collect();
        numbers.cores = (0..CORES).map(core).collect();
        numbers.counters.insert("memory-waits".to_owned(), 3);
        Step { at_unix_ms: START_MS + (number + 1) * 1000, length_ms: 1000, numbers, ..Step::default() }
    }

    fn connection(&self, id: u32, number: u64, numbers: &Numbers) -> Connection {
        let stripe = numbers.series.iter().find(|at| at.volume == 0 && at.core == id % CORES);
        let mut totals = Histogram::new(Resolution::Four);
        for (cell, count) in stripe.expect("the stripe").total.cells() {
            totals.record(Resolution::Eight.middle_of(cell), count / 2);
        }
        let limited = id == 3 && self.stall.contains(&number);
        Connection {
            id: u64::from(id) + 1,
            host: HOSTS[id as usize / 2].to_owned(),
            controller: (id / 2) as u16 + 1,
            queue: (id % 2) as u16 + 1,
            core: id % CORES,
            peer: format!("10.0.0.{}:40{id:03}", 2 + id / 2),
            local: "10.0.0.1:4420".to_owned(),
            stages_ns: vec![(Stage::Device, totals.sum_ns() * 3 / 4), (Stage::Socket, totals.sum_ns() / 4)],
            received_bytes: totals.count() * 72,
            sent_bytes: totals.count() * 4120,
            peer_times: (id == 0).then(|| totals.clone()),
            totals: vec![(SizeClass::Small, totals)],
            in_flight: 16,
            oldest_ms: Some(if limited { 40 } else { 0 }),
            tcp: Some(Tcp {
                busy_us: 800_000,
                rwnd_limited_us: if limited { 600_000 } else { 0 },
                rtt_us: 90,
                ..Tcp::default()
            }),
            ..Connection::default()
        }
    }

    fn slow(&self, number: u64, step: &Step) -> Vec<SlowOperation> {
        let volume = if self.stall.contains(&number) { 0 } else { self.members + 1 };
        let total_ns = if volume == 0 { STALL_NS } else { 900_000 };
        let at_unix_us = step.at_unix_ms * 1000 - 400_000;
        vec![SlowOperation {
            side: Side::Target,
            at_unix_us,
            volume,
            operation: if volume == 0 { Operation::Read } else { Operation::Write },
            bytes: 4096,
            lba: number * 64,
            core: 1,
            connection: 2,
            cid: number as u16,
            depth: 16,
            total_ns,
            stages: vec![(Stage::Device, total_ns - 5_000), (Stage::Socket, 5_000)],
            last_member: (volume == 0).then_some(self.stalled),
        }]
    }
}

fn series(volume: u32, core: u32, operation: Operation, size: SizeClass) -> Series {
    let stage = |stage| StageHistogram { stage, times: Histogram::new(Resolution::Four) };
    let stages = [Stage::Batch, Stage::Device, Stage::Socket].map(stage).to_vec();
    Series { stages, ..SeriesKey { side: Side::Target, volume, core, operation, size }.empty() }
}

/// Records an operation of the stripe that one member does.
fn record(stripe: &mut Series, member: &mut Series, ns: u64, count: u64) {
    let around = 12_000;
    member.total.record(ns, count);
    stripe.total.record(ns + around, count);
    for (stage, ns) in stripe.stages.iter_mut().zip([around / 3, ns, around - around / 3]) {
        stage.times.record(ns, count);
    }
    for series in [stripe, member] {
        series.bytes += 4096 * count;
        series.max_ns = series.max_ns.max(ns);
    }
}

fn core(index: u32) -> Core {
    let waited_ns = if index == 1 { 150_000_000 } else { 0 };
    Core {
        index,
        cpu: Some(index * 2),
        thread: 5000 + index,
        busy_ns: 700_000_000,
        asleep_ns: 200_000_000,
        waited_ns,
        ran_ns: 750_000_000,
        ..Core::default()
    }
}

/// Adds the numbers of a step to those since the start.
fn add(sum: &mut Numbers, step: &Numbers) {
    for series in &step.series {
        match sum.series.iter_mut().find(|at| at.key() == series.key()) {
            Some(at) => at.merge(series),
            None => sum.series.push(series.clone()),
        }
    }
    for connection in &step.connections {
        match sum.connections.iter_mut().find(|at| at.id == connection.id) {
            Some(at) => add_connection(at, connection),
            None => sum.connections.push(connection.clone()),
        }
    }
    for core in &step.cores {
        match sum.cores.iter_mut().find(|at| at.index == core.index) {
            Some(at) => {
                at.busy_ns += core.busy_ns;
                at.asleep_ns += core.asleep_ns;
                at.waited_ns += core.waited_ns;
                at.ran_ns += core.ran_ns;
            }
            None => sum.cores.push(core.clone()),
        }
    }
    for (name, value) in &step.counters {
        *sum.counters.entry(name.clone()).or_default() += value;
    }
}

fn add_connection(sum: &mut Connection, step: &Connection) {
    for ((_, sum), (_, step)) in sum.totals.iter_mut().zip(&step.totals) {
        sum.merge(step);
    }
    for ((_, sum), (_, step)) in sum.stages_ns.iter_mut().zip(&step.stages_ns) {
        *sum += step;
    }
    if let (Some(sum), Some(step)) = (&mut sum.peer_times, &step.peer_times) {
        sum.merge(step);
    }
    sum.received_bytes += step.received_bytes;
    sum.sent_bytes += step.sent_bytes;
    sum.oldest_ms = step.oldest_ms;
    if let (Some(sum), Some(step)) = (&mut sum.tcp, step.tcp) {
        sum.busy_us += step.busy_us;
        sum.rwnd_limited_us += step.rwnd_limited_us;
    }
}

/// Linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Returns a latency around 100 µs with a tail.
    fn latency(&mut self) -> u64 {
        let typical: u64 = (0..4).map(|_| 15_000 + self.below(20_000)).sum();
        let slow = self.below(1000);
        match slow {
            0 => typical * 10,
            1..50 => typical * 3,
            _ => typical,
        }
    }
}
