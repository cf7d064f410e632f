//! Slow, hot, and shared devices: members of a group that differ from the others.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, MIN_CONCENTRATION, stands_out};
use super::disks;
use super::document::{Evidence, Finding, Grade, Kind, Neighbor};
use super::ledger::{Part, is_at_caller, is_at_volume};
use super::measured;
use super::units::{show_digits, show_ns, show_percent, show_quantile};
use crate::histogram::{Histogram, Resolution};
use crate::peers::compare::{Criterion, Outlier, compare, ratios, work_of};
use crate::snapshot::Series;
use crate::stage::{Operation, SizeClass, Stage};
use crate::topology::Group;

/// Most work, in relation to the other members, of a member that counts as slow.
const MAX_EQUAL_WORK: f64 = 1.25;
/// Least work, in relation to the other members, of a member whose load alone causes the tail.
const MIN_HOT_WORK: f64 = 2.0;
/// Least part of the loss of such a member.
const MIN_HOT_COVERAGE: f64 = 0.5;
/// Conditions, from the most to the least frequent operations. The last two find stalls with fewer operations.
const CRITERIA: [Criterion; 5] = [
    Criterion::MEDIAN,
    Criterion::TAIL,
    Criterion::STALLS,
    Criterion { quantile: 0.998, min_operations: 1000, ..Criterion::STALLS },
    Criterion { quantile: 0.995, min_operations: 400, ..Criterion::STALLS },
];
/// Highest probability with which slow operations of any member by chance are of this one.
const MAX_CHANCE: f64 = 1e-6;
/// Most outliers of a group that are reported.
const MAX_OUTLIERS: usize = 8;
/// Operations of the tail that a volume without peers needs.
const MIN_TAIL_ALONE: f64 = 20.0;

/// Reports members that are slower than the others of their group.
pub(super) fn find(case: &mut Case<'_>) {
    report_background(case);
    for group in case.topology.groups(&case.tops) {
        for suspect in suspects(case, &group) {
            report_suspect(case, &group, &suspect);
        }
    }
}

/// Reports volumes with more work than their peers, and volumes without peers.
pub(super) fn find_others(case: &mut Case<'_>) {
    let groups = case.topology.groups(&case.tops);
    for group in groups.iter().filter(|group| group.parent.is_none()) {
        find_hot(case, group);
    }
    let with_peers: BTreeSet<u32> = groups
        .iter()
        .filter(|group| group.parent.is_none())
        .flat_map(|group| &group.members)
        .flat_map(|member| member.volumes.clone())
        .collect();
    find_alone(case, &with_peers);
}

/// A member that is slower than the others.
struct Suspect {
    outlier: Outlier,
    criterion: Criterion,
    /// Operations in which it is slower, and the largest number of its operations in one of them.
    operations: BTreeSet<Operation>,
    weight: u64,
    /// Its work in relation to the others.
    work: f64,
}

/// Latencies of all members for one operation and size class.
struct Times {
    operation: Operation,
    /// In the stage of the volume; for members of a volume, their totals.
    volume: Vec<Option<Histogram>>,
    /// Totals, which have narrower cells.
    total: Vec<Option<Histogram>>,
}

fn suspects(case: &Case<'_>, group: &Group) -> Vec<Suspect> {
    let work = relative_work(case, group);
    let mut found: BTreeMap<usize, Suspect> = BTreeMap::new();
    for times in all_times(case, group) {
        for criterion in CRITERIA {
            let outliers = outliers(&times, criterion);
            let is_slow = |at: &&Outlier| criterion.quantile < 0.9 || is_significant(&times, at, &outliers);
            for outlier in outliers.iter().filter(is_slow).copied() {
                let member = outlier.member;
                let weight = times.total[member].as_ref().map_or(0, Histogram::count);
                let work = work[member].unwrap_or(1.0);
                let operations = BTreeSet::from([times.operation]);
                add_suspect(&mut found, Suspect { outlier, criterion, operations, weight, work });
            }
        }
    }
    let mut found: Vec<Suspect> = found.into_values().collect();
    found.sort_by(|left, right| right.outlier.ratio.total_cmp(&left.outlier.ratio));
    found.truncate(MAX_OUTLIERS);
    found
}

/// Returns the work of each member in relation to the others.
fn relative_work(case: &Case<'_>, group: &Group) -> Vec<Option<f64>> {
    let present = group.members.iter().map(|at| at.busy.is_none().then(|| work(case, &at.volumes)));
    ratios(&present.collect::<Vec<_>>())
}

/// Adds a suspect. The lowest quantile at which a member is slow describes it best, then the most operations.
fn add_suspect(found: &mut BTreeMap<usize, Suspect>, suspect: Suspect) {
    let Some(known) = found.get_mut(&suspect.outlier.member) else {
        found.insert(suspect.outlier.member, suspect);
        return;
    };
    let operations: BTreeSet<Operation> = known.operations.union(&suspect.operations).copied().collect();
    let order = |suspect: &Suspect| (suspect.criterion.quantile, std::cmp::Reverse(suspect.weight));
    if order(&suspect) < order(known) {
        *known = suspect;
    }
    known.operations = operations;
}

/// Returns `true` if the slow operations of this member and of all but outliers are hardly on this one by
/// chance.
fn is_significant(times: &Times, outlier: &Outlier, outliers: &[Outlier]) -> bool {
    let limit_ns = outlier.others_ns * 2.0;
    let count = |times: &Histogram| {
        let middle = |cell: usize| times.resolution().middle_of(cell) as f64;
        let slow = times.cells().filter(|(cell, _)| middle(*cell) > limit_ns).map(|(_, count)| count as f64);
        (slow.sum::<f64>(), times.count() as f64)
    };
    let is_other = |member: usize| member != outlier.member && outliers.iter().any(|at| at.member == member);
    let counted = times.volume.iter().enumerate().filter(|(member, _)| !is_other(*member));
    let counts = counted.filter_map(|(_, times)| times.as_ref()).map(count);
    let (slow, operations) = counts.fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
    let Some((own, own_operations)) = times.volume[outlier.member].as_ref().map(count) else { return false };
    chance(own, slow, own_operations / operations.max(1.0)) <= MAX_CHANCE
}

/// Returns an upper bound of the probability that at least `own` of `all` independent events have a property of
/// probability `part` (Chernoff).
fn chance(own: f64, all: f64, part: f64) -> f64 {
    let found = own / all.max(1.0);
    if found <= part || part <= 0.0 {
        return 1.0;
    }
    let others = if found < 1.0 { (1.0 - found) * ((1.0 - found) / (1.0 - part)).ln() } else { 0.0 };
    (-all * (found * (found / part).ln() + others)).exp()
}

/// Returns the outliers in the stage of the volume, with the ratio of the totals if these agree.
fn outliers(times: &Times, criterion: Criterion) -> Vec<Outlier> {
    let of = |times: &[Option<Histogram>]| {
        let quantiles = times.iter().map(|times| criterion.quantile_of(times.as_ref()?));
        compare(&quantiles.collect::<Vec<_>>(), criterion.ratio)
    };
    let precise = of(&times.total);
    let precise =
        |outlier: Outlier| precise.iter().find(|at| at.member == outlier.member).copied().unwrap_or(outlier);
    of(&times.volume).into_iter().take(MAX_OUTLIERS).map(precise).collect()
}

fn work(case: &Case<'_>, volumes: &[u32]) -> f64 {
    let series = volumes.iter().flat_map(|volume| case.series(numbered(case, *volume)));
    series.map(|at| work_of(at.total.count(), at.bytes)).sum()
}

/// Returns the volume itself, or the first one in its chain that has numbers.
fn numbered(case: &Case<'_>, volume: u32) -> u32 {
    let chain = case.topology.chain(volume);
    chain.into_iter().find(|at| case.series(*at).next().is_some()).unwrap_or(volume)
}

fn all_times(case: &Case<'_>, group: &Group) -> Vec<Times> {
    let mut classes: BTreeSet<(Operation, SizeClass)> = BTreeSet::new();
    for volume in group.members.iter().flat_map(|member| &member.volumes) {
        classes.extend(case.series(numbered(case, *volume)).map(|at| (at.operation, at.size)));
    }
    let stages = stages(case, group);
    let of_class =
        |(operation, size)| stages.iter().map(move |stage| times_of(case, group, *stage, (operation, size)));
    classes.into_iter().flat_map(of_class).collect()
}

fn times_of(
    case: &Case<'_>,
    group: &Group,
    stage: Option<Stage>,
    (operation, size): (Operation, SizeClass),
) -> Times {
    let of_member = |value: &dyn Fn(&Series) -> Histogram, member: usize| {
        let member = &group.members[member];
        if member.busy.is_some() {
            return None;
        }
        let series = member.volumes.iter().flat_map(|volume| case.series(numbered(case, *volume)));
        let series = series.filter(|at| at.operation == operation && at.size == size);
        series.map(value).reduce(|mut sum, more| {
            sum.merge(&more);
            sum
        })
    };
    let members = 0..group.members.len();
    let total: Vec<_> = members.clone().map(|at| of_member(&|series| series.total.clone(), at)).collect();
    let volume = match stage {
        Some(stage) => members.map(|at| of_member(&|series| stage_times(series, stage), at)).collect(),
        None => total.clone(),
    };
    Times { operation, volume, total }
}

/// Returns the stages in which the volumes of a group lost time; none for members of a volume, which have only totals.
fn stages(case: &Case<'_>, group: &Group) -> Vec<Option<Stage>> {
    let volumes: BTreeSet<u32> = group.members.iter().flat_map(|member| member.volumes.clone()).collect();
    let has_stages = volumes.iter().flat_map(|at| case.series(*at)).any(|at| !at.stages.is_empty());
    if group.parent.is_some() || !has_stages {
        return vec![None];
    }
    let parts = case.ledger.parts.iter().filter(|part| volumes.contains(&part.volume));
    let lost = parts.flat_map(Part::losses).filter(|(stage, ns)| is_at_volume(*stage) && *ns > 0.0);
    let stages: BTreeSet<Stage> = lost.map(|(stage, _)| stage).collect();
    stages.into_iter().map(Some).collect()
}

/// Returns the times of a stage, with the operations that spent no time in it.
fn stage_times(series: &Series, stage: Stage) -> Histogram {
    let mut times = series.stage(stage).cloned().unwrap_or(Histogram::new(Resolution::Four));
    let zeros = series.total.count().saturating_sub(times.count());
    times.record(0, zeros);
    times
}

fn report_suspect(case: &mut Case<'_>, group: &Group, suspect: &Suspect) {
    let member = &group.members[suspect.outlier.member];
    let tops: BTreeSet<u32> = member.volumes.iter().map(|id| case.topology.top_of(*id)).collect();
    let fraction = if group.parent.is_some() { coverage(case, group, suspect) } else { 1.0 };
    let operations = suspect.operations.clone();
    let is_nested = group.parent.is_some();
    let chosen = move |part: &Part, stage: Stage| {
        is_at_volume(stage)
            && tops.contains(&part.volume)
            && (operations.contains(&part.operation) || !is_nested && part.operation != Operation::Flush)
    };
    let stage = case.ledger.worst_stage(&chosen);
    let only = suspect.operations.iter().next().copied().filter(|_| suspect.operations.len() == 1);
    let Some(share) = case.claim(fraction, &chosen) else { return };
    let volumes: BTreeSet<u32> = member.volumes.iter().map(|id| numbered(case, *id)).collect();
    case.named.extend(&member.volumes);
    let points = case.points(|series| volumes.contains(&series.volume));
    let since = case.since(&points);
    let others = disks::other_users(case, &volumes, &points);
    let kind = match &others {
        Some(_) => Kind::SharedDevice,
        None if suspect.work > MAX_EQUAL_WORK => Kind::Hot,
        None => Kind::Device,
    };
    let mut evidence = vec![ratio_evidence(group, suspect)];
    evidence.extend(last_evidence(case, group, suspect));
    evidence.extend(load_evidence(suspect, kind));
    let mut neighbors = disks::line_neighbors(case, &volumes, &points);
    evidence.extend(neighbors.iter().filter_map(disks::line_evidence));
    let injected = volumes.iter().next().and_then(|id| case.topology.injected(*id));
    if let Some(others) = others {
        evidence.push(others.evidence);
        neighbors.extend(others.neighbors);
        measured::add(measured::of_disk_users(case, &volumes), &mut evidence, &mut neighbors);
    }
    measured::add(measured::of_devices(case, &volumes), &mut evidence, &mut neighbors);
    neighbors.extend(injected.iter().map(|name| Neighbor {
        kind: "filter".to_owned(),
        name: name.clone(),
        grade: Grade::Measured,
    }));
    let (cause, remedy) = cause_and_remedy(case, kind, &volumes, injected);
    let name = device_name(case, &member.name, &volumes);
    case.findings.push(Finding {
        kind,
        name,
        stage,
        operation: only,
        cause,
        share,
        since,
        evidence,
        neighbors,
        remedy,
    });
}

/// Returns the name of a member with the path of its device.
fn device_name(case: &Case<'_>, name: &str, volumes: &BTreeSet<u32>) -> String {
    let path = volumes.iter().next().and_then(|id| case.topology.path(*id));
    match path.filter(|path| path.starts_with("/dev/") && !name.contains(path.as_str())) {
        Some(path) => format!("{name} ({path})"),
        None => name.to_owned(),
    }
}

/// Returns the part of the loss of all members that one member covers.
fn coverage(case: &Case<'_>, group: &Group, suspect: &Suspect) -> f64 {
    let limit = suspect.outlier.others_ns * MAX_EQUAL_WORK;
    let excess = |volumes: &[u32]| -> f64 {
        let series = volumes.iter().flat_map(|id| case.series(numbered(case, *id)));
        let series = series.filter(|at| suspect.operations.contains(&at.operation));
        series
            .flat_map(|at| at.total.cells())
            .map(|(cell, count)| count as f64 * (Resolution::Eight.middle_of(cell) as f64 - limit).max(0.0))
            .sum()
    };
    let all: f64 = group.members.iter().map(|member| excess(&member.volumes)).sum();
    if all > 0.0 { excess(&group.members[suspect.outlier.member].volumes) / all } else { 0.0 }
}

fn ratio_evidence(group: &Group, suspect: &Suspect) -> Evidence {
    let Outlier { value_ns, others_ns, ratio, spread: (low, high), .. } = suspect.outlier;
    let quantile = show_quantile(suspect.criterion.quantile);
    let peers = group.members.iter().filter(|member| member.busy.is_none()).count().saturating_sub(1);
    let alike = if high / low.max(f64::MIN_POSITIVE) <= 2.0 { "which are alike" } else { "which differ" };
    let text = format!(
        "{quantile} of {} is {}x the {quantile} of its {peers} peers, {alike} ({low:.1}-{high:.1}x)",
        show_ns(value_ns),
        show_digits(ratio),
    );
    Evidence::measured(&quantile, value_ns / 1000.0, "us", "latency", text).compared_to(others_ns / 1000.0)
}

fn load_evidence(suspect: &Suspect, kind: Kind) -> Option<Evidence> {
    let work = suspect.work;
    let text = match kind {
        Kind::Hot => format!("it gets {}x the work of its peers", show_digits(work)),
        _ if work >= 0.8 => format!("it has the same load as its peers ({work:.2}x)"),
        _ => format!("it has less load than its peers ({work:.2}x)"),
    };
    let evidence = Evidence::measured("load", work, "x", "operations and bytes", text);
    work.is_finite().then(|| evidence.compared_to(1.0))
}

/// Returns how often the member completed last, if it did in most operations that have several parts.
fn last_evidence(case: &Case<'_>, group: &Group, suspect: &Suspect) -> Option<Evidence> {
    group.parent?;
    let last = |volumes: &[u32]| -> (u64, u64) {
        let series = volumes.iter().flat_map(|id| case.series(numbered(case, *id)));
        series.fold((0, 0), |(last, by), at| (at.last.saturating_add(last), at.last_by_ns.saturating_add(by)))
    };
    let all: u64 =
        group.members.iter().fold(0, |sum: u64, member| sum.saturating_add(last(&member.volumes).0));
    let (own, by_ns) = last(&group.members[suspect.outlier.member].volumes);
    let part = own as f64 / all.max(1) as f64;
    let mean = show_ns(by_ns as f64 / own.max(1) as f64);
    let text = format!("it completes last in {} of the writes, {mean} after the others", show_percent(part));
    (part >= 0.5).then(|| Evidence::measured("last", part * 100.0, "%", "order of completion", text))
}

/// Returns the cause of a finding and its remedy. The cause is the filter that injects the delay, if there is one.
fn cause_and_remedy(
    case: &Case<'_>,
    kind: Kind,
    volumes: &BTreeSet<u32>,
    injected: Option<String>,
) -> (Option<String>, String) {
    let other = match kind {
        Kind::Hot => Some(("queue depth".to_owned(), remedy(case, kind, volumes))),
        Kind::Device => measured::delaying_handler(case, volumes).map(|handler| {
            let remedy = format!("unload the driver of {handler}, or move its interrupts to another core");
            ("interrupt".to_owned(), remedy)
        }),
        _ => None,
    };
    let found = injected.map(|filter| (filter.clone(), format!("remove the filter {filter}"))).or(other);
    match found {
        Some((cause, remedy)) => (Some(cause), remedy),
        None => (None, remedy(case, kind, volumes)),
    }
}

fn remedy(case: &Case<'_>, kind: Kind, volumes: &BTreeSet<u32>) -> String {
    let path = volumes.iter().find_map(|id| case.topology.path(*id));
    let find = |path: &str| format!("to find the drive: isolane light {path} locate");
    match (kind, path) {
        (Kind::Hot, _) => "spread its load over more volumes".to_owned(),
        (Kind::SharedDevice, _) => "move the other I/O to another disk".to_owned(),
        (_, Some(path)) if path.starts_with("/dev/nvme") => {
            format!("check it: nvme smart-log {path}; {}", find(&path))
        }
        (_, Some(path)) if path.starts_with("/dev/") => {
            format!("check it: smartctl -a {path}; {}", find(&path))
        }
        _ => "check the device, its link, and its temperature".to_owned(),
    }
}

/// Reports a volume that gets much more work than its peers and has most of the tail.
fn find_hot(case: &mut Case<'_>, group: &Group) {
    if group.members.len() < 3 {
        return;
    }
    let works = relative_work(case, group);
    let known = works.iter().enumerate().filter_map(|(at, work)| Some((at, (*work)?)));
    let most = known.max_by(|left, right| left.1.total_cmp(&right.1));
    let Some((busiest, relative)) = most.filter(|at| at.1 >= MIN_HOT_WORK && at.1.is_finite()) else {
        return;
    };
    let member = &group.members[busiest];
    let volumes: BTreeSet<u32> = member.volumes.iter().copied().collect();
    let owned = volumes.clone();
    let chosen = move |part: &Part, stage| owned.contains(&part.volume) && !is_at_caller(stage);
    let equal = 1.0 / group.members.len() as f64;
    let covered = case.ledger.lost(&chosen) / case.ledger.lost(|_, _| true).max(1.0);
    if covered <= MIN_HOT_COVERAGE || covered < equal * MIN_CONCENTRATION {
        return;
    }
    let stage = case.ledger.worst_stage(&chosen);
    let Some(share) = case.claim(1.0, &chosen) else { return };
    let points = case.points(|series| volumes.contains(&series.volume));
    let text =
        format!("it gets {}x the work of its peers, and is not slow for that load", show_digits(relative));
    let evidence = Evidence::measured("load", relative, "x", "operations and bytes", text).compared_to(1.0);
    case.findings.push(Finding {
        kind: Kind::Hot,
        name: member.name.clone(),
        stage,
        operation: None,
        cause: Some("queue depth".to_owned()),
        share,
        since: case.since(&points),
        evidence: vec![evidence],
        neighbors: Vec::new(),
        remedy: remedy(case, Kind::Hot, &volumes),
    });
}

/// Reports a volume without peers that has most of the loss at volumes.
fn find_alone(case: &mut Case<'_>, with_peers: &BTreeSet<u32>) {
    let mut by_volume: BTreeMap<u32, (f64, f64, f64)> = BTreeMap::new();
    for part in &case.ledger.parts {
        let lost: f64 = part.losses().filter(|(stage, _)| is_at_volume(*stage)).map(|(_, ns)| ns).sum();
        let sum = by_volume.entry(part.volume).or_default();
        *sum = (sum.0 + lost, sum.1 + part.operations, sum.2 + part.tail);
    }
    let worst = by_volume.iter().max_by(|left, right| left.1.0.total_cmp(&right.1.0));
    let Some((&volume, &(lost, operations, tail))) = worst else { return };
    let all_lost: f64 = by_volume.values().map(|at| at.0).sum();
    let (of_loss, of_operations) =
        (lost / all_lost.max(1.0), operations / case.ledger.operations.max(1) as f64);
    if with_peers.contains(&volume) || tail < MIN_TAIL_ALONE || !stands_out(of_loss, of_operations) {
        return;
    }
    let chosen = move |part: &Part, stage: Stage| is_at_volume(stage) && part.volume == volume;
    report_alone(case, volume, (of_loss, of_operations), chosen);
}

fn report_alone(
    case: &mut Case<'_>,
    volume: u32,
    (of_loss, of_operations): (f64, f64),
    chosen: impl Fn(&Part, Stage) -> bool,
) {
    let stage = case.ledger.worst_stage(&chosen);
    let operation = case.ledger.only_operation(|part| part.volume == volume);
    let Some(share) = case.claim(1.0, chosen) else { return };
    let volumes = BTreeSet::from([volume]);
    case.named.insert(volume);
    let points = case.points(|series| series.volume == volume);
    let others = disks::other_users(case, &volumes, &points);
    let text = format!(
        "it has {} of the loss at volumes and {} of the operations; it has no peers to compare it with",
        show_percent(of_loss),
        show_percent(of_operations),
    );
    let evidence =
        Evidence::measured("loss", of_loss * 100.0, "%", "stages", text).compared_to(of_operations * 100.0);
    let mut evidence = vec![evidence];
    let mut neighbors = disks::line_neighbors(case, &volumes, &points);
    let kind = if others.is_some() { Kind::SharedDevice } else { Kind::Device };
    if let Some(others) = others {
        evidence.push(others.evidence);
        neighbors.extend(others.neighbors);
        measured::add(measured::of_disk_users(case, &volumes), &mut evidence, &mut neighbors);
    }
    measured::add(measured::of_devices(case, &volumes), &mut evidence, &mut neighbors);
    let (cause, remedy) = cause_and_remedy(case, kind, &volumes, case.topology.injected(volume));
    let name = device_name(case, &case.topology.name(volume), &volumes);
    let since = case.since(&points);
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

/// Names members that are left out because of work in the background.
pub(super) fn report_background(case: &mut Case<'_>) {
    for (id, work) in case.topology.background() {
        let text = format!("{} is left out of the comparison: {work}", case.topology.name(id));
        case.clear(Kind::Device, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_falls_with_the_excess() {
        assert_eq!(chance(1.0, 8.0, 0.125), 1.0, "as expected");
        assert!(chance(7.0, 20.0, 1.0 / 6.0) > 0.01, "seven of twenty are no surprise");
        assert!(chance(10.0, 12.0, 0.125) < MAX_CHANCE);
        assert!(chance(9.0, 9.0, 0.125) < MAX_CHANCE, "all of them");
        assert_eq!(chance(0.0, 0.0, 0.0), 1.0);
    }
}
