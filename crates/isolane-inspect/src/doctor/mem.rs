//! Checks of memory.

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::{Survey, quoted};
use crate::system::{
    Cgroup, ReadError, Reason, SMALL, decode_counter, decode_cpu_list, decode_number, decode_pressure,
    decode_status_field, show_cpus,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "mem.huge",
        severity: Severity::Warning,
        reads: "/sys/kernel/mm/transparent_hugepage: enabled, defrag",
        good: "enabled: madvise or always; defrag: not always",
        reason: "pools are on huge pages where they are enabled; with defrag, a fault waits for compaction",
        is_sampled: false,
        run: huge,
    },
    Check {
        id: "mem.swap",
        severity: Severity::Error,
        reads: "/proc/PID/status: VmSwap of a running target",
        good: "0 kB",
        reason: "I/O waits until swapped pages are read from a disk",
        is_sampled: false,
        run: swap,
    },
    Check {
        id: "mem.limit",
        severity: Severity::Error,
        reads: "cgroup v2 memory.events, or v1 memory.failcnt; /proc/pressure/memory, twice",
        good: "no events high, max, or oom, and a pressure of 0",
        reason: "at its limit, a group waits while the kernel reclaims its memory",
        is_sampled: true,
        run: limit,
    },
    Check {
        id: "mem.node",
        severity: Severity::Warning,
        reads: "/sys/devices/system/node/node*/cpulist, numa_node of drives and network cards",
        good: "cores, drives, and network cards on one node",
        reason: "data that crosses nodes costs latency and bandwidth",
        is_sampled: false,
        run: node,
    },
    Check {
        id: "mem.balancing",
        severity: Severity::Information,
        reads: "/proc/sys/kernel/numa_balancing",
        good: "0 on several nodes",
        reason: "the kernel unmaps pages to find out who uses them, and each next access faults",
        is_sampled: false,
        run: balancing,
    },
];

fn huge(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let dir = "/sys/kernel/mm/transparent_hugepage";
    let enabled = context.chosen(&format!("{dir}/enabled"))?;
    let is_good = ["madvise", "always"].contains(&&*enabled);
    survey.judge(is_good, format!("enabled: {enabled}"), format!("echo madvise > {dir}/enabled"));
    let defrag = context.chosen(&format!("{dir}/defrag"))?;
    survey.judge(defrag != "always", format!("defrag: {defrag}"), format!("echo madvise > {dir}/defrag"));
    Ok(())
}

fn swap(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let Some(pid) = context.pid()? else {
        survey.absent("no target given");
        return Ok(());
    };
    let path = format!("/proc/{pid}/status");
    let swapped = context.root.parse(&path, SMALL, |text| {
        let value = decode_status_field(text, "VmSwap")?;
        decode_number(value.strip_suffix(" kB").unwrap_or(value))
    })?;
    let remedy = "systemctl set-property isolane.service MemorySwapMax=0";
    survey.judge(swapped == 0, format!("{swapped} kB of process {pid}"), remedy);
    Ok(())
}

fn limit(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let group = Cgroup::find(&context.root, &context.process()?, "memory")?;
    let (file, names) = if group.version == 1 {
        ("memory.failcnt", &[""][..])
    } else {
        ("memory.events", &["high", "max", "oom"][..])
    };
    for level in group.levels() {
        let path = format!("{level}/{file}");
        for name in names {
            let count =
                |text: &str| if name.is_empty() { decode_number(text) } else { decode_counter(text, name) };
            let count = match context.root.parse(&path, SMALL, count) {
                // The root of the hierarchy has no file.
                Err(error) if error.reason == Reason::Missing => break,
                count => context.rise(&format!("{path} {name}"), count?),
            };
            let value = format!("{path} {name}: {count} {}", context.period());
            survey.judge(count == 0, value.replace(" :", ":"), raise_limit(level, group.version));
        }
    }
    if survey.is_empty() {
        survey.unseen(format!("no events of {} or a group above it", group.path));
    }
    let pressure = context.root.parse("/proc/pressure/memory", SMALL, decode_pressure)?;
    let share = pressure.full_avg10.unwrap_or(pressure.some_avg10);
    survey.judge(share == 0.0, format!("pressure {share} %"), "# add memory, or stop other programs");
    Ok(())
}

fn raise_limit(level: &str, version: u8) -> String {
    let unit = level.rsplit('/').next().unwrap_or_default();
    if [".service", ".slice", ".scope"].iter().any(|ending| unit.ends_with(ending)) {
        return format!("systemctl set-property {} MemoryHigh=infinity MemoryMax=infinity", quoted(unit));
    }
    let (value, file) = if version == 1 { ("-1", "memory.limit_in_bytes") } else { ("max", "memory.max") };
    format!("echo {value} > {}", quoted(&format!("{level}/{file}")))
}

fn node(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let nodes = nodes(context)?;
    let cores = context.cores()?;
    let used: Vec<&Node> =
        nodes.iter().filter(|node| node.cpus.iter().any(|cpu| cores.contains(cpu))).collect();
    let show = |node: &&Node| format!("node {}: cores {}", node.number, show_cpus(&node.cpus));
    let [used] = *used else {
        let value = used.iter().map(show).collect::<Vec<_>>().join("; ");
        survey.judge(
            used.is_empty(),
            format!("reactors on several nodes: {value}"),
            "# serve with --cores of one node",
        );
        return Ok(());
    };
    for card in context.cards()? {
        let Some(node) = card.function.as_ref().and_then(|function| function.numa_node) else { continue };
        survey.judge(
            node == used.number,
            format!("{} is on node {node}, reactors on node {}", card.name, used.number),
            format!("# serve with --cores of node {node}"),
        );
    }
    if survey.is_empty() {
        survey.good(format!("all reactors are on node {}", used.number));
    }
    Ok(())
}

fn balancing(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let nodes = node_numbers(context)?.len();
    let path = "/proc/sys/kernel/numa_balancing";
    if nodes < 2 {
        survey.good("one node");
        return Ok(());
    }
    let value = context.root.parse(path, SMALL, decode_number)?;
    survey.judge(value == 0, format!("{value} on {nodes} nodes"), "sysctl -w kernel.numa_balancing=0");
    Ok(())
}

/// A node with its cores.
struct Node {
    number: u32,
    cpus: Vec<u32>,
}

fn nodes(context: &Context) -> Result<Vec<Node>, ReadError> {
    let node = |number| {
        let path = format!("{NODES}/node{number}/cpulist");
        Ok(Node { number, cpus: context.root.parse(&path, SMALL, decode_cpu_list)? })
    };
    node_numbers(context)?.into_iter().map(node).collect()
}

fn node_numbers(context: &Context) -> Result<Vec<u32>, ReadError> {
    let names = context.root.list(NODES)?;
    let numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    if numbers.is_empty() { Err(unexpected(NODES, "a node")) } else { Ok(numbers) }
}

/// Directory of the nodes.
const NODES: &str = "/sys/devices/system/node";
