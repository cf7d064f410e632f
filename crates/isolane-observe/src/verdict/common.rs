//! Volumes that are slower than in their own past: one alone, or all at the same time.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, MIN_SHARE};
use super::document::{Evidence, Finding, Grade, Kind};
use super::ledger::{Class, is_at_volume, volume_stage};
use super::units::{show_digits, show_ns};
use crate::peers::compare::{MIN_DIFFERENCE_NS, work_of};
use crate::snapshot::Series;

/// Least ratio of the median to the median of the past.
const MIN_RATIO: f64 = 2.0;
/// Operations that the past needs, and that the window needs.
const MIN_PAST: u64 = 5000;
const MIN_NOW: u64 = 200;
/// Most work per second, in relation to the past, of a volume that counts as slower.
const MAX_EQUAL_WORK: f64 = 1.25;
/// Least time before the window that counts as past, in relation to the window.
const MIN_PAST_WINDOWS: f64 = 3.0;

/// Numbers of one volume.
#[derive(Debug, Default)]
struct Sums {
    /// By operation and size class, all cores together.
    classes: BTreeMap<Class, Series>,
    work: f64,
}

impl Sums {
    fn add(&mut self, series: &Series) {
        let class = (series.side, series.operation, series.size);
        self.classes.entry(class).and_modify(|sum| sum.merge(series)).or_insert_with(|| series.clone());
        self.work += work_of(series.total.count(), series.bytes);
    }

    /// Removes the numbers of a later part.
    fn remove(&mut self, later: &Sums) {
        for (class, sum) in &mut self.classes {
            if let Some(later) = later.classes.get(class) {
                *sum = sum.since(later);
            }
        }
        self.work = (self.work - later.work).max(0.0);
    }
}

/// Medians of one volume at the stage of the volume, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Change {
    now_ns: f64,
    past_ns: f64,
}

impl Change {
    /// Returns the change of the class with most operations, if both parts have enough of them.
    fn new(now: &Sums, past: &Sums) -> Option<Change> {
        let (class, series) = now.classes.iter().max_by_key(|(_, series)| series.total.count())?;
        let before = past.classes.get(class)?;
        let median = |series: &Series| {
            if series.stages.is_empty() {
                return series.total.quantile(0.5) as f64;
            }
            series.stage_quantile(volume_stage(series.side), 0.5) as f64
        };
        let has_data = before.total.count() >= MIN_PAST && series.total.count() >= MIN_NOW;
        has_data.then(|| Change { now_ns: median(series), past_ns: median(before) })
    }

    fn is_slower(self) -> bool {
        self.now_ns >= self.past_ns * MIN_RATIO && self.now_ns - self.past_ns >= MIN_DIFFERENCE_NS
    }
}

/// Reports volumes that are slower than in their past at no more work, and that no other finding names.
pub(super) fn find(case: &mut Case<'_>) {
    let past_s = case.snapshot.program.uptime_ms as f64 / 1000.0 - case.window.seconds;
    if case.window.steps.is_empty() || past_s < case.window.seconds * MIN_PAST_WINDOWS {
        return;
    }
    let changes = changes(case, past_s);
    let slow: BTreeMap<u32, Change> =
        changes.iter().filter(|(_, change)| change.is_slower()).map(|(id, change)| (*id, *change)).collect();
    // Some of several: the group is divided, so the load of these may have changed.
    if slow.is_empty() || slow.len() > 1 && slow.len() < changes.len() {
        return;
    }
    report(case, &slow);
}

/// Returns the changes of all volumes that no finding names and that have no more work than before.
fn changes(case: &Case<'_>, past_s: f64) -> BTreeMap<u32, Change> {
    let is_wanted =
        |series: &&Series| case.tops.contains(&series.volume) && !case.named.contains(&series.volume);
    let (mut now, mut past): (BTreeMap<u32, Sums>, BTreeMap<u32, Sums>) = Default::default();
    for series in case.window.series.iter().filter(is_wanted) {
        now.entry(series.volume).or_default().add(series);
    }
    let all = case.snapshot.numbers.series.iter().filter(|series| super::window::is_sound(series));
    for series in all.filter(is_wanted) {
        past.entry(series.volume).or_default().add(series);
    }
    let mut changes = BTreeMap::new();
    for (id, now) in &now {
        let Some(past) = past.get_mut(id) else { continue };
        past.remove(now);
        let is_equal_work = now.work / case.window.seconds <= past.work / past_s * MAX_EQUAL_WORK;
        changes.extend(Change::new(now, past).filter(|_| is_equal_work).map(|change| (*id, change)));
    }
    changes
}

fn report(case: &mut Case<'_>, slow: &BTreeMap<u32, Change>) {
    let ids: BTreeSet<u32> = slow.keys().copied().collect();
    let names: Vec<String> = ids.iter().take(4).map(|id| case.topology.name(*id)).collect();
    let more = slow.len() - names.len();
    let name = if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") };
    let mean = |value: fn(&Change) -> f64| slow.values().map(value).sum::<f64>() / slow.len() as f64;
    let (now, past) = (mean(|at| at.now_ns), mean(|at| at.past_ns));
    let text = format!(
        "the median at the volume is {}, {}x the median since the start of the program ({})",
        show_ns(now),
        show_digits(now / past.max(1.0)),
        show_ns(past),
    );
    let evidence =
        Evidence::measured("median", now / 1000.0, "us", "stages", text).compared_to(past / 1000.0);
    let share = (now - past) / (now - past + case.ledger.mean_loss_ns()).max(1.0);
    if share < MIN_SHARE {
        return;
    }
    case.ledger.claim(1.0, |part, stage| is_at_volume(stage) && ids.contains(&part.volume));
    let side = case.ledger.parts.first().map(|part| part.side);
    let since = case.since(&case.points(|series| ids.contains(&series.volume)));
    case.findings.push(Finding {
        kind: if slow.len() > 1 { Kind::Common } else { Kind::Device },
        name,
        stage: side.map(volume_stage),
        operation: None,
        cause: ids.first().and_then(|id| case.topology.injected(*id)),
        share: share.clamp(0.0, 1.0),
        since,
        evidence: vec![evidence.graded(Grade::MovesWith)],
        neighbors: Vec::new(),
        remedy: "check what the volumes share: the disk beneath them, its controller, its link, a resync"
            .to_owned(),
    });
}
