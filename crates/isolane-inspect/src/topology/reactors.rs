//! Reactors, their cores, and the other users of these.

use isolane_observe::snapshot::Core;

use super::{Node, Reader};
use crate::system::{Cgroup, Interrupts, SMALL, Task, decode_cpu_list, decode_task_stat, show_cpus, tasks};

/// Most tasks and interrupt lines that are listed for one core.
const MAX_LISTED: usize = 16;

/// Describes all reactors.
pub(super) fn describe(reader: &mut Reader<'_>, cores: &[Core]) -> Vec<Node> {
    let tasks = reader.take(tasks(reader.root)).unwrap_or_default();
    let interrupts = reader.take(Interrupts::read(reader.root)).unwrap_or_default();
    let group = reader.take(Cgroup::find(reader.root, &reader.process, "cpu"));
    let own: Vec<u32> = cores.iter().map(|core| core.thread).collect();
    let mut nodes = Vec::new();
    // The threads of a host belong to its application.
    for core in cores.iter().filter(|core| core.thread != 0) {
        let cpu = core.cpu.or_else(|| last_cpu(reader, core));
        let place = if core.cpu.is_some() { "core" } else { "last core (not pinned)" };
        let node = Node::new("reactor", core.index)
            .fact(place, cpu.map(|cpu| cpu.to_string()))
            .fact("thread", core.thread.to_string())
            .fact("siblings", cpu.and_then(|cpu| siblings(reader, cpu)))
            .fact("control group", group.as_ref().map(|group| group.path.clone()));
        let others =
            cpu.map(|cpu| [describe_tasks(&tasks, &own, cpu), describe_interrupts(&interrupts, cpu)]);
        nodes.push(node.with(others.into_iter().flatten().flatten()));
    }
    nodes
}

fn last_cpu(reader: &mut Reader<'_>, core: &Core) -> Option<u32> {
    let path = format!("/proc/{}/task/{}/stat", reader.process, core.thread);
    reader.take(reader.root.parse(&path, SMALL, decode_task_stat)).map(|stat| stat.cpu)
}

/// Returns the other threads of hardware of a core.
fn siblings(reader: &mut Reader<'_>, cpu: u32) -> Option<String> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let mut siblings = reader.take(reader.root.parse(&path, SMALL, decode_cpu_list))?;
    siblings.retain(|sibling| *sibling != cpu);
    Some(if siblings.is_empty() { "none".to_owned() } else { show_cpus(&siblings) })
}

/// Describes the tasks that ran last on a core, those with the most time first.
fn describe_tasks(tasks: &[Task], own: &[u32], cpu: u32) -> Vec<Node> {
    let here = tasks.iter().filter(|task| task.stat.cpu == cpu && !own.contains(&task.stat.tid));
    let mut here: Vec<&Task> = here.filter(|task| task.stat.ticks > 0).collect();
    here.sort_by_key(|task| std::cmp::Reverse(task.stat.ticks));
    here.truncate(MAX_LISTED);
    let node = |task: &Task| {
        Node::new("task", &task.stat.name)
            .fact("thread", task.stat.tid.to_string())
            .fact("process", task.pid.to_string())
            .fact("ticks", task.stat.ticks.to_string())
    };
    here.into_iter().map(node).collect()
}

/// Describes the interrupts that a core has handled, the most frequent first.
fn describe_interrupts(interrupts: &Interrupts, cpu: u32) -> Vec<Node> {
    let Some(column) = interrupts.cpus.iter().position(|at| *at == cpu) else { return Vec::new() };
    let count = |line: usize| interrupts.counts(line).get(column).copied().unwrap_or(0);
    let lines = interrupts.lines.iter().enumerate().map(|(at, line)| (count(at), line));
    let mut lines: Vec<_> = lines.filter(|(count, _)| *count > 0).collect();
    lines.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    lines.truncate(MAX_LISTED);
    let node = |(count, line): (u64, &crate::system::InterruptLine)| {
        Node::new("interrupt", &line.name)
            .fact("count", count.to_string())
            .fact("description", line.description.clone())
    };
    lines.into_iter().map(node).collect()
}
