//! The verdict about connections and slow operations, which a target shows to a host on another machine.
//!
//! Without the distribution of each stage, an operation loses in a stage the time above the mean of all operations. The
//! stages name the kind; a volume or core is named if it has enough of the loss.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{MIN_COVERAGE, MIN_SHARE};
use super::document::{Cleared, Evidence, Finding, Grade, Kind, NotSeen, Tail, VERSION, Verdict, finite};
use super::hosts::peer_times;
use super::ledger::{MIN_QUANTILE, MIN_TAIL};
use super::limits::blocks_text;
use super::units::{escape, show_count, show_ns, show_percent};
use super::window::Window;
use super::{MIN_LOSS_NS, MIN_OPERATIONS, Options};
use crate::histogram::{Histogram, Resolution};
use crate::snapshot::{Connection, SlowOperation, Snapshot};
use crate::stage::{MAX_STAGES, Operation, Side, Stage};
use crate::topology::Topology;

/// Slow operations that a finding needs.
pub(super) const MIN_SLOW: usize = 8;
/// Part of the loss by one kind of operations that makes it the only one.
const MOST: f64 = 0.9;

/// Stages that have one kind of cause.
pub(super) struct Group {
    kind: Kind,
    stages: &'static [Stage],
    remedy: &'static str,
}

pub(super) const GROUPS: [Group; 6] = [
    Group { kind: Kind::Memory, stages: &[Stage::Memory], remedy: "raise --pool of the target" },
    Group {
        kind: Kind::Memory,
        stages: &[Stage::Limit],
        remedy: "raise the limit of the target, or lower the queue depth of this host",
    },
    Group {
        kind: Kind::Conflict,
        stages: &[Stage::Blocks],
        remedy: "find the application that writes the same blocks from several threads",
    },
    Group {
        kind: Kind::Device,
        stages: &[Stage::Queue, Stage::Device],
        remedy: "run `isolane explain` on the machine of the target, which compares this volume with its peers",
    },
    Group {
        kind: Kind::Host,
        stages: &[Stage::Transfer, Stage::Socket],
        remedy: "compare with the stages of this host, as `isolane bench --explain` does, and check both ends with \
                 `isolane doctor`",
    },
    Group {
        kind: Kind::Core,
        stages: &[Stage::Batch, Stage::Answer],
        remedy: "run `isolane explain` on the machine of the target, which sees its cores and other hosts",
    },
];

/// A slow operation, with its loss in each stage of a target in nanoseconds.
pub(super) struct Slow<'a> {
    pub at: &'a SlowOperation,
    pub lost_ns: [f64; MAX_STAGES],
}

impl<'a> Slow<'a> {
    /// Returns the losses of an operation, given the mean time in each stage.
    pub(super) fn new(at: &'a SlowOperation, means_ns: &[f64; MAX_STAGES]) -> Slow<'a> {
        let mut lost_ns = [0.0; MAX_STAGES];
        for (stage, ns) in &at.stages {
            if let Some(position) = Side::Target.position_of(*stage) {
                lost_ns[position] = (*ns as f64 - means_ns[position]).max(0.0);
            }
        }
        Slow { at, lost_ns }
    }

    fn lost_in(&self, stages: &[Stage]) -> f64 {
        let all = Side::Target.stages().iter().zip(self.lost_ns);
        all.filter(|(stage, _)| stages.contains(stage)).map(|(_, ns)| ns).sum()
    }
}

/// Returns `true` if there are numbers of connections of a target, and no latencies of volumes.
pub(super) fn is_all(window: &Window<'_>) -> bool {
    window.series.is_empty() && window.connections.iter().any(|at| !at.totals.is_empty())
}

/// Returns the causes of the slow operations of the window.
pub(super) fn explain(snapshot: &Snapshot, window: &Window<'_>, options: Options) -> Verdict {
    let requested = options.quantile;
    let all = totals(&window.connections);
    let operations = all.count();
    let highest = 1.0 - MIN_TAIL / operations.max(1) as f64;
    let quantile = requested.min(highest).max(MIN_QUANTILE);
    let (tail_ns, median_ns) = (all.quantile(quantile), all.quantile(0.5));
    let start_us = snapshot.at_unix_ms.saturating_mul(1000).saturating_sub((window.seconds * 1e6) as u64);
    let means_ns = means(&window.connections, operations);
    let is_seen = |at: &&SlowOperation| {
        at.side == Side::Target && at.at_unix_us >= start_us && at.total_ns >= tail_ns.max(1)
    };
    let slow: Vec<Slow<'_>> =
        snapshot.slow.iter().filter(is_seen).map(|at| Slow::new(at, &means_ns)).collect();
    let lost_ns: f64 = slow.iter().flat_map(|slow| slow.lost_ns).sum();
    let is_enough = operations >= MIN_OPERATIONS && slow.len() >= MIN_SLOW;
    let is_slow = is_enough && lost_ns >= MIN_LOSS_NS * slow.len() as f64;
    let tail = (operations as f64 * (1.0 - quantile)).round() as u64;
    let topology = Topology::new(snapshot);
    let finding = |group: &Group| find(group, &slow, lost_ns, &topology, &window.connections);
    let mut findings: Vec<Finding> = GROUPS.iter().filter(|_| is_slow).filter_map(finding).collect();
    findings.sort_by(|left, right| right.share.total_cmp(&left.share));
    let mut not_seen = vec![NotSeen {
        what: String::from("volumes, cores, disks, and other hosts of the target"),
        needs: String::from("`isolane explain` on its machine"),
    }];
    if !is_enough {
        not_seen.push(NotSeen {
            what: String::from("enough operations for a verdict"),
            needs: format!("more load, or {}", options.longer),
        });
    }
    if tail > slow.len() as u64 {
        let [seen, tail] = [slow.len() as u64, tail].map(show_count);
        not_seen.push(NotSeen {
            what: format!("the stages of all but {seen} of the {tail} operations of the tail"),
            needs: String::from("the machine of the target: it shows a host the slowest of each second"),
        });
    }
    Verdict {
        version: VERSION,
        window_s: window.seconds,
        operations,
        volumes: slow.iter().map(|slow| slow.at.volume).collect::<BTreeSet<_>>().len().max(1) as u64,
        streams: 0,
        queue_pairs: 0,
        tail: Tail {
            quantile,
            requested_quantile: requested,
            operations: tail,
            us: tail_ns as f64 / 1000.0,
            median_us: median_ns as f64 / 1000.0,
            lost_us: finite(lost_ns / 1000.0),
        },
        cleared: if is_slow { cleared(&slow, lost_ns) } else { Vec::new() },
        findings,
        not_seen,
        peers: peer_times(&window.connections),
        measured: None,
    }
}

pub(super) fn totals(connections: &[Connection]) -> Histogram {
    let mut all = Histogram::new(Resolution::Four);
    connections.iter().flat_map(|at| &at.totals).for_each(|(_, totals)| all.merge(totals));
    all
}

/// Returns the mean time of an operation in each stage, in nanoseconds.
pub(super) fn means(connections: &[Connection], operations: u64) -> [f64; MAX_STAGES] {
    let mut means_ns = [0.0; MAX_STAGES];
    for (stage, ns) in connections.iter().flat_map(|at| &at.stages_ns) {
        if let Some(position) = Side::Target.position_of(*stage) {
            means_ns[position] += *ns as f64 / operations.max(1) as f64;
        }
    }
    means_ns
}

pub(super) fn find(
    group: &Group,
    slow: &[Slow<'_>],
    all_ns: f64,
    topology: &Topology<'_>,
    connections: &[Connection],
) -> Option<Finding> {
    let lost_ns: f64 = slow.iter().map(|slow| slow.lost_in(group.stages)).sum();
    let share = if all_ns > 0.0 { (lost_ns / all_ns).clamp(0.0, 1.0) } else { 0.0 };
    if share < MIN_SHARE {
        return None;
    }
    // An operation counts if it lost most of its time there.
    let affected: Vec<&Slow<'_>> =
        slow.iter().filter(|slow| slow.lost_in(group.stages) * 2.0 >= slow.lost_ns.iter().sum()).collect();
    let most = |key: fn(&SlowOperation) -> u32| most_of(slow, group.stages, lost_ns, key);
    let operation = Operation::ALL.into_iter().find(|kind| {
        let of_kind = slow.iter().filter(|slow| slow.at.operation == *kind);
        let has_others = slow.iter().any(|slow| slow.at.operation != *kind);
        let ns: f64 = of_kind.map(|slow| slow.lost_in(group.stages)).sum();
        ns >= lost_ns * MOST && (has_others || *kind == Operation::Flush)
    });
    let is_flush = group.kind == Kind::Device && operation == Some(Operation::Flush);
    let volume = most(|at| at.volume).map_or_else(|| String::from("volumes"), |id| topology.name(id));
    let name = match group.kind {
        Kind::Memory if group.stages == [Stage::Limit] => String::from("limit"),
        Kind::Memory => String::from("memory pool"),
        Kind::Core => most(|at| at.core).map_or_else(|| String::from("cores"), |core| format!("core {core}")),
        Kind::Host => hosts(connections),
        Kind::Conflict => {
            let blocks = blocks_text(affected.iter().map(|slow| slow.at.lba).collect());
            if blocks.is_empty() { volume } else { format!("{volume}, {blocks}") }
        }
        _ => volume,
    };
    let stage = worst_stage(slow, group.stages);
    Some(Finding {
        kind: if is_flush { Kind::Flush } else { group.kind },
        name,
        stage,
        operation,
        cause: (group.stages == [Stage::Limit]).then(|| String::from("limit")),
        share,
        since: None,
        evidence: vec![evidence(&affected, slow.len(), stage)],
        neighbors: Vec::new(),
        remedy: group.remedy.to_owned(),
    })
}

/// Returns the value of a key that covers enough of a loss.
fn most_of(slow: &[Slow<'_>], stages: &[Stage], lost_ns: f64, key: fn(&SlowOperation) -> u32) -> Option<u32> {
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for slow in slow {
        *sums.entry(key(slow.at)).or_default() += slow.lost_in(stages);
    }
    let most = sums.into_iter().max_by(|left, right| left.1.total_cmp(&right.1));
    most.filter(|(_, ns)| *ns >= lost_ns * MIN_COVERAGE).map(|(key, _)| key)
}

fn worst_stage(slow: &[Slow<'_>], stages: &[Stage]) -> Option<Stage> {
    let lost = |stage: &Stage| -> f64 { slow.iter().map(|slow| slow.lost_in(&[*stage])).sum() };
    stages.iter().copied().max_by(|left, right| lost(left).total_cmp(&lost(right)))
}

fn evidence(affected: &[&Slow<'_>], all: usize, stage: Option<Stage>) -> Evidence {
    let worst = affected.iter().map(|slow| slow.at.total_ns).max().unwrap_or(0);
    let text = format!(
        "{} of the {} slow operations lost most of their time in stage {}; the slowest took {}",
        affected.len(),
        all,
        stage.map_or("?", Stage::name),
        show_ns(worst as f64),
    );
    Evidence::measured("slow operations", affected.len() as f64, "", "slow operations", text)
        .compared_to(all as f64)
        .graded(Grade::Measured)
}

/// Returns the name of the host, which all connections of a page have.
fn hosts(connections: &[Connection]) -> String {
    let names: BTreeSet<&str> = connections.iter().map(|at| at.host.as_str()).collect();
    match names.iter().next() {
        Some(only) if names.len() == 1 && !only.is_empty() => escape(only),
        _ => String::from("hosts"),
    }
}

fn cleared(slow: &[Slow<'_>], all_ns: f64) -> Vec<Cleared> {
    let waits = [(Kind::Memory, Stage::Memory, "memory"), (Kind::Conflict, Stage::Blocks, "conflicts")];
    let share = |stage| slow.iter().map(|slow| slow.lost_in(&[stage])).sum::<f64>() / all_ns.max(1.0);
    let waits = waits.map(|(kind, stage, name)| (kind, name, share(stage)));
    let small = waits.into_iter().filter(|(_, _, share)| *share < MIN_SHARE);
    let text = |name, share| format!("{name} ({} of the lost time)", show_percent(share));
    small.map(|(kind, name, share)| Cleared { kind, text: text(name, share) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Step, Volume};
    use crate::stage::SizeClass;
    use crate::verdict::{explain, to_text};

    /// Time of the copy, in milliseconds since 1970.
    const NOW_MS: u64 = 1_795_788_000_000;

    fn slow(at: u64, volume: u32, stages: &[(Stage, u64)]) -> SlowOperation {
        SlowOperation {
            side: Side::Target,
            at_unix_us: NOW_MS * 1000 - at * 100_000,
            volume,
            operation: if at.is_multiple_of(2) { Operation::Read } else { Operation::Write },
            bytes: 4096,
            lba: 4096,
            core: 1,
            connection: 3,
            cid: at as u16,
            depth: 1,
            total_ns: stages.iter().map(|(_, ns)| ns).sum(),
            stages: stages.to_vec(),
            last_member: None,
        }
    }

    /// A page of 10 s in which 40 of 100,000 operations lost most of their time in a stage.
    fn page(stage: Stage, volumes: u32) -> Snapshot {
        let mut totals = Histogram::new(Resolution::Four);
        totals.record(100_000, 99_960);
        totals.record(20_000_000, 40);
        let connection = Connection {
            id: 3,
            host: String::from("nqn.x"),
            totals: vec![(SizeClass::Small, totals)],
            stages_ns: vec![(Stage::Batch, 99_960 * 100_000), (stage, 40 * 20_000_000)],
            ..Connection::default()
        };
        let numbers = crate::snapshot::Numbers { connections: vec![connection], ..Default::default() };
        let volume = |id| Volume {
            id,
            nsid: Some(id + 1),
            name: format!("namespace {}", id + 1),
            ..Volume::default()
        };
        Snapshot {
            at_unix_ms: NOW_MS,
            volumes: (0..volumes).map(volume).collect(),
            slow: (0..40).map(|at| slow(at, at as u32 % volumes, &[(stage, 20_000_000)])).collect(),
            steps: vec![Step { at_unix_ms: NOW_MS, length_ms: 10_000, numbers, ..Step::default() }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn stage_names_the_kind() {
        let found = |stage| {
            let verdict = explain(&page(stage, 1), Options::default());
            let [finding] = &verdict.findings[..] else { panic!("{}", to_text(&verdict)) };
            assert!(finding.share > 0.99 && finding.stage == Some(stage), "{finding:?}");
            (finding.kind, finding.name.clone())
        };
        assert_eq!(found(Stage::Memory), (Kind::Memory, String::from("memory pool")));
        assert_eq!(found(Stage::Limit), (Kind::Memory, String::from("limit")));
        assert_eq!(found(Stage::Blocks), (Kind::Conflict, String::from("namespace 1, LBA 4096")));
        assert_eq!(found(Stage::Device), (Kind::Device, String::from("namespace 1")));
        assert_eq!(found(Stage::Socket), (Kind::Host, String::from("nqn.x")));
        assert_eq!(found(Stage::Answer), (Kind::Core, String::from("core 1")));
    }

    #[test]
    fn headline_has_quantiles_of_connections() {
        let verdict = explain(&page(Stage::Device, 1), Options::default());
        assert_eq!((verdict.operations, verdict.tail.operations), (100_000, 100));
        assert!((verdict.tail.median_us / 100.0 - 1.0).abs() < 0.13, "{:?}", verdict.tail);
        let text = to_text(&verdict);
        assert!(
            text.contains("40 of the 40 slow operations lost most of their time in stage device"),
            "{text}"
        );
        assert!(text.contains("cleared: memory (0.00 % of the lost time)"), "{text}");
        assert!(text.contains("not seen: volumes, cores, disks, and other hosts of the target"), "{text}");
        assert!(text.contains("all but 40 of the 100 operations of the tail"), "{text}");
    }

    #[test]
    fn volume_is_named_only_with_most_of_the_loss() {
        assert_eq!(explain(&page(Stage::Device, 2), Options::default()).findings[0].name, "volumes");
    }

    #[test]
    fn needs_slow_operations_of_the_window() {
        let mut old = page(Stage::Device, 1);
        old.slow.iter_mut().for_each(|slow| slow.at_unix_us -= 60_000_000);
        assert!(explain(&old, Options::default()).findings.is_empty());
        let mut few = page(Stage::Device, 1);
        few.slow.truncate(MIN_SLOW - 1);
        let verdict = explain(&few, Options::default());
        assert!(verdict.findings.is_empty());
        assert!(to_text(&verdict).contains("enough operations for a verdict"));
    }

    #[test]
    fn flushes_have_their_own_kind() {
        let mut page = page(Stage::Device, 1);
        page.slow.iter_mut().for_each(|slow| slow.operation = Operation::Flush);
        assert_eq!(explain(&page, Options::default()).findings[0].kind, Kind::Flush);
    }
}
