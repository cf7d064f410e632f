//! Other tasks on the program's CPUs, in seconds in which a core waited.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use isolane_observe::snapshot::{self as document, Core, Numbers};

use super::throttle::{Missing, PROCESSES_SHARE, Throttle};
use crate::system::{Root, Task, tasks};

/// Time of a second for which a core may wait before tasks are listed, in nanoseconds: 0.1 %.
const MIN_WAITED_NS: u64 = 1_000_000;
/// Longest time between two readings whose difference is reported.
const MAX_AGE: Duration = Duration::from_secs(10);
const MAX_TASKS: usize = 16;

/// Times of all tasks, as last read.
#[derive(Debug)]
pub struct Tasks {
    ticks: BTreeMap<u32, u64>,
    read_at: Option<Instant>,
    throttle: Throttle,
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks { ticks: BTreeMap::new(), read_at: None, throttle: Throttle::with_share(PROCESSES_SHARE) }
    }
}

impl Tasks {
    /// Returns the tasks that ran on the program's CPUs since the last reading, the longest first.
    pub fn read(
        &mut self,
        root: &Root,
        cores: &[Core],
        step: &Numbers,
        ticks_per_second: u64,
        missing: &mut Missing,
    ) -> Vec<document::Task> {
        if !step.cores.iter().any(|core| core.waited_ns > MIN_WAITED_NS) {
            return Vec::new();
        }
        let Some(read) = self.throttle.run(|| tasks(root)) else { return Vec::new() };
        let Some(read) = missing.check("tasks of other programs", read) else { return Vec::new() };
        let is_recent = self.read_at.replace(Instant::now()).is_some_and(|at| at.elapsed() < MAX_AGE);
        let ticks = read.iter().map(|task| (task.stat.tid, task.stat.ticks)).collect();
        let before = std::mem::replace(&mut self.ticks, ticks);
        if !is_recent {
            return Vec::new();
        }
        let own: BTreeSet<u32> = cores.iter().map(|core| core.thread).collect();
        let last =
            |core: &Core| read.iter().find(|task| task.stat.tid == core.thread).map(|task| task.stat.cpu);
        let cpus: BTreeSet<u32> = cores.iter().filter_map(|core| core.cpu.or_else(|| last(core))).collect();
        let others =
            read.iter().filter(|task| cpus.contains(&task.stat.cpu) && !own.contains(&task.stat.tid));
        let ran = |task: &Task| {
            let earlier = before.get(&task.stat.tid).copied().unwrap_or(0);
            task.stat.ticks.saturating_sub(earlier).saturating_mul(1000) / ticks_per_second
        };
        let others = others.map(|task| document::Task {
            pid: task.pid,
            name: task.stat.name.clone(),
            cpu: task.stat.cpu,
            ran_ms: ran(task),
        });
        let mut found: Vec<_> = others.filter(|task| task.ran_ms > 0).collect();
        found.sort_by_key(|task| std::cmp::Reverse(task.ran_ms));
        found.truncate(MAX_TASKS);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn stat(tid: u32, ticks: u64, cpu: u32) -> String {
        format!(
            "{tid} (spin) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 0 17 {cpu} 0 0 0\n"
        )
    }

    fn write(tree: &Tree, tasks: &[(u32, u64, u32)]) {
        for (tid, ticks, cpu) in tasks {
            tree.write_bytes(&format!("/proc/{tid}/task/{tid}/stat"), stat(*tid, *ticks, *cpu).as_bytes());
        }
    }

    fn read(tasks: &mut Tasks, root: &Root, waited_ns: u64) -> Vec<document::Task> {
        let core = Core { cpu: Some(3), thread: 7, waited_ns, ..Core::default() };
        let step = Numbers { cores: vec![core.clone()], ..Numbers::default() };
        tasks.throttle = Throttle::default();
        tasks.read(root, &[core], &step, 100, &mut Missing::default())
    }

    #[test]
    fn lists_tasks_while_a_core_waits() {
        let tree = Tree::new(&[]);
        write(&tree, &[(7, 0, 3), (8, 0, 3), (9, 0, 2), (10, 5, 3)]);
        let (root, mut tasks) = (tree.root(), Tasks::default());
        assert_eq!(read(&mut tasks, &root, 2_000_000), [], "nothing to compare with");
        write(&tree, &[(7, 50, 3), (8, 50, 3), (9, 50, 2), (11, 60, 3)]);
        assert_eq!(read(&mut tasks, &root, 0), [], "no core waited");
        let names: Vec<_> = read(&mut tasks, &root, 2_000_000).iter().map(|it| (it.pid, it.ran_ms)).collect();
        assert_eq!(names, [(11, 600), (8, 500)]);
    }
}
