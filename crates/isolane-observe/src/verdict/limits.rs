//! Stages that name their cause: memory, limits, conflicts, flushes, file threads, and callers.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, MIN_COVERAGE, MIN_SHARE};
use super::document::{Evidence, Finding, Grade, Kind, Neighbor};
use super::ledger::{Part, is_at_caller, is_at_volume};
use super::units::{show_count, show_percent};
use crate::snapshot::SlowOperation;
use crate::stage::{Operation, Stage};

/// Most hosts that are named.
const MAX_HOSTS: usize = 4;
/// Part of the slow operations that makes one block the cause.
const MOST: f64 = 0.5;

/// A finding for which the name of the stage is enough.
struct Named {
    kind: Kind,
    name: String,
    cause: Option<&'static str>,
    evidence: Vec<Evidence>,
    neighbors: Vec<Neighbor>,
    remedy: String,
}

/// Reports waits for memory, for limits, and for other commands.
pub(super) fn find_waits(case: &mut Case<'_>) {
    report(case, |_, stage| stage == Stage::Memory, memory);
    find_limits(case);
    if waits_for_flush(case) {
        report(case, |_, stage| stage == Stage::Blocks, flush);
        return;
    }
    for volume in volumes_in(case, Stage::Blocks) {
        let chosen = move |part: &Part, stage| part.volume == volume && stage == Stage::Blocks;
        report(case, chosen, |case| conflict(case, volume));
    }
}

/// Reports waits for limits: of connections, or of namespaces.
fn find_limits(case: &mut Case<'_>) {
    if counter(case, "qos-waits") > counter(case, "limit-waits") {
        for volume in volumes_in(case, Stage::Limit) {
            let chosen = move |part: &Part, stage| part.volume == volume && stage == Stage::Limit;
            report(case, chosen, |case| qos(case, volume));
        }
    }
    report(case, |_, stage| stage == Stage::Limit, limit);
}

/// Returns the volumes whose waits in a stage are enough for a finding. Of many volumes, these are few.
fn volumes_in(case: &Case<'_>, waited_in: Stage) -> Vec<u32> {
    let lost = case.ledger.lost_by_volume(|stage| stage == waited_in).into_iter();
    lost.filter(|(_, ns)| case.ledger.share(*ns) >= MIN_SHARE).map(|(volume, _)| volume).collect()
}

/// Reports waits at volumes and at the caller.
pub(super) fn find_others(case: &mut Case<'_>) {
    report(case, |part, stage| part.operation == Operation::Flush && is_at_volume(stage), flush);
    if counter(case, "file-thread-waits") > 0 {
        report(case, |_, stage| stage == Stage::Queue, file_threads);
    }
    find_caller(case);
    report(case, |_, stage| stage == Stage::Held, held);
}

fn report(
    case: &mut Case<'_>,
    chosen: impl Fn(&Part, Stage) -> bool,
    describe: impl FnOnce(&Case<'_>) -> Named,
) {
    let stage = case.ledger.worst_stage(&chosen);
    let volumes: BTreeSet<u32> = case
        .ledger
        .parts
        .iter()
        .filter(|part| part.losses().any(|(stage, ns)| ns > 0.0 && chosen(part, stage)))
        .map(|part| part.volume)
        .collect();
    let Some(share) = case.claim(1.0, chosen) else { return };
    let since = case.since(&case.points(|series| volumes.contains(&series.volume)));
    let Named { kind, name, cause, evidence, neighbors, remedy } = describe(case);
    let cause = cause.map(str::to_owned);
    let operation = None;
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

fn counter(case: &Case<'_>, name: &str) -> u64 {
    case.window.counters.get(name).copied().unwrap_or(0)
}

/// Returns a sentence about a counter, if it is not zero.
fn counted(case: &Case<'_>, name: &str, text: &str) -> Vec<Evidence> {
    let count = counter(case, name);
    let evidence =
        Evidence::measured(name, count as f64, "", "counters", format!("{} {text}", show_count(count)));
    if count > 0 { vec![evidence] } else { Vec::new() }
}

fn memory(case: &Case<'_>) -> Named {
    let now = case.snapshot.program.limits.get("pool");
    let now = now.map_or(String::new(), |bytes| format!(" (now {} MiB for each core)", bytes >> 20));
    Named {
        kind: Kind::Memory,
        name: "memory pool".to_owned(),
        cause: None,
        evidence: counted(case, "memory-waits", "waits for pages of the pool or for a share of them"),
        neighbors: hosts(case),
        remedy: format!("raise --pool{now}"),
    }
}

fn limit(case: &Case<'_>) -> Named {
    Named {
        kind: Kind::Memory,
        name: "limit".to_owned(),
        cause: Some("limit"),
        evidence: counted(case, "limit-waits", "commands held back on purpose"),
        neighbors: hosts(case),
        remedy: "raise the limit, or lower the queue depth of the hosts".to_owned(),
    }
}

fn qos(case: &Case<'_>, volume: u32) -> Named {
    Named {
        kind: Kind::Memory,
        name: case.topology.name(volume),
        cause: Some("qos"),
        evidence: counted(case, "qos-waits", "commands waited for the maximum speed of their namespace"),
        neighbors: Vec::new(),
        remedy: "raise qos of the namespace, or give it less work".to_owned(),
    }
}

/// Returns the hosts with most bytes in flight, which use the memory.
fn hosts(case: &Case<'_>) -> Vec<Neighbor> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for connection in case.window.connections.iter().filter(|at| !at.host.is_empty()) {
        let sum = bytes.entry(&connection.host).or_default();
        *sum = sum.saturating_add(connection.received_bytes).saturating_add(connection.sent_bytes);
    }
    let mut bytes: Vec<(&str, u64)> = bytes.into_iter().collect();
    bytes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = bytes.into_iter().take(MAX_HOSTS);
    named
        .map(|(name, _)| Neighbor { kind: "host".to_owned(), name: name.to_owned(), grade: Grade::Shares })
        .collect()
}

/// Returns `true` if commands wait for flushes rather than for commands on the same blocks.
fn waits_for_flush(case: &Case<'_>) -> bool {
    counter(case, "flush-waits") > counter(case, "range-waits")
}

fn flush(case: &Case<'_>) -> Named {
    let flushes: u64 = case
        .window
        .series
        .iter()
        .filter(|at| at.operation == Operation::Flush)
        .fold(0, |sum, at| at.total.count().saturating_add(sum));
    let mut evidence = counted(case, "flush-waits", "commands waited for a flush");
    evidence.push(Evidence::measured(
        "flushes",
        flushes as f64,
        "",
        "operations",
        format!("{} flushes", show_count(flushes)),
    ));
    let worst = worst_volume(case, |part| part.operation == Operation::Flush);
    Named {
        kind: Kind::Flush,
        name: worst.map_or_else(|| "flushes".to_owned(), |id| case.topology.name(id)),
        cause: None,
        evidence,
        neighbors: Vec::new(),
        remedy: "use drives with power-loss protection, or flush less often".to_owned(),
    }
}

fn conflict(case: &Case<'_>, volume: u32) -> Named {
    let is_waiting = |slow: &&SlowOperation| {
        let mut stages = slow.stages.iter();
        slow.volume == volume
            && stages.any(|(stage, ns)| *stage == Stage::Blocks && ns.saturating_mul(2) >= slow.total_ns)
    };
    let blocks: Vec<u64> = case.snapshot.slow.iter().filter(is_waiting).map(|slow| slow.lba).collect();
    let waited = blocks.len();
    let (name, range) = (case.topology.name(volume), blocks_text(blocks));
    let mut evidence = counted(case, "range-waits", "waits for another command on the same blocks");
    if !range.is_empty() {
        let text = format!("{} of the slow operations waited at {range}", show_count(waited as u64));
        evidence.push(Evidence::measured("slow operations", waited as f64, "", "slow operations", text));
    }
    let name = if range.is_empty() { name } else { format!("{name}, {range}") };
    let remedy = "find the application that writes the same blocks from several threads".to_owned();
    Named { kind: Kind::Conflict, name, cause: None, evidence, neighbors: Vec::new(), remedy }
}

/// Returns the block of most operations, else the range of all.
pub(super) fn blocks_text(mut blocks: Vec<u64>) -> String {
    blocks.sort_unstable();
    let runs = blocks.chunk_by(|left, right| left == right);
    let most = runs.max_by_key(|run| run.len()).unwrap_or_default();
    match (most, blocks.first(), blocks.last()) {
        ([block, ..], _, _) if most.len() as f64 >= blocks.len() as f64 * MOST => format!("LBA {block}"),
        (_, Some(first), Some(last)) => format!("LBA {first} to {last}"),
        _ => String::new(),
    }
}

fn worst_volume(case: &Case<'_>, chosen: impl Fn(&Part) -> bool) -> Option<u32> {
    let mut times: BTreeMap<u32, f64> = BTreeMap::new();
    for part in case.ledger.parts.iter().filter(|part| chosen(part)) {
        *times.entry(part.volume).or_default() += part.sum_ns;
    }
    times.into_iter().max_by(|left, right| left.1.total_cmp(&right.1)).map(|(volume, _)| volume)
}

fn file_threads(case: &Case<'_>) -> Named {
    let worst = worst_volume(case, |_| true);
    Named {
        kind: Kind::FileThreads,
        name: worst.map_or_else(|| "file threads".to_owned(), |id| case.topology.name(id)),
        cause: None,
        evidence: counted(case, "file-thread-waits", "requests found all file threads busy"),
        neighbors: Vec::new(),
        remedy: "allow io_uring, so that no file threads are needed (isolane doctor --only lim.ring)"
            .to_owned(),
    }
}

/// Reports callers that fetch results late: the program itself, or applications of an engine.
fn find_caller(case: &mut Case<'_>) {
    let mut losses: BTreeMap<Option<&str>, f64> = BTreeMap::new();
    for part in &case.ledger.parts {
        let lost = part.losses().filter(|(stage, _)| is_at_caller(*stage)).map(|(_, ns)| ns);
        *losses.entry(case.topology.application(part.volume)).or_default() += lost.sum::<f64>();
    }
    let all: f64 = losses.values().sum();
    let worst = losses.iter().max_by(|left, right| left.1.total_cmp(right.1));
    let worst = worst.filter(|(_, lost)| **lost >= all * MIN_COVERAGE);
    let Some(application) = worst.and_then(|(application, _)| application.map(str::to_owned)) else {
        let program = &case.snapshot.program;
        let name = match losses.keys().flatten().count() {
            0 => format!("{} (PID {})", program.name, program.pid),
            count => format!("{count} applications"),
        };
        return report_caller(case, name, |_| true);
    };
    let volumes: BTreeSet<u32> = case.topology.volumes_of(&application).collect();
    report_caller(case, application, move |part| volumes.contains(&part.volume));
}

fn report_caller(case: &mut Case<'_>, name: String, chosen: impl Fn(&Part) -> bool) {
    let chosen = |part: &Part, stage| is_at_caller(stage) && chosen(part);
    // Applications fetch data of streams, and completions of volumes.
    let (result, text) = match case.ledger.worst_stage(chosen) {
        Some(Stage::Rx) => ("data", "its data waits until its thread runs and fetches it"),
        _ => ("completions", "its completions wait until its thread runs and fetches them"),
    };
    report(case, chosen, |_| Named {
        kind: Kind::Caller,
        name,
        cause: None,
        evidence: vec![Evidence::measured("wait for the caller", 1.0, "", "stages", text.to_owned())],
        neighbors: Vec::new(),
        remedy: format!("fetch {result} more often, or on a thread that does nothing else"),
    });
}

fn held(case: &Case<'_>) -> Named {
    let worst = worst_volume(case, |part| part.losses().any(|(stage, ns)| stage == Stage::Held && ns > 0.0));
    let held: f64 = case.ledger.parts.iter().map(|part| part.sum_ns).sum::<f64>() / 1e9 / case.window.seconds;
    let text = format!("commands wait before they are sent; {held:.1} are in flight on average");
    Named {
        kind: Kind::Hot,
        name: worst.map_or_else(|| "queues".to_owned(), |id| case.topology.name(id)),
        cause: Some("queue depth"),
        evidence: vec![Evidence::measured("commands in flight", held, "", "stages", text)],
        neighbors: Vec::new(),
        remedy: "use more lanes or a larger queue depth, or send fewer commands at once".to_owned(),
    }
}

/// Rules out the causes in this file that lost almost nothing.
pub(super) fn clear(case: &mut Case<'_>) {
    for (kind, stage, name) in
        [(Kind::Memory, Stage::Memory, "memory"), (Kind::Conflict, Stage::Blocks, "conflicts")]
    {
        let has_stage = case.ledger.parts.iter().any(|part| part.side.position_of(stage).is_some());
        let share = case.ledger.share(case.ledger.lost(|_, at| at == stage));
        if has_stage && !case.has(kind) {
            case.clear(kind, format!("{name} ({} of the lost time)", show_percent(share)));
        }
    }
}
