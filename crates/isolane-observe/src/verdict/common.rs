//! Volumes that are slower than in their own past: one alone, or all members of a group at the same time.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::document::{Evidence, Finding, Grade, Kind};
use super::ledger::{is_at_volume, volume_stage};
use super::units::{show_digits, show_ns};
use crate::peers::compare::{MIN_DIFFERENCE_NS, work_of};
use crate::snapshot::Series;

/// Least ratio of the mean to that of the past.
const MIN_RATIO: f64 = 2.0;
/// Operations that the past needs, and that the window needs.
const MIN_PAST: f64 = 5000.0;
const MIN_NOW: f64 = 200.0;
/// Most work per second, in relation to the past, of a volume that counts as slower.
const MAX_EQUAL_WORK: f64 = 1.25;
/// Least time before the window that counts as past, in relation to the window.
const MIN_PAST_WINDOWS: f64 = 3.0;

/// Numbers of one volume, now and before.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    now: Sums,
    past: Sums,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    operations: f64,
    /// Time at the volume, in nanoseconds.
    volume_ns: f64,
    work: f64,
}

impl Sums {
    fn add(&mut self, series: &Series) {
        self.operations += series.total.count() as f64;
        let has_stages = !series.stages.is_empty();
        let stages =
            series.stages.iter().filter(|at| is_at_volume(at.stage)).map(|at| at.times.sum_ns() as f64);
        self.volume_ns += if has_stages { stages.sum() } else { series.total.sum_ns() as f64 };
        self.work += work_of(series.total.count(), series.bytes);
    }

    fn minus(self, other: Sums) -> Sums {
        Sums {
            operations: (self.operations - other.operations).max(0.0),
            volume_ns: (self.volume_ns - other.volume_ns).max(0.0),
            work: (self.work - other.work).max(0.0),
        }
    }

    fn mean_ns(self) -> f64 {
        self.volume_ns / self.operations.max(1.0)
    }
}

impl Change {
    fn ratio(self) -> f64 {
        self.now.mean_ns() / self.past.mean_ns().max(1.0)
    }

    /// Returns `true` if the volume is slower than before at no more work.
    fn is_slower(self, now_s: f64, past_s: f64) -> bool {
        self.has_data()
            && self.ratio() >= MIN_RATIO
            && self.now.mean_ns() - self.past.mean_ns() >= MIN_DIFFERENCE_NS
            && self.now.work / now_s <= self.past.work / past_s * MAX_EQUAL_WORK
    }

    fn has_data(self) -> bool {
        self.past.operations >= MIN_PAST && self.now.operations >= MIN_NOW
    }
}

/// Reports volumes that are slower than in their past and that no other finding names.
pub(super) fn find(case: &mut Case<'_>) {
    let past_s = case.snapshot.program.uptime_ms as f64 / 1000.0 - case.window.seconds;
    if case.window.steps.is_empty()
        || past_s < case.window.seconds * MIN_PAST_WINDOWS
        || !case.findings.is_empty()
    {
        return;
    }
    let changes = changes(case);
    let known: BTreeSet<u32> =
        changes.iter().filter(|(_, change)| change.has_data()).map(|(id, _)| *id).collect();
    let slower = |id: &u32| changes[id].is_slower(case.window.seconds, past_s);
    let slow: BTreeSet<u32> = known.iter().copied().filter(slower).collect();
    if slow.is_empty() || slow.len() < known.len() && slow.len() > 1 {
        return;
    }
    let sum = slow.iter().fold(Change::default(), |mut sum, id| {
        let change = changes[id];
        sum.now.operations += change.now.operations;
        sum.now.volume_ns += change.now.volume_ns;
        sum.past.operations += change.past.operations;
        sum.past.volume_ns += change.past.volume_ns;
        sum
    });
    report(case, &slow, sum);
}

/// Returns the changes of all volumes without a parent.
fn changes(case: &Case<'_>) -> BTreeMap<u32, Change> {
    let mut changes: BTreeMap<u32, Change> = BTreeMap::new();
    for series in case.window.series.iter().filter(|at| case.tops.contains(&at.volume)) {
        changes.entry(series.volume).or_default().now.add(series);
    }
    for series in case.snapshot.numbers.series.iter().filter(|at| case.tops.contains(&at.volume)) {
        changes.entry(series.volume).or_default().past.add(series);
    }
    for change in changes.values_mut() {
        change.past = change.past.minus(change.now);
    }
    changes
}

fn report(case: &mut Case<'_>, slow: &BTreeSet<u32>, change: Change) {
    let is_common = slow.len() > 1;
    let names: Vec<String> = slow.iter().take(4).map(|id| case.topology.name(*id)).collect();
    let more = slow.len() - names.len();
    let name = if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") };
    let (now, past) = (change.now.mean_ns(), change.past.mean_ns());
    let text = format!(
        "the mean at the volume is {}, {}x that since the start of the program ({})",
        show_ns(now),
        show_digits(change.ratio()),
        show_ns(past),
    );
    let evidence = Evidence::measured("mean", now / 1000.0, "us", "stages", text).compared_to(past / 1000.0);
    let points = case.points(|series| slow.contains(&series.volume));
    let claimed = case.ledger.claim(1.0, |part, stage| is_at_volume(stage) && slow.contains(&part.volume));
    let side = case.ledger.parts.first().map(|part| part.side);
    let injected = slow.iter().next().and_then(|id| case.topology.injected(*id));
    case.findings.push(Finding {
        kind: if is_common { Kind::Common } else { Kind::Device },
        name,
        stage: side.map(volume_stage),
        operation: None,
        cause: injected,
        share: claimed.max(1.0 - past / now.max(1.0)).clamp(0.0, 1.0),
        since: case.since(&points),
        evidence: vec![evidence.graded(Grade::MovesWith)],
        neighbors: Vec::new(),
        remedy: "check what the volumes share: the disk beneath them, its controller, its link, a resync"
            .to_owned(),
    });
}
