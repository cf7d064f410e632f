//! The numbers that a simulated target records, and the readings of its machine.

use std::collections::BTreeMap;

use isolane_observe::cells::SeriesCells;
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{
    Connection, Core, Cpu, Device, Disk, DiskUser, Numbers, Program, SeriesKey, SlowOperation, Snapshot,
    Step, StuckTurn, System, Task, Tcp, VERSION, Volume,
};
use isolane_observe::stage::{Side, SizeClass, Stage};

use super::faults::{Active, Fault, What};
use super::{Io, World};

/// Time of the first second, in milliseconds since 1970.
const START_MS: u64 = 1_795_788_000_000;
/// Time before the first second, in which the target was healthy, in milliseconds.
const UPTIME_MS: u64 = 600_000;

pub struct Recorder {
    world: World,
    cells: BTreeMap<SeriesKey, SeriesCells>,
    connections: Vec<Connection>,
    cores: Vec<Core>,
    counters: BTreeMap<String, u64>,
    previous: Numbers,
    system: System,
    snapshot: Snapshot,
}

impl Recorder {
    pub fn new(world: &World) -> Recorder {
        let connection = |host: u64| Connection {
            id: host + 1,
            host: format!("nqn.2014-08.org.example:host{host}"),
            core: (host % u64::from(world.cores)) as u32,
            peer: format!("10.0.0.{host}:40000"),
            tcp: Some(Tcp { rtt_us: 80, ..Tcp::default() }),
            ..Connection::default()
        };
        let core = |index: u32| Core {
            index,
            cpu: Some(index),
            turns: Some(Histogram::new(Resolution::Four)),
            ..Core::default()
        };
        Recorder {
            world: world.clone(),
            cells: BTreeMap::new(),
            connections: (0..world.hosts).map(connection).collect(),
            cores: (0..world.cores).map(core).collect(),
            counters: BTreeMap::new(),
            previous: Numbers::default(),
            system: System::default(),
            snapshot: Snapshot {
                version: VERSION,
                program: Program { name: "serve".into(), pid: 100, ..Program::default() },
                volumes: (0..world.volumes).map(volume).collect(),
                devices: (0..world.volumes).map(device).collect(),
                ..Snapshot::default()
            },
        }
    }

    pub fn record_second(&mut self, second: u64, ios: &[Io]) {
        for io in ios {
            let key = SeriesKey {
                side: Side::Target,
                volume: io.volume,
                core: io.core,
                operation: io.operation,
                size: io.size,
            };
            let cells = self.cells.entry(key).or_default();
            cells.record(&io.times, 1);
            let bytes = if io.size == SizeClass::Large { 1 << 20 } else { 4096 };
            cells.add_bytes(bytes);
            self.record_connection(io, bytes);
        }
        for core in &mut self.cores {
            core.ran_ns += 200_000_000;
            core.waited_ns += 50_000;
            core.turns.as_mut().expect("turns").record(40_000, 5_000);
        }
        let mut worst: Vec<&Io> = ios.iter().collect();
        worst.sort_by_key(|io| std::cmp::Reverse(io.total_ns()));
        self.snapshot.slow.extend(worst.iter().take(8).map(|io| slow(second, io)));
        self.system.disks = (0..self.world.volumes)
            .map(|volume| {
                let own = ios.iter().filter(|io| io.volume == volume).count() as u64;
                let bytes = own * 4096;
                Disk {
                    name: disk(volume),
                    reads: own,
                    read_bytes: bytes,
                    own,
                    own_bytes: bytes,
                    ..Disk::default()
                }
            })
            .collect();
    }

    fn record_connection(&mut self, io: &Io, bytes: u64) {
        let connection = &mut self.connections[io.host as usize];
        match connection.totals.iter_mut().find(|(size, _)| *size == io.size) {
            Some((_, times)) => times.record(io.total_ns(), 1),
            None => {
                let mut times = Histogram::new(Resolution::Four);
                times.record(io.total_ns(), 1);
                connection.totals.push((io.size, times));
            }
        }
        for (stage, ns) in Side::Target.stages().iter().zip(io.times) {
            match connection.stages_ns.iter_mut().find(|(at, _)| at == stage) {
                Some((_, sum)) => *sum += ns,
                None => connection.stages_ns.push((*stage, ns)),
            }
        }
        connection.received_bytes += bytes;
        connection.tcp.as_mut().expect("TCP").segments += 2;
    }

    pub fn record_fault(&mut self, fault: &Fault, active: &Active) {
        let pause_ns: u64 = active.pauses.iter().map(|(start, end)| end - start).sum();
        match fault.what {
            What::Process { core } => {
                self.pause(core, active);
                self.cores[core as usize].waited_ns += pause_ns;
                let ran_ms = pause_ns / 1_000_000;
                self.system.tasks.push(Task { pid: 4242, name: "spinner".into(), cpu: core, ran_ms });
            }
            What::Steal { core } => {
                self.pause(core, active);
                self.system.cpus.push(Cpu { cpu: core, steal_ms: pause_ns / 1_000_000, ..Cpu::default() });
            }
            What::Quota => {
                (0..self.world.cores).for_each(|core| {
                    self.pause(core, active);
                    self.cores[core as usize].waited_ns += pause_ns;
                });
                self.system.quota.throttled += active.pauses.len() as u64;
                self.system.quota.throttled_ms += pause_ns / 1_000_000;
            }
            What::StuckTurns { core } => {
                self.pause(core, active);
                let second_ms = START_MS + self.steps() * 1000;
                self.snapshot.stuck.extend(active.pauses.iter().map(|(start, end)| StuckTurn {
                    at_unix_us: second_ms * 1000 + end / 1000,
                    core,
                    lasted_ns: end - start,
                    phase: "volume".into(),
                    state: "D".into(),
                    call: "fdatasync".into(),
                    ..StuckTurn::default()
                }));
            }
            What::Memory => self.count("memory-waits", 40),
            What::Qos { .. } => self.count("qos-waits", 40),
            What::Conflict { .. } => self.count("range-waits", 20),
            What::FileThreads => self.count("file-thread-waits", 60),
            What::DiskUser { volume } => self.use_disk(volume),
            What::PausedHost { host } => self.tcp(host, |tcp| tcp.rwnd_limited_us += 200_000),
            What::LossyHost { host } => self.tcp(host, |tcp| tcp.retransmits += 15),
            _ => {}
        }
    }

    fn steps(&self) -> u64 {
        self.snapshot.steps.len() as u64
    }

    fn pause(&mut self, core: u32, active: &Active) {
        let turns = self.cores[core as usize].turns.as_mut().expect("turns");
        active.pauses.iter().for_each(|(start, end)| turns.record(end - start, 1));
    }

    fn count(&mut self, name: &str, count: u64) {
        *self.counters.entry(name.into()).or_default() += count;
    }

    fn tcp(&mut self, host: u64, change: impl FnOnce(&mut Tcp)) {
        change(self.connections[host as usize].tcp.as_mut().expect("TCP"));
    }

    fn use_disk(&mut self, volume: u32) {
        let disk = &mut self.system.disks[volume as usize];
        disk.writes += 400;
        disk.written_bytes += 400 << 20;
        let written_bytes = 400 << 20;
        self.system.users.push(DiskUser { pid: 777, name: "dd".into(), read_bytes: 0, written_bytes });
    }

    pub fn end_second(&mut self, second: u64) {
        let numbers = Numbers {
            series: self.cells.iter().filter_map(|(key, cells)| cells.copy(*key)).collect(),
            connections: self.connections.clone(),
            cores: self.cores.clone(),
            counters: self.counters.clone(),
        };
        self.snapshot.steps.push(Step {
            at_unix_ms: START_MS + (second + 1) * 1000,
            length_ms: 1000,
            numbers: numbers.since(&self.previous),
            system: std::mem::take(&mut self.system),
        });
        self.previous = numbers;
    }

    /// Returns the snapshot. Its target was as in the first seconds for a long time before.
    pub fn finish(mut self) -> Snapshot {
        let recorded_ms = self.steps() * 1000;
        let mut numbers = self.previous;
        for first in self.snapshot.steps.iter().take(3).flat_map(|step| &step.numbers.series) {
            let sum = numbers.series.iter_mut().find(|series| series.key() == first.key()).expect("series");
            (0..UPTIME_MS / 3_000).for_each(|_| sum.merge(first));
        }
        self.snapshot.numbers = numbers;
        self.snapshot.program.uptime_ms = UPTIME_MS + recorded_ms;
        self.snapshot.at_unix_ms = START_MS + recorded_ms;
        self.snapshot
    }
}

fn disk(volume: u32) -> String {
    format!("nvme{volume}n1")
}

fn volume(id: u32) -> Volume {
    Volume {
        id,
        nsid: Some(id + 1),
        name: format!("disk{id}"),
        kind: "device".into(),
        path: Some(format!("/dev/{}", disk(id))),
        device: Some(disk(id)),
        ..Volume::default()
    }
}

fn device(id: u32) -> Device {
    Device { name: disk(id), model: "EXAMPLE 4T".into(), resync: "idle".into(), ..Device::default() }
}

fn slow(second: u64, io: &Io) -> SlowOperation {
    let stages = Side::Target.stages().iter().copied().zip(io.times).filter(|(_, ns)| *ns > 0);
    SlowOperation {
        side: Side::Target,
        at_unix_us: (START_MS + second * 1000) * 1000 + io.at_ns / 1000,
        volume: io.volume,
        operation: io.operation,
        bytes: 4096,
        lba: io.lba,
        core: io.core,
        connection: io.host + 1,
        cid: 0,
        depth: 4,
        total_ns: io.total_ns(),
        stages: stages.collect::<Vec<(Stage, u64)>>(),
        last_member: None,
    }
}
