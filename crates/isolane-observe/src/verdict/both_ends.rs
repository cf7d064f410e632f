//! The verdict about the operations of a host and the same operations at its target, on another machine.
//!
//! Both ends list their slow operations. Controller, queue, command ID, and blocks name a command at both ends, so no
//! clocks are compared: the network has the part of the host's stages `wait` and `data` that the target does not
//! account for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::case::MIN_SHARE;
use super::document::{Evidence, Finding, Kind, NotSeen, Tail, VERSION, Verdict, finite};
use super::hosts::peer_times;
use super::ledger::{MIN_QUANTILE, MIN_TAIL};
use super::slow_list::{GROUPS, MIN_SLOW, Slow, find, means, totals};
use super::units::{show_count, show_ns};
use super::window::Window;
use super::{MIN_LOSS_NS, Options, explain};
use crate::histogram::{Histogram, Resolution};
use crate::snapshot::{Connection, Series, SlowOperation, Snapshot};
use crate::stage::{MAX_STAGES, Operation, Side, Stage};
use crate::topology::Topology;

/// Longest difference between the clocks' offsets of two matched operations, in microseconds.
const MAX_OFFSET_US: i128 = 1_000_000;

/// Stages of a host that cover network and target.
const AWAY: [Stage; 2] = [Stage::Wait, Stage::Data];

/// Times of operations at both ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BothEnds {
    /// Operations of the target on the connections of the host.
    pub operations: u64,
    /// Mean time of an operation in the host, in microseconds.
    pub host_us: f64,
    /// Mean time of an operation in the network, in microseconds.
    pub network_us: f64,
    /// Mean time of an operation in the target, in microseconds.
    pub target_us: f64,
    /// Mean time in each stage of the target that took time, in microseconds.
    pub target_stages_us: Vec<(Stage, f64)>,
    /// Slow operations of the host.
    pub slow: u64,
    /// Operations that the target lists also.
    pub matched: u64,
    /// The causes.
    pub verdict: Verdict,
}

/// An operation at both ends.
struct Pair<'a> {
    host: &'a SlowOperation,
    target: &'a SlowOperation,
}

/// Mean time of an operation in each stage, in nanoseconds.
struct Means {
    host: [f64; MAX_STAGES],
    target: [f64; MAX_STAGES],
    network: f64,
}

/// Causes at the host.
const HOST_GROUPS: [(Kind, &[Stage], &str, &str); 3] = [
    (
        Kind::Caller,
        &[Stage::Inbox, Stage::Deliver, Stage::Wake],
        "this host",
        "fetch completions more often, and leave cores for the threads of this host",
    ),
    (
        Kind::Hot,
        &[Stage::Held],
        "queues",
        "use more lanes or a larger queue depth, or send fewer commands at once",
    ),
    (Kind::Host, &[Stage::Send], "this host", "check the socket buffers and the load of this host"),
];

/// Joins the last steps of a host and of its target, of which `target` has the connections of this host only.
pub fn join(host: &Snapshot, target: &Snapshot, options: Options) -> BothEnds {
    let (here, there) = (Window::new(host, options.window_s), Window::new(target, options.window_s));
    let operations = totals(&there.connections).count();
    let means = Means::new(&here.series, &there.connections, operations);
    let pairs = pairs(host, target, start_us(host, here.seconds));
    let slow = host.slow.iter().filter(|slow| slow.at_unix_us >= start_us(host, here.seconds)).count();
    let in_host = |at: usize| !AWAY.contains(&Side::Host.stages()[at]);
    let stages = Side::Target.stages().iter().zip(means.target);
    let stages = stages.filter(|(_, ns)| *ns > 0.0).map(|(stage, ns)| (*stage, finite(ns / 1000.0)));
    let verdict = if pairs.len() < MIN_SLOW {
        of_host(host, pairs.len(), options)
    } else {
        verdict(&here, &pairs, &means, target, &there.connections, options.quantile)
    };
    BothEnds {
        operations,
        host_us: (0..Side::Host.stages().len())
            .filter(|at| in_host(*at))
            .map(|at| means.host[at])
            .sum::<f64>()
            / 1000.0,
        network_us: means.network / 1000.0,
        target_us: means.target.iter().sum::<f64>() / 1000.0,
        target_stages_us: stages.collect(),
        slow: slow as u64,
        matched: pairs.len() as u64,
        verdict: Verdict { peers: peer_times(&there.connections), ..verdict },
    }
}

fn start_us(snapshot: &Snapshot, seconds: f64) -> u64 {
    snapshot.at_unix_ms.saturating_mul(1000).saturating_sub((seconds * 1e6) as u64)
}

/// Returns the verdict of the host alone.
fn of_host(host: &Snapshot, matched: usize, options: Options) -> Verdict {
    let mut verdict = explain(host, options);
    verdict.not_seen.push(NotSeen {
        what: format!(
            "the target's part of slow operations: it lists {matched} of them, and {MIN_SLOW} are needed"
        ),
        needs: format!("an Isolane target, and more load, slower operations, or {}", options.longer),
    });
    verdict
}

impl Means {
    fn new(series: &[Series], connections: &[Connection], operations: u64) -> Means {
        let mut host = [0.0; MAX_STAGES];
        let series = series.iter().filter(|at| at.side == Side::Host);
        let count: f64 = series.clone().map(|at| at.total.count() as f64).sum();
        for at in series {
            for (mean, stage) in host.iter_mut().zip(Side::Host.stages()) {
                *mean += at.stage_sum_ns(*stage) as f64 / count.max(1.0);
            }
        }
        let target = means(connections, operations);
        let away: f64 =
            AWAY.iter().filter_map(|stage| Side::Host.position_of(*stage)).map(|at| host[at]).sum();
        let network = if operations > 0 { (away - target.iter().sum::<f64>()).max(0.0) } else { 0.0 };
        Means { host, target, network }
    }
}

/// Name of a command at both ends.
type Key = (u16, u16, u16, Operation, u64, u64);

fn pairs<'a>(host: &'a Snapshot, target: &'a Snapshot, start_us: u64) -> Vec<Pair<'a>> {
    let queues: BTreeMap<u64, (u16, u16)> =
        target.numbers.connections.iter().map(|at| (at.id, (at.controller, at.queue))).collect();
    let key = |at: &SlowOperation, queue: (u16, u16)| -> Key {
        (queue.0, queue.1, at.cid, at.operation, at.lba, at.bytes)
    };
    let here = host.slow.iter().filter(|at| at.at_unix_us >= start_us);
    let here = unique(here.filter_map(|at| Some((key(at, at.host_queue()?), at))));
    let there = target.slow.iter().filter(|at| at.side == Side::Target);
    let there = unique(there.filter_map(|at| Some((key(at, *queues.get(&at.connection)?), at))));
    let both =
        here.iter().filter_map(|(key, host)| Some(Pair { host: (*host)?, target: (*there.get(key)?)? }));
    let mut pairs: Vec<Pair<'_>> = both.filter(|pair| pair.target.total_ns <= pair.host.total_ns).collect();
    let mut offsets: Vec<i128> = pairs.iter().map(Pair::offset_us).collect();
    offsets.sort_unstable();
    // A command ID that was used again is far from the offset of the clocks.
    if let Some(median) = offsets.get(offsets.len() / 2) {
        pairs.retain(|pair| (pair.offset_us() - median).abs() <= MAX_OFFSET_US);
    }
    pairs
}

/// Returns the operations by key, and `None` for a key of several.
fn unique<'a>(
    operations: impl Iterator<Item = (Key, &'a SlowOperation)>,
) -> BTreeMap<Key, Option<&'a SlowOperation>> {
    let mut found = BTreeMap::new();
    for (key, operation) in operations {
        found.entry(key).and_modify(|at| *at = None).or_insert(Some(operation));
    }
    found
}

impl Pair<'_> {
    fn offset_us(&self) -> i128 {
        i128::from(self.target.at_unix_us) - i128::from(self.host.at_unix_us)
    }

    fn in_stages(&self, stages: &[Stage]) -> f64 {
        let found = self.host.stages.iter().filter(|(stage, _)| stages.contains(stage));
        found.map(|(_, ns)| *ns as f64).sum()
    }

    fn network_ns(&self) -> f64 {
        (self.in_stages(&AWAY) - self.target.total_ns as f64).max(0.0)
    }

    /// Returns the time above the mean in stages of the host.
    fn lost_in(&self, stages: &[Stage], means: &Means) -> f64 {
        let mean = |stage: &Stage| Side::Host.position_of(*stage).map_or(0.0, |at| means.host[at]);
        stages.iter().map(|stage| (self.in_stages(&[*stage]) - mean(stage)).max(0.0)).sum()
    }
}

fn verdict(
    here: &Window<'_>,
    pairs: &[Pair<'_>],
    means: &Means,
    target: &Snapshot,
    connections: &[Connection],
    requested: f64,
) -> Verdict {
    let slow: Vec<Slow<'_>> = pairs.iter().map(|pair| Slow::new(pair.target, &means.target)).collect();
    let network: Vec<f64> = pairs.iter().map(|pair| (pair.network_ns() - means.network).max(0.0)).collect();
    let of_host: Vec<(f64, usize)> = HOST_GROUPS
        .iter()
        .enumerate()
        .map(|(at, (_, stages, ..))| (pairs.iter().map(|pair| pair.lost_in(stages, means)).sum(), at))
        .collect();
    let all_ns = slow.iter().flat_map(|slow| slow.lost_ns).sum::<f64>()
        + network.iter().sum::<f64>()
        + of_host.iter().map(|(ns, _)| ns).sum::<f64>();
    let mut findings = Vec::new();
    if all_ns >= MIN_LOSS_NS * pairs.len() as f64 {
        let topology = Topology::new(target);
        findings.extend(GROUPS.iter().filter_map(|group| find(group, &slow, all_ns, &topology, connections)));
        findings.extend(path(pairs, network.iter().sum::<f64>() / all_ns, means));
        findings.extend(of_host.iter().filter_map(|(ns, at)| in_host(*at, ns / all_ns, pairs, means)));
    }
    findings.sort_by(|left, right| right.share.total_cmp(&left.share));
    let mut all = Histogram::new(Resolution::Eight);
    here.series.iter().for_each(|at| all.merge(&at.total));
    let highest = 1.0 - MIN_TAIL / all.count().max(1) as f64;
    let quantile = requested.min(highest).max(MIN_QUANTILE);
    Verdict {
        version: VERSION,
        window_s: here.seconds,
        operations: all.count(),
        volumes: 1,
        streams: 0,
        queue_pairs: 0,
        tail: Tail {
            quantile,
            requested_quantile: requested,
            operations: (all.count() as f64 * (1.0 - quantile)).round() as u64,
            us: all.quantile(quantile) as f64 / 1000.0,
            median_us: all.quantile(0.5) as f64 / 1000.0,
            lost_us: finite(all_ns / 1000.0),
        },
        findings,
        cleared: Vec::new(),
        not_seen: vec![NotSeen {
            what: format!(
                "slow operations other than the {} that both ends list",
                show_count(pairs.len() as u64)
            ),
            needs: String::from("`isolane explain` on the machine of the target"),
        }],
        peers: Vec::new(),
        measured: None,
    }
}

/// Returns the finding of the network, if it has enough of the loss.
fn path(pairs: &[Pair<'_>], share: f64, means: &Means) -> Option<Finding> {
    let worst = pairs.iter().map(Pair::network_ns).fold(0.0, f64::max);
    let text = format!(
        "commands spent up to {} between the two ends, on average {}",
        show_ns(worst),
        show_ns(means.network),
    );
    let evidence =
        Evidence::measured("time between the ends", worst / 1000.0, "us", "stages of both ends", text)
            .compared_to(means.network / 1000.0);
    let remedy = "compare with `ping`, and check both ends with `isolane doctor`: interrupts of the network cards, busy \
                  cores, and queues in between";
    finding(Kind::Path, String::from("network"), Some(Stage::Wait), share, evidence, remedy)
}

/// Returns the finding of stages of the host, if they have enough of the loss.
fn in_host(at: usize, share: f64, pairs: &[Pair<'_>], means: &Means) -> Option<Finding> {
    let (kind, stages, name, remedy) = HOST_GROUPS[at];
    let lost = |stage: &Stage| -> f64 { pairs.iter().map(|pair| pair.lost_in(&[*stage], means)).sum() };
    let stage = stages.iter().copied().max_by(|left, right| lost(left).total_cmp(&lost(right)))?;
    let worst = pairs.iter().map(|pair| pair.in_stages(&[stage])).fold(0.0, f64::max);
    let text = format!("operations spent up to {} in stage {}", show_ns(worst), stage.name());
    let evidence = Evidence::measured("time in the host", worst / 1000.0, "us", "stages", text);
    finding(kind, name.to_owned(), Some(stage), share, evidence, remedy)
}

fn finding(
    kind: Kind,
    name: String,
    stage: Option<Stage>,
    share: f64,
    evidence: Evidence,
    remedy: &str,
) -> Option<Finding> {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    (share >= MIN_SHARE).then(|| Finding {
        kind,
        name,
        stage,
        operation: None,
        cause: None,
        share,
        since: None,
        evidence: vec![evidence],
        neighbors: Vec::new(),
        remedy: remedy.to_owned(),
    })
}

#[cfg(test)]
#[path = "both_ends_tests.rs"]
mod tests;
