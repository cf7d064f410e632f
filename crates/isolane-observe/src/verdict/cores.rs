//! Cores that were not available to their thread, and turns that took too long.
//!
//! While a core is away, all of its operations in flight wait. So a core explains at most its absence times the mean
//! number of typical operations in flight, and only if turns or wakeups took about as long as the tail lost.

use std::collections::BTreeMap;

use super::case::{Case, MIN_SHARE, stands_out};
use super::document::{Evidence, Finding, Grade, Kind, Neighbor};
use super::ledger::{Class, Part};
use super::measured;
use super::trend;
use super::units::{escape, show_ns, show_percent};
use crate::snapshot::{Core, StuckTurn, Task};
use crate::stage::Stage;

/// Part of the difference between tail and median that one absence lasts at least.
const LONG_ABSENCE: f64 = 0.5;
/// Least part of the window in which a core is away.
const MIN_ABSENCE: f64 = 0.001;
/// Least duration of a turn that counts as stuck.
const STUCK_NS: f64 = 10e6;
/// Most processes that are named.
const MAX_TASKS: usize = 3;
/// Most cores that are listed.
const MAX_NAMED: usize = 16;

/// Reports cores that were away, then turns that took too long.
pub(super) fn find(case: &mut Case<'_>) {
    let cores = case.window.cores.clone();
    for core in &cores {
        let absence = Absence::of(case, core);
        report_absence(case, core, &absence);
    }
    merge_quota(case);
    for core in &cores {
        report_turns(case, core);
    }
}

/// Merges the findings of all cores about the quota, which is one for the program.
fn merge_quota(case: &mut Case<'_>) {
    let is_quota =
        |finding: &Finding| finding.kind == Kind::Core && finding.cause.as_deref() == Some("quota");
    let (quota, others) = std::mem::take(&mut case.findings).into_iter().partition(is_quota);
    case.findings = others;
    let merge = |sum: Finding, more: Finding| Finding {
        name: format!("{}, {}", sum.name, more.name),
        share: (sum.share + more.share).min(1.0),
        since: sum.since.clone().min(more.since),
        ..sum
    };
    case.findings.extend(Vec::into_iter(quota).reduce(merge));
}

/// Time for which a core was away, in nanoseconds, by cause.
struct Absence {
    causes: [(&'static str, f64); 5],
}

impl Absence {
    fn of(case: &Case<'_>, core: &Core) -> Absence {
        let window_ns = case.window.seconds * 1e9;
        let system = &case.window.system;
        let cpu = core.cpu.and_then(|cpu| system.cpus.iter().find(|at| at.cpu == cpu));
        let ms = |value: u64| value as f64 * 1e6;
        let waited = (core.waited_ns as f64).min(window_ns);
        let quota = ms(system.quota.throttled_ms).min(window_ns);
        let causes = [
            ("process", (waited - quota).max(0.0)),
            ("quota", quota),
            ("steal", cpu.map_or(0.0, |cpu| ms(cpu.steal_ms)).min(window_ns)),
            // Soft interrupts are mostly the network's part of the core's sends and receives.
            ("interrupt", cpu.map_or(0.0, |cpu| ms(cpu.irq_ms)).min(window_ns)),
            ("sleep", (core.late_ns as f64).min(window_ns)),
        ];
        Absence { causes }
    }

    fn all_ns(&self) -> f64 {
        self.causes.iter().map(|cause| cause.1).sum()
    }
}

fn report_absence(case: &mut Case<'_>, core: &Core, absence: &Absence) {
    let away = absence.all_ns();
    if away < case.window.seconds * 1e9 * MIN_ABSENCE {
        return;
    }
    let index = core.index;
    let explained = explained_ns(case, core, away);
    let concentrated = is_concentrated(case, core);
    for (cause, ns) in absence.causes {
        let explained = scaled(&explained, ns / away);
        if case.ledger.share(explained.values().sum()) < MIN_SHARE {
            continue;
        }
        let points = case.points(|series| series.core == index);
        let moves = trend::correlation(&points, &absences(case, core, cause));
        if !concentrated && moves.is_none() && ns < case.window.seconds * 1e9 * 0.01 {
            continue;
        }
        let stage = case.ledger.worst_stage(|part, _| part.core == index);
        let Some(share) = claim(case, index, &explained) else { continue };
        let since = case.since(&points);
        push(case, core, (cause, ns), moves, (stage, share, since));
    }
}

/// Loss that the absence of a core explains, in nanoseconds.
type Explained = BTreeMap<Class, f64>;

fn scaled(explained: &Explained, factor: f64) -> Explained {
    explained.iter().map(|(class, ns)| (*class, ns * factor)).collect()
}

/// Claims losses on a core, and returns their share, if that is large enough. Operations in flight lose time at their
/// volume or socket; the commands of a long receive wait for each other only for the remaining loss.
fn claim(case: &mut Case<'_>, core: u32, explained: &Explained) -> Option<f64> {
    let lost_of = |case: &Case<'_>, class: Class| {
        case.ledger.lost(|part, _| part.core == core && part.class() == class)
    };
    let losses = explained.iter().map(|(class, ns)| (*class, ns.min(lost_of(case, *class))));
    let losses: Explained = losses.collect();
    let share = case.ledger.share(losses.values().sum());
    if share < MIN_SHARE {
        return None;
    }
    for (class, mut remaining) in losses {
        for is_batch in [false, true] {
            let chosen = |part: &Part, stage: Stage| {
                part.core == core && part.class() == class && (stage == Stage::Batch) == is_batch
            };
            let lost = case.ledger.lost(chosen);
            case.ledger.claim(remaining / lost.max(1.0), chosen);
            remaining = (remaining - lost).max(0.0);
        }
    }
    Some(share)
}

/// Returns the loss that the absence of a core explains: of operations in flight, if turns or wakeups took about
/// as long as the operations of the tail lost.
fn explained_ns(case: &Case<'_>, core: &Core, away_ns: f64) -> Explained {
    let parts = || case.ledger.parts.iter().filter(|part| part.core == core.index);
    let window_ns = case.window.seconds * 1e9;
    let in_flight = |part: &Part| part.typical_ns.min(part.sum_ns) / window_ns;
    // A thread that sleeps without work is interrupted only while it has an operation.
    let all = parts().map(in_flight).sum::<f64>();
    let factor = if core.asleep_ns > 0 && all > 0.0 { (1.0 / all).max(1.0) } else { 1.0 };
    let mut explained = Explained::new();
    for part in parts() {
        let ns = away_ns.min(long_turns_ns(core, part.tail_excess_ns * LONG_ABSENCE).unwrap_or(away_ns));
        *explained.entry(part.class()).or_default() += ns * in_flight(part) * factor;
    }
    explained
}

/// Returns the time in long turns and in late wakeups, if it is known.
fn long_turns_ns(core: &Core, least_ns: f64) -> Option<f64> {
    let turns = core.turns.as_ref().filter(|turns| turns.count() > 0)?;
    let cells = turns.cells().map(|(cell, count)| (turns.resolution().middle_of(cell) as f64, count as f64));
    let long: f64 = cells.filter(|(ns, _)| *ns >= least_ns).map(|(ns, count)| ns * count).sum();
    Some(long + core.late_ns as f64)
}

/// Returns `true` if the loss is on this core rather than on others.
fn is_concentrated(case: &Case<'_>, core: &Core) -> bool {
    let of = |index: Option<u32>| {
        let parts = case.ledger.parts.iter().filter(|part| index.is_none_or(|index| part.core == index));
        parts.fold((0.0, 0.0), |(lost, operations), part| {
            (lost + part.lost_ns.iter().sum::<f64>(), operations + part.operations)
        })
    };
    let ((lost, operations), (all_lost, all_operations)) = (of(Some(core.index)), of(None));
    stands_out(lost / all_lost.max(1.0), operations / all_operations.max(1.0))
}

/// Returns the absence of a core in each step, in nanoseconds.
fn absences(case: &Case<'_>, core: &Core, cause: &str) -> Vec<f64> {
    let steps = case.window.steps.iter().map(|step| {
        let own = step.numbers.cores.iter().find(|at| at.index == core.index);
        let cpu = core.cpu.and_then(|cpu| step.system.cpus.iter().find(|at| at.cpu == cpu));
        match cause {
            "process" => own.map_or(0.0, |core| core.waited_ns as f64),
            "quota" => step.system.quota.throttled_ms as f64,
            "steal" => cpu.map_or(0.0, |cpu| cpu.steal_ms as f64),
            "interrupt" => cpu.map_or(0.0, |cpu| cpu.irq_ms as f64),
            _ => own.map_or(0.0, |core| core.late_ns as f64),
        }
    });
    steps.collect()
}

fn push(
    case: &mut Case<'_>,
    core: &Core,
    (cause, ns): (&str, f64),
    moves: Option<f64>,
    (stage, share, since): (Option<Stage>, f64, Option<String>),
) {
    let part = ns / (case.window.seconds * 1e9);
    let mut text = format!("{} for {} ({} of the time)", verb(cause), show_ns(ns), show_percent(part));
    if let Some(r) = moves {
        text += &format!(", which moves with the loss (r {r:.2})");
    }
    let mut evidence = vec![Evidence::measured(cause, ns / 1e6, "ms", source(cause), text)];
    let mut neighbors = match cause {
        "process" => tasks(case, core, moves.is_some()),
        "interrupt" => lines(case, core),
        _ => Vec::new(),
    };
    measured::add(measured::of_core(case, core, cause), &mut evidence, &mut neighbors);
    let cpu = core.cpu.map_or(String::new(), |cpu| format!(" (CPU {cpu})"));
    case.findings.push(Finding {
        kind: Kind::Core,
        name: format!("core {}{cpu}", core.index),
        stage,
        operation: None,
        cause: Some(cause.to_owned()),
        share,
        since,
        evidence,
        neighbors,
        remedy: remedy(cause).to_owned(),
    });
}

fn verb(cause: &str) -> &'static str {
    match cause {
        "process" => "another task ran on it",
        "quota" => "the control group was throttled",
        "steal" => "the hypervisor took it",
        "interrupt" => "it handled interrupts",
        _ => "it woke up late",
    }
}

fn source(cause: &str) -> &'static str {
    match cause {
        "process" => "/proc/self/task/*/schedstat",
        "quota" => "cpu.stat",
        "steal" | "interrupt" => "/proc/stat",
        _ => "timer of the core",
    }
}

fn remedy(cause: &str) -> &'static str {
    match cause {
        "process" => "move the process to other cores with taskset, or choose other --cores",
        "quota" => "raise CPUQuota= of the service, or remove it",
        "steal" => "give the virtual machine dedicated cores",
        "interrupt" => "move the interrupts to other cores with smp_affinity_list",
        _ => "disable deep idle states with cpupower idle-set -D 50, or use --mode poll",
    }
}

/// Returns the tasks that ran most on the core.
fn tasks(case: &Case<'_>, core: &Core, moves: bool) -> Vec<Neighbor> {
    let here = case.window.system.tasks.iter().filter(|task| Some(task.cpu) == core.cpu);
    let mut tasks: Vec<&Task> = here.filter(|task| task.pid != case.snapshot.program.pid).collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(task.ran_ms));
    let most = tasks.first().map_or(0, |task| task.ran_ms);
    let grade = if moves { Grade::MovesWith } else { Grade::Shares };
    let named = tasks.into_iter().filter(|task| task.ran_ms >= most / 10).take(MAX_TASKS);
    let name = |task: &Task| format!("{} (PID {})", task.name, task.pid);
    named.map(|task| Neighbor { kind: "process".to_owned(), name: name(task), grade }).collect()
}

/// Returns the interrupt lines with the highest counts on the core.
fn lines(case: &Case<'_>, core: &Core) -> Vec<Neighbor> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for line in case.window.system.interrupts.iter().filter(|line| Some(line.cpu) == core.cpu) {
        let count = counts.entry(&line.line).or_default();
        *count = count.saturating_add(line.count);
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let name = |(line, count): (&str, u64)| format!("{line} ({count} times)");
    let named = counts.into_iter().take(MAX_TASKS).map(name);
    named.map(|name| Neighbor { kind: "irq".to_owned(), name, grade: Grade::Shares }).collect()
}

/// Reports turns in which code or a blocking call of the program took too long.
fn report_turns(case: &mut Case<'_>, core: &Core) {
    let end_us = case.window.steps.last().map_or(u64::MAX, |step| step.at_unix_ms.saturating_mul(1000));
    let start_us = end_us.saturating_sub((case.window.seconds * 1e6) as u64);
    let stuck = case.snapshot.stuck.iter().filter(|turn| turn.core == core.index);
    let turns: Vec<&StuckTurn> =
        stuck.filter(|turn| (start_us..=end_us).contains(&turn.at_unix_us)).collect();
    // A thread that is ready to run may wait for its core: that time is known, and is another finding.
    let is_ready = |turn: &&&StuckTurn| turn.state.is_empty() || turn.state == "R";
    let sum = |turns: &mut dyn Iterator<Item = &&StuckTurn>| {
        turns.map(|turn| turn.lasted_ns as f64).filter(|ns| *ns >= STUCK_NS).sum::<f64>()
    };
    let ready_ns = sum(&mut turns.iter().filter(is_ready));
    let blocked_ns = sum(&mut turns.iter().filter(|turn| !is_ready(turn)));
    let stuck_ns = blocked_ns + (ready_ns - Absence::of(case, core).all_ns()).max(0.0);
    let index = core.index;
    let Some(longest) = turns.iter().max_by_key(|turn| turn.lasted_ns).filter(|_| stuck_ns > 0.0) else {
        return;
    };
    let explained = explained_ns(case, core, stuck_ns);
    let stage = case.ledger.worst_stage(|part, _| part.core == index);
    let Some(share) = claim(case, index, &explained) else { return };
    let since = case.since(&case.points(|series| series.core == index));
    let cause = if longest.call.is_empty() { longest.phase.clone() } else { longest.call.clone() };
    let text = format!(
        "{} turns took {} in all; the longest, in the part {}, was in state {} {}",
        turns.len(),
        show_ns(stuck_ns),
        escape(&longest.phase),
        escape(&longest.state),
        escape(&longest.wchan),
    );
    let evidence =
        Evidence::measured("turns", stuck_ns / 1e6, "ms", "turns of the core", text.trim_end().to_owned());
    let neighbors =
        [("call", &longest.call), ("kernel", &longest.wchan)].into_iter().filter(|at| !at.1.is_empty());
    let neighbors = neighbors.map(|(kind, name)| Neighbor {
        kind: kind.to_owned(),
        name: name.clone(),
        grade: Grade::Measured,
    });
    let neighbors = neighbors.collect();
    let remedy = "report it with the output of isolane snapshot".to_owned();
    let name = format!("core {index}");
    let (operation, evidence, cause) = (None, vec![evidence], Some(cause));
    let kind = Kind::Turn;
    case.findings.push(Finding {
        kind,
        name,
        stage,
        operation,
        cause,
        share,
        since,
        evidence,
        neighbors,
        remedy,
    });
}

/// Rules out cores that were away for too short a time.
pub(super) fn clear(case: &mut Case<'_>) {
    let cores = &case.window.cores;
    if cores.is_empty() || case.has(Kind::Core) {
        return;
    }
    let has_readings = cores.iter().any(|core| core.ran_ns > 0 || core.waited_ns > 0);
    let numbers: Vec<String> = cores.iter().take(MAX_NAMED).map(|core| core.index.to_string()).collect();
    let away: f64 = cores.iter().map(|core| Absence::of(case, core).all_ns()).sum();
    let part = show_percent(away / (case.window.seconds * 1e9 * cores.len() as f64));
    let noun = if numbers.len() == 1 { "core" } else { "cores" };
    let text = format!("{noun} {} (not available for {part} of the time)", numbers.join(", "));
    if has_readings {
        case.clear(Kind::Core, text);
    } else if cores.iter().all(|core| core.thread == 0) {
        case.miss("time for which cores waited", "the program of the threads: a host has none of its own");
    } else {
        case.miss("time for which cores waited", "/proc/self/task/*/schedstat (CONFIG_SCHED_INFO)");
    }
}
