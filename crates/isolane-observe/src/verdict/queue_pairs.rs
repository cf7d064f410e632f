//! Queue pairs of verbs: peers without a receive, and slow lanes.

use std::collections::{BTreeMap, BTreeSet};

use super::MIN_LOSS_NS;
use super::case::{Case, MIN_SHARE};
use super::document::{Evidence, Finding, Grade, Kind, Neighbor};
use super::hosts::loss_of;
use super::ledger::Part;
use super::units::{show_count, show_ns};
use crate::histogram::Histogram;
use crate::snapshot::Connection;
use crate::stage::{Side, Stage};

/// Probes that a lane needs for a comparison.
const MIN_PROBES: u64 = 3;
/// Least ratio of the round trip of a slow lane to the median of the other lanes, and to the next slowest one.
const MIN_RATIO: f64 = 2.0;
const MIN_RATIO_TO_NEXT: f64 = 1.5;
/// Most queue pairs that a finding names.
const MAX_NAMED: usize = 4;

/// Reports peers that had no receive for a request.
pub(super) fn find_not_ready(case: &mut Case<'_>) {
    let stage = Stage::ReceiverNotReady;
    for (peer, volumes) in peers(case, stage) {
        let chosen = |part: &Part, at: Stage| at == stage && is_of(part, &volumes);
        let Some(share) = case.claim(1.0, chosen) else { continue };
        let (count, ns, longest) = waits(case, &volumes, stage);
        let text = format!(
            "{} requests waited {} because it had no receive, one of them up to {}",
            show_count(count),
            show_ns(ns),
            show_ns(longest)
        );
        let evidence = Evidence::measured("wait for a receive", ns / 1e6, "ms", "stages", text);
        let remedy = "post receives earlier or more of them in the program there".to_owned();
        let found = Found { kind: Kind::Host, name: peer, stage, cause: Some("receiver-not-ready"), remedy };
        push(case, found, share, evidence, &volumes);
    }
}

/// Reports lanes that answer later than the other lanes of their queue pair, also if they always do.
pub(super) fn find_slow_lanes(case: &mut Case<'_>) {
    let mut lanes: BTreeMap<u32, Vec<Connection>> = BTreeMap::new();
    for connection in &case.window.connections {
        if let Some(volume) = connection.queue_pair {
            lanes.entry(volume).or_default().push(connection.clone());
        }
    }
    for (volume, lanes) in lanes {
        let Some(slow) = slow_lane(&lanes) else { continue };
        // Lost segments are a finding of the network.
        if slow.lane.tcp.is_some_and(|tcp| loss_of(tcp).is_some()) {
            continue;
        }
        let excess_ns = slow.round_trip_ns - slow.others_ns;
        let parts = case.ledger.parts.iter().filter(|part| part.side == Side::Verbs && part.volume == volume);
        // If each operation waits for the lane, none is above the median by that.
        let late_ns = parts.map(|part| part.tail).sum::<f64>() * excess_ns;
        let late_share = late_ns / (late_ns + case.ledger.lost_ns).max(1.0);
        let claimed = case.claim(1.0, |part, at| at == Stage::Ack && part.volume == volume);
        let share = claimed.unwrap_or(0.0).max(late_share);
        if share < MIN_SHARE {
            continue;
        }
        let text = format!(
            "it answers probes in {}, the other {} lanes in {}",
            show_ns(slow.round_trip_ns),
            show_count(lanes.len() as u64 - 1),
            show_ns(slow.others_ns)
        );
        let evidence =
            Evidence::measured("round trip of probes", slow.round_trip_ns / 1e3, "us", "probes", text)
                .compared_to(slow.others_ns / 1e3);
        let Connection { queue, local, peer, .. } = slow.lane;
        let name = format!("lane {queue} of {} ({local} to {peer})", case.topology.name(volume));
        let remedy = format!("check the path between {local} and {peer}, or use fewer lanes");
        let found = Found { kind: Kind::Path, name, stage: Stage::Ack, cause: Some("lane"), remedy };
        push(case, found, share, evidence, &BTreeSet::from([volume]));
    }
}

/// Reports the waits that no other rule explains.
pub(super) fn find_others(case: &mut Case<'_>) {
    for (stage, text, remedy) in OTHERS {
        for (peer, volumes) in peers(case, stage) {
            let chosen = |part: &Part, at: Stage| at == stage && is_of(part, &volumes);
            let Some(share) = case.claim(1.0, chosen) else { continue };
            let (count, ns, longest) = waits(case, &volumes, stage);
            let text = format!("{} {text}, up to {}", show_count(count), show_ns(longest));
            let evidence = Evidence::measured(stage.name(), ns / 1e6, "ms", "stages", text);
            let (kind, cause) = match stage {
                Stage::Post => (Kind::Hot, Some("queue depth")),
                _ => (Kind::Path, None),
            };
            let found = Found { kind, name: peer, stage, cause, remedy: remedy.to_owned() };
            push(case, found, share, evidence, &volumes);
        }
    }
}

/// Stages without a closer cause, their evidence, and the next step.
const OTHERS: [(Stage, &str, &str); 3] = [
    (
        Stage::Ack,
        "requests waited for the network, or for the program there",
        "run `isolane explain` on the machine of the peer; check that its program polls",
    ),
    (
        Stage::Send,
        "requests waited until the kernel accepted their bytes",
        "check that the program there polls; use more lanes",
    ),
    (
        Stage::Post,
        "requests waited for the ones before them",
        "post fewer requests at once, or use more queue pairs",
    ),
];

/// A cause, and what it is called.
struct Found {
    kind: Kind,
    name: String,
    stage: Stage,
    cause: Option<&'static str>,
    remedy: String,
}

fn push(case: &mut Case<'_>, found: Found, share: f64, evidence: Evidence, volumes: &BTreeSet<u32>) {
    let Found { kind, name, stage, cause, remedy } = found;
    let since = case.since(&case.points(|series| volumes.contains(&series.volume)));
    let neighbor = |volume: &u32| Neighbor {
        kind: "verbs".to_owned(),
        name: case.topology.name(*volume),
        grade: Grade::Measured,
    };
    let neighbors = volumes.iter().take(MAX_NAMED).map(neighbor).collect();
    let (stage, operation, evidence) = (Some(stage), None, vec![evidence]);
    let cause = cause.map(str::to_owned);
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

/// Returns the peers of queue pairs that lost enough in a stage, and these queue pairs.
fn peers(case: &Case<'_>, stage: Stage) -> BTreeMap<String, BTreeSet<u32>> {
    let verbs: BTreeSet<u32> = case
        .ledger
        .parts
        .iter()
        .filter(|part| part.side == Side::Verbs)
        .filter(|part| part.losses().any(|(at, ns)| at == stage && ns > 0.0))
        .map(|part| part.volume)
        .collect();
    let connections = case.snapshot.numbers.connections.iter();
    let hosts: BTreeMap<u32, &str> =
        connections.filter_map(|at| Some((at.queue_pair?, at.host.as_str()))).collect();
    let mut peers: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for volume in verbs {
        let peer = hosts.get(&volume).map_or_else(|| case.topology.name(volume), |host| (*host).to_owned());
        peers.entry(peer).or_default().insert(volume);
    }
    peers
}

fn is_of(part: &Part, volumes: &BTreeSet<u32>) -> bool {
    part.side == Side::Verbs && volumes.contains(&part.volume)
}

/// Returns the number of requests that waited in a stage, the sum of their waits, and a bound of the longest one, in
/// nanoseconds.
fn waits(case: &Case<'_>, volumes: &BTreeSet<u32>, stage: Stage) -> (u64, f64, f64) {
    let series = volumes.iter().flat_map(|volume| case.series(*volume));
    let times = series.filter(|series| series.side == Side::Verbs).filter_map(|series| series.stage(stage));
    times.fold((0, 0.0, 0.0), |(count, ns, longest), times| {
        let longest = f64::max(longest, times.max_bound() as f64);
        (times.count().saturating_add(count), ns + times.sum_ns() as f64, longest)
    })
}

/// A lane that answers late.
struct SlowLane<'a> {
    lane: &'a Connection,
    round_trip_ns: f64,
    /// Median of the other lanes.
    others_ns: f64,
}

/// Returns the slowest lane if it stands out.
fn slow_lane(lanes: &[Connection]) -> Option<SlowLane<'_>> {
    let median = |times: &Histogram| times.quantile(0.5) as f64;
    let probed = lanes.iter().filter_map(|lane| {
        let times = lane.peer_times.as_ref().filter(|times| times.count() >= MIN_PROBES)?;
        Some((lane, median(times)))
    });
    let mut probed: Vec<(&Connection, f64)> = probed.collect();
    probed.sort_by(|left, right| left.1.total_cmp(&right.1));
    let (lane, round_trip_ns) = probed.pop()?;
    let next_ns = probed.last()?.1;
    let others_ns = probed[probed.len() / 2].1;
    let is_slow = round_trip_ns >= others_ns * MIN_RATIO
        && round_trip_ns >= next_ns * MIN_RATIO_TO_NEXT
        && round_trip_ns - others_ns >= MIN_LOSS_NS;
    is_slow.then_some(SlowLane { lane, round_trip_ns, others_ns })
}

#[cfg(test)]
mod tests {
    use super::super::{Options, explain, to_text};
    use super::*;
    use crate::cells::{SeriesCells, StageTimes, set_stage};
    use crate::histogram::Resolution;
    use crate::snapshot::{SeriesKey, Snapshot, Volume};
    use crate::stage::{Operation, SizeClass};

    /// Returns lanes of the first queue pair with these round trips and numbers of probes.
    fn lanes(round_trips: &[(u64, u64)]) -> Vec<Connection> {
        let lane = |(index, (us, count)): (usize, &(u64, u64))| {
            let mut times = Histogram::new(Resolution::Four);
            times.record(us * 1000, *count);
            let (id, queue) = (index as u64, index as u16);
            let host = "10.0.0.1".to_owned();
            Connection {
                id,
                queue,
                host,
                queue_pair: Some(0),
                peer_times: Some(times),
                ..Connection::default()
            }
        };
        round_trips.iter().enumerate().map(lane).collect()
    }

    #[test]
    fn only_one_lane_can_be_slow() {
        let index = |round_trips: &[(u64, u64)]| slow_lane(&lanes(round_trips)).map(|slow| slow.lane.queue);
        assert_eq!(index(&[(100, 9), (40_000, 9), (110, 9), (90, 9)]), Some(1));
        assert_eq!(index(&[(100, 9), (40_000, 9)]), Some(1));
        assert_eq!(index(&[(100, 9), (40_000, 2), (110, 9)]), None, "too few probes");
        assert_eq!(index(&[(10, 9), (40, 9), (11, 9)]), None, "less than 50 us more");
        assert_eq!(index(&[(100, 9), (40_000, 9), (41_000, 9)]), None, "two are slow");
        assert_eq!(index(&[(40_000, 9)]), None, "no other lane");
        assert_eq!(index(&[]), None);
    }

    /// Returns a program with 2000 fast requests, and others that took 50 ms longer in a stage.
    fn program(slow: (Stage, u64), lanes: Vec<Connection>) -> Snapshot {
        let cells = SeriesCells::default();
        for (stage, ns, count) in [(Stage::Ack, 100_000, 2000), (slow.0, 50_000_000, slow.1)] {
            let mut times = StageTimes::default();
            set_stage(&mut times, Side::Verbs, stage, ns);
            cells.record(&times, count);
        }
        let (operation, size) = (Operation::Send, SizeClass::Small);
        let key = SeriesKey { side: Side::Verbs, volume: 0, core: 0, operation, size };
        let name = "queue pair 7 to 10.0.0.1".to_owned();
        let mut snapshot =
            Snapshot { volumes: vec![Volume { name, ..Volume::default() }], ..Snapshot::default() };
        snapshot.program.uptime_ms = 10_000;
        snapshot.numbers.series.extend(cells.copy(key));
        snapshot.numbers.connections = lanes;
        snapshot
    }

    #[test]
    fn findings_name_peer_and_lane() {
        let alike = [(100, 9), (110, 9), (90, 9)];
        let one_slow = [(100, 9), (50_000, 9), (90, 9)];
        let cases = [
            (Stage::ReceiverNotReady, 20, &alike, Kind::Host, Some("receiver-not-ready"), "10.0.0.1"),
            (Stage::Ack, 20, &alike, Kind::Path, None, "10.0.0.1"),
            (
                Stage::Ack,
                20,
                &one_slow,
                Kind::Path,
                Some("lane"),
                "lane 1 of queue pair 7 to 10.0.0.1 ( to )",
            ),
            (Stage::Post, 20, &alike, Kind::Hot, Some("queue depth"), "10.0.0.1"),
            // Each request waits for the lane.
            (Stage::Ack, 0, &one_slow, Kind::Path, Some("lane"), "lane 1 of queue pair 7 to 10.0.0.1 ( to )"),
        ];
        for (stage, count, round_trips, kind, cause, name) in cases {
            let verdict = explain(&program((stage, count), lanes(round_trips)), Options::default());
            let found = &verdict.findings[0];
            let facts = (found.kind, found.cause.as_deref(), &*found.name, found.stage);
            assert_eq!(facts, (kind, cause, name, Some(stage)), "{verdict:#?}");
            assert_eq!((verdict.queue_pairs, verdict.volumes), (1, 0));
            assert!(to_text(&verdict).contains(" operations on 1 queue pair: "), "{}", to_text(&verdict));
        }
        let verdict = explain(&program((Stage::Ack, 0), lanes(&alike)), Options::default());
        assert_eq!(verdict.findings, [], "nothing is slow");
    }
}
