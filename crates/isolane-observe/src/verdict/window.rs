//! The numbers and readings of the window that a verdict covers: the last steps, added up.

use std::collections::BTreeMap;

use crate::histogram::{Histogram, Resolution, TAIL_ROWS};
use crate::snapshot::{
    Connection, Core, Cpu, Disk, DiskUser, Interrupts, Numbers, Series, Snapshot, Step, System, Task, Tcp,
    merge_times,
};
use crate::stage::Stage;

/// Most steps that are read.
const MAX_STEPS: usize = 4096;

/// Sums of the window.
#[derive(Debug, Default)]
pub(super) struct Window<'a> {
    /// Length in seconds.
    pub seconds: f64,
    pub series: Vec<Series>,
    pub connections: Vec<Connection>,
    pub cores: Vec<Core>,
    pub counters: BTreeMap<String, u64>,
    pub system: System,
    /// All sound steps, the oldest first, also those before the window.
    pub steps: Vec<&'a Step>,
    /// Position of the first step of the window.
    pub first: usize,
    /// Numbers that contradict their description, and are left out.
    pub malformed: usize,
}

impl<'a> Window<'a> {
    /// Returns the last `seconds` of a snapshot. Without steps, it covers the time since the start of the program.
    pub(super) fn new(snapshot: &'a Snapshot, seconds: f64) -> Window<'a> {
        let all = &snapshot.steps[snapshot.steps.len().saturating_sub(MAX_STEPS)..];
        let steps: Vec<&Step> = all.iter().filter(|step| step.length_ms > 0).collect();
        let end_ms = steps.iter().map(|step| step.at_unix_ms).max().unwrap_or(0);
        let start_ms = end_ms.saturating_sub((seconds * 1000.0) as u64);
        let first = steps.iter().position(|step| step.at_unix_ms > start_ms).unwrap_or(0);
        let mut sums = Sums::default();
        let mut length_ms: u64 = 0;
        if steps.is_empty() {
            length_ms = snapshot.program.uptime_ms;
            sums.add_numbers(&snapshot.numbers);
        }
        for step in &steps[first..] {
            length_ms = length_ms.saturating_add(step.length_ms);
            sums.add_numbers(&step.numbers);
            sums.add_system(&step.system);
        }
        sums.into_window(steps, first, length_ms.max(1) as f64 / 1000.0)
    }
}

/// Returns `true` if all parts of the numbers agree with their description.
pub(super) fn is_sound(series: &Series) -> bool {
    let stages = series.side.stages();
    series.total.resolution() == Resolution::Eight
        && series.stages.len() <= stages.len()
        && series
            .stages
            .iter()
            .all(|at| at.times.resolution() == Resolution::Four && stages.contains(&at.stage))
        && series.unseen.as_ref().is_none_or(|unseen| unseen.resolution() == Resolution::Four)
        && series.tail.len() <= TAIL_ROWS
        && series.tail.iter().all(|row| usize::from(row.row) < TAIL_ROWS && row.sums_ns.len() <= stages.len())
}

#[derive(Default)]
struct Sums {
    series: BTreeMap<crate::snapshot::SeriesKey, Series>,
    connections: BTreeMap<u64, Connection>,
    cores: BTreeMap<u32, Core>,
    counters: BTreeMap<String, u64>,
    cpus: BTreeMap<u32, Cpu>,
    disks: BTreeMap<String, Disk>,
    tasks: BTreeMap<(u32, u32), Task>,
    users: BTreeMap<u32, DiskUser>,
    interrupts: BTreeMap<(String, u32), Interrupts>,
    throttled: (u64, u64),
    not_seen: BTreeMap<String, String>,
    malformed: usize,
}

impl Sums {
    fn add_numbers(&mut self, numbers: &Numbers) {
        for series in &numbers.series {
            if !is_sound(series) {
                self.malformed += 1;
                continue;
            }
            self.series
                .entry(series.key())
                .and_modify(|sum| sum.merge(series))
                .or_insert_with(|| series.clone());
        }
        for connection in &numbers.connections {
            match self.connections.get_mut(&connection.id) {
                Some(sum) => add_connection(sum, connection),
                None => drop(self.connections.insert(connection.id, sound_connection(connection))),
            }
        }
        for core in &numbers.cores {
            match self.cores.get_mut(&core.index) {
                Some(sum) => add_core(sum, core),
                None => drop(self.cores.insert(core.index, sound_core(core))),
            }
        }
        for (name, value) in &numbers.counters {
            grow(self.counters.entry(name.clone()).or_default(), *value);
        }
    }

    fn add_system(&mut self, system: &System) {
        for cpu in &system.cpus {
            let sum = self.cpus.entry(cpu.cpu).or_insert(Cpu { cpu: cpu.cpu, ..Cpu::default() });
            grow(&mut sum.steal_ms, cpu.steal_ms);
            grow(&mut sum.irq_ms, cpu.irq_ms);
            grow(&mut sum.softirq_ms, cpu.softirq_ms);
            grow(&mut sum.idle_ms, cpu.idle_ms);
        }
        for disk in &system.disks {
            match self.disks.get_mut(&disk.name) {
                Some(sum) => add_disk(sum, disk),
                None => drop(self.disks.insert(disk.name.clone(), disk.clone())),
            }
        }
        for task in &system.tasks {
            let sum = self.tasks.entry((task.pid, task.cpu));
            sum.and_modify(|sum| grow(&mut sum.ran_ms, task.ran_ms)).or_insert_with(|| task.clone());
        }
        for user in &system.users {
            match self.users.get_mut(&user.pid) {
                Some(sum) => {
                    grow(&mut sum.read_bytes, user.read_bytes);
                    grow(&mut sum.written_bytes, user.written_bytes);
                }
                None => drop(self.users.insert(user.pid, user.clone())),
            }
        }
        for line in &system.interrupts {
            let sum = self.interrupts.entry((line.line.clone(), line.cpu));
            sum.and_modify(|sum| grow(&mut sum.count, line.count)).or_insert_with(|| line.clone());
        }
        grow(&mut self.throttled.0, system.quota.throttled);
        grow(&mut self.throttled.1, system.quota.throttled_ms);
        self.not_seen.extend(system.not_seen.iter().cloned());
    }

    fn into_window<'a>(self, steps: Vec<&'a Step>, first: usize, seconds: f64) -> Window<'a> {
        let mut system = System {
            interrupts: self.interrupts.into_values().collect(),
            cpus: self.cpus.into_values().collect(),
            disks: self.disks.into_values().collect(),
            tasks: self.tasks.into_values().collect(),
            users: self.users.into_values().collect(),
            not_seen: self.not_seen.into_iter().collect(),
            ..System::default()
        };
        (system.quota.throttled, system.quota.throttled_ms) = self.throttled;
        Window {
            seconds,
            series: self.series.into_values().collect(),
            connections: self.connections.into_values().collect(),
            cores: self.cores.into_values().collect(),
            counters: self.counters,
            system,
            steps,
            first,
            malformed: self.malformed,
        }
    }
}

fn grow(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

fn sound_connection(connection: &Connection) -> Connection {
    let mut copy = connection.clone();
    copy.totals.retain(|(_, times)| times.resolution() == Resolution::Four);
    copy.totals.truncate(3);
    copy.stages_ns.truncate(crate::stage::MAX_STAGES);
    copy.peer_times.take_if(|times| times.resolution() != Resolution::Four);
    copy
}

fn add_connection(sum: &mut Connection, more: &Connection) {
    let sound = sound_connection(more);
    merge_times(&mut sum.peer_times, sound.peer_times.as_ref());
    for (size, times) in &sound.totals {
        match sum.totals.iter_mut().find(|(mine, _)| mine == size) {
            Some((_, mine)) => mine.merge(times),
            None => sum.totals.push((*size, times.clone())),
        }
    }
    for (stage, ns) in more.stages_ns.iter().take(crate::stage::MAX_STAGES) {
        add_stage(&mut sum.stages_ns, *stage, *ns);
    }
    grow(&mut sum.received_bytes, more.received_bytes);
    grow(&mut sum.sent_bytes, more.sent_bytes);
    (sum.in_flight, sum.oldest_ms, sum.core) = (more.in_flight, more.oldest_ms, more.core);
    sum.tcp = match (sum.tcp, more.tcp) {
        (Some(before), Some(later)) => Some(add_tcp(before, later)),
        (before, later) => later.or(before),
    };
}

fn add_stage(stages: &mut Vec<(Stage, u64)>, stage: Stage, ns: u64) {
    match stages.iter_mut().find(|(mine, _)| *mine == stage) {
        Some((_, sum)) => grow(sum, ns),
        None => stages.push((stage, ns)),
    }
}

fn add_tcp(before: Tcp, later: Tcp) -> Tcp {
    Tcp {
        busy_us: before.busy_us.saturating_add(later.busy_us),
        rwnd_limited_us: before.rwnd_limited_us.saturating_add(later.rwnd_limited_us),
        sndbuf_limited_us: before.sndbuf_limited_us.saturating_add(later.sndbuf_limited_us),
        retransmits: before.retransmits.saturating_add(later.retransmits),
        segments: before.segments.saturating_add(later.segments),
        ..later
    }
}

fn sound_core(core: &Core) -> Core {
    let turns = core.turns.clone().filter(|turns| turns.resolution() == Resolution::Four);
    Core { turns, ..*core }
}

fn add_core(sum: &mut Core, more: &Core) {
    grow(&mut sum.busy_ns, more.busy_ns);
    grow(&mut sum.asleep_ns, more.asleep_ns);
    grow(&mut sum.late_ns, more.late_ns);
    grow(&mut sum.waited_ns, more.waited_ns);
    grow(&mut sum.ran_ns, more.ran_ns);
    (sum.cpu, sum.thread) = (more.cpu, more.thread);
    if let Some(turns) = sound_core(more).turns {
        sum.turns.get_or_insert_with(|| Histogram::new(Resolution::Four)).merge(&turns);
    }
}

fn add_disk(sum: &mut Disk, more: &Disk) {
    grow(&mut sum.reads, more.reads);
    grow(&mut sum.writes, more.writes);
    grow(&mut sum.read_bytes, more.read_bytes);
    grow(&mut sum.written_bytes, more.written_bytes);
    grow(&mut sum.time_ms, more.time_ms);
    grow(&mut sum.own, more.own);
    grow(&mut sum.own_bytes, more.own_bytes);
}
