//! Readings of the system: differences since the last step.
//!
//! Each reading has a [`Throttle`], so that a large machine does not make them expensive.

use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::snapshot::{self as document, Cpu, Numbers, Quota, Snapshot};

use super::disks::Disks;
use super::tasks::Tasks;
use super::throttle::{Missing, Throttle};
use crate::system::{
    Cgroup, CpuTimes, Interrupts, ReadError, Root, SMALL, decode_counter, decode_interrupts,
};

const MAX_SOFTIRQS_BYTES: usize = 1 << 20;
/// State of all readings.
#[derive(Debug)]
pub struct Readings {
    ticks_per_second: u64,
    cpus: BTreeMap<u32, CpuTimes>,
    interrupts: Counts,
    softirqs: Counts,
    interrupts_throttle: Throttle,
    cpus_throttle: Throttle,
    group: Result<Cgroup, ReadError>,
    quota: Option<Quota>,
    tasks: Tasks,
    disks: Disks,
}

/// Counts by line and CPU.
type Counts = BTreeMap<(String, u32), u64>;

impl Readings {
    pub fn new(root: &Root) -> Readings {
        Readings {
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            cpus: BTreeMap::new(),
            interrupts: Counts::new(),
            softirqs: Counts::new(),
            interrupts_throttle: Throttle::default(),
            cpus_throttle: Throttle::default(),
            group: Cgroup::find(root, "self", "cpu"),
            quota: None,
            tasks: Tasks::default(),
            disks: Disks::default(),
        }
    }

    /// Reads everything. `step` has the differences of the program's own numbers.
    pub fn read(&mut self, root: &Root, snapshot: &Snapshot, step: &Numbers) -> document::System {
        let cores = &snapshot.numbers.cores;
        let cpus: BTreeSet<u32> = cores.iter().filter_map(|core| core.cpu).collect();
        let mut system = document::System::default();
        let mut missing = Missing::default();
        system.cpus = self.read_cpus(root, &cpus, &mut missing);
        system.interrupts = self.read_interrupts(root, &cpus, &mut missing);
        system.quota = self.read_quota(root, &mut missing);
        system.tasks = self.tasks.read(root, cores, step, self.ticks_per_second, &mut missing);
        (system.disks, system.users) = self.disks.read(root, snapshot, step, &mut missing);
        system.not_seen = missing.into_list();
        system
    }

    fn read_cpus(&mut self, root: &Root, own: &BTreeSet<u32>, missing: &mut Missing) -> Vec<Cpu> {
        let Some(read) = self.cpus_throttle.run(|| CpuTimes::read(root)) else { return Vec::new() };
        let Some(times) = missing.check("times of the cores", read) else { return Vec::new() };
        let to_ms = |ticks: u64| ticks.saturating_mul(1000) / self.ticks_per_second;
        let mut found = Vec::new();
        for times in times {
            let is_own = own.is_empty() || own.contains(&times.cpu);
            if let Some(before) = self.cpus.get(&times.cpu).filter(|_| is_own) {
                let since = times.since(before);
                found.push(Cpu {
                    cpu: times.cpu,
                    steal_ms: to_ms(since.steal),
                    irq_ms: to_ms(since.irq),
                    softirq_ms: to_ms(since.softirq),
                    idle_ms: to_ms(since.idle),
                });
            }
            self.cpus.insert(times.cpu, times);
        }
        found
    }

    fn read_interrupts(
        &mut self,
        root: &Root,
        own: &BTreeSet<u32>,
        missing: &mut Missing,
    ) -> Vec<document::Interrupts> {
        let read = self.interrupts_throttle.run(|| {
            (Interrupts::read(root), root.parse("/proc/softirqs", MAX_SOFTIRQS_BYTES, decode_interrupts))
        });
        let Some((interrupts, softirqs)) = read else { return Vec::new() };
        let mut found = Vec::new();
        if let Some(read) = missing.check("interrupts", interrupts) {
            found.extend(differences(&mut self.interrupts, &read, own));
        }
        if let Some(read) = missing.check("soft interrupts", softirqs) {
            found.extend(differences(&mut self.softirqs, &read, own));
        }
        found
    }

    fn read_quota(&mut self, root: &Root, missing: &mut Missing) -> Quota {
        let group = match &self.group {
            Ok(group) => group,
            Err(error) => {
                missing.add("limit of the control group", error);
                return Quota::default();
            }
        };
        let levels = group.levels().into_iter().filter_map(|path| read_throttling(root, path, group.version));
        let now = levels.fold(Quota::default(), |sum, level| Quota {
            throttled: sum.throttled + level.throttled,
            throttled_ms: sum.throttled_ms + level.throttled_ms,
        });
        let before = self.quota.replace(now).unwrap_or(now);
        Quota {
            throttled: now.throttled.saturating_sub(before.throttled),
            throttled_ms: now.throttled_ms.saturating_sub(before.throttled_ms),
        }
    }
}

/// Returns the throttling of one level. The root and groups without a limit have none.
fn read_throttling(root: &Root, path: &str, version: u8) -> Option<Quota> {
    let text = root.read(&format!("{path}/cpu.stat"), SMALL).ok()?;
    let throttled = decode_counter(&text, "nr_throttled").ok()?;
    let throttled_ms = match version {
        1 => decode_counter(&text, "throttled_time").ok()? / 1_000_000,
        _ => decode_counter(&text, "throttled_usec").ok()? / 1000,
    };
    Some(Quota { throttled, throttled_ms })
}

/// Returns the counts that grew: of numbered lines on all CPUs, of others on the program's CPUs.
fn differences(before: &mut Counts, read: &Interrupts, own: &BTreeSet<u32>) -> Vec<document::Interrupts> {
    let mut found = Vec::new();
    let mut now = Counts::new();
    for (index, line) in read.lines.iter().enumerate() {
        let is_number = line.name.bytes().all(|byte| byte.is_ascii_digit());
        for (cpu, count) in read.cpus.iter().zip(read.counts(index)) {
            if *count == 0 {
                continue;
            }
            let key = (line.name.clone(), *cpu);
            // A line that had no interrupts is missing; in the first reading, all are.
            let earlier = before.get(&key).copied().unwrap_or(if before.is_empty() { *count } else { 0 });
            if *count > earlier && (is_number || own.contains(cpu)) {
                let line = line.name.clone();
                found.push(document::Interrupts { line, cpu: *cpu, count: count - earlier });
            }
            now.insert(key, *count);
        }
    }
    *before = now;
    found
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Core;

    use super::*;
    use crate::testing::Tree;

    const STAT: &str = "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 1000 0 10 20 30\ncpu1 0 0 0 0 0 0 0 0\n";

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.numbers.cores = vec![Core { cpu: Some(0), ..Core::default() }];
        snapshot
    }

    fn tree() -> Tree {
        Tree::new(&[
            ("/proc/stat", STAT),
            ("/proc/interrupts", "  CPU0 CPU1\n 9: 5 7 chip acpi\nLOC: 100 200 Local timer\n"),
            ("/proc/softirqs", "  CPU0 CPU1\nNET_RX: 3 4\n"),
            ("/proc/self/cgroup", "0::/a\n"),
            ("/proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/a/cpu.stat", "nr_throttled 2\nthrottled_usec 5000\n"),
            ("/sys/fs/cgroup/cpu.stat", "usage_usec 1\n"),
        ])
    }

    /// Returns the readings of two steps, with a change in between.
    fn second(tree: &Tree, change: &[(&str, &str)]) -> document::System {
        let root = tree.root();
        let mut readings = Readings::new(&root);
        let first = readings.read(&root, &snapshot(), &Numbers::default());
        assert!(first.cpus.is_empty() && first.interrupts.is_empty(), "{first:?}");
        change.iter().for_each(|(path, text)| tree.write_bytes(path, text.as_bytes()));
        readings.interrupts_throttle = Throttle::default();
        readings.cpus_throttle = Throttle::default();
        readings.read(&root, &snapshot(), &Numbers::default())
    }

    #[test]
    fn steps_have_differences_of_the_own_cpus() {
        let system = second(
            &tree(),
            &[
                ("/proc/stat", "cpu0 0 0 0 1010 0 11 22 33\ncpu1 0 0 0 9 9 9 9 9\n"),
                ("/proc/interrupts", "  CPU0 CPU1\n 9: 5 9 chip acpi\n 10: 0 4 new\nLOC: 150 300 x\n"),
                ("/proc/softirqs", "  CPU0 CPU1\nNET_RX: 5 9\n"),
                ("/sys/fs/cgroup/a/cpu.stat", "nr_throttled 5\nthrottled_usec 9000\n"),
            ],
        );
        let ms = 1000 / rustix::param::clock_ticks_per_second();
        let cpu = Cpu { cpu: 0, steal_ms: 3 * ms, irq_ms: ms, softirq_ms: 2 * ms, idle_ms: 10 * ms };
        assert_eq!(system.cpus, [cpu]);
        let lines: Vec<_> = system.interrupts.iter().map(|it| (it.line.as_str(), it.cpu, it.count)).collect();
        assert_eq!(lines, [("9", 1, 2), ("10", 1, 4), ("LOC", 0, 50), ("NET_RX", 0, 2)]);
        assert_eq!(system.quota, Quota { throttled: 3, throttled_ms: 4 });
        assert_eq!(system.not_seen, []);
    }

    #[test]
    fn new_cpu_has_no_counts_since_the_boot() {
        let (tree, mut snapshot) = (tree(), snapshot());
        let (root, mut readings) = (tree.root(), Readings::new(&tree.root()));
        snapshot.numbers.cores.clear();
        readings.read(&root, &snapshot, &Numbers::default());
        snapshot.numbers.cores = vec![Core { cpu: Some(1), ..Core::default() }];
        tree.write_bytes("/proc/interrupts", b"  CPU0 CPU1\n 9: 5 7 chip acpi\nLOC: 150 203 Local timer\n");
        readings.interrupts_throttle = Throttle::default();
        let system = readings.read(&root, &snapshot, &Numbers::default());
        let lines: Vec<_> = system.interrupts.iter().map(|it| (it.line.as_str(), it.cpu, it.count)).collect();
        assert_eq!(lines, [("LOC", 1, 3)]);
    }

    #[test]
    fn names_readings_that_are_missing() {
        let tree = Tree::new(&[("/proc/stat", "x"), ("/proc/interrupts", "")]);
        let mut readings = Readings::new(&tree.root());
        let system = readings.read(&tree.root(), &snapshot(), &Numbers::default());
        let what: Vec<&str> = system.not_seen.iter().map(|(what, _)| &**what).collect();
        assert_eq!(
            what,
            ["interrupts", "limit of the control group", "soft interrupts", "times of the cores"]
        );
        assert!(system.not_seen[0].1.contains("/proc/interrupts"), "{:?}", system.not_seen);
    }
}
