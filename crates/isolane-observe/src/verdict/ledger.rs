//! The time that the operations of the tail lost, by volume, core, operation, size class, and stage.
//!
//! An operation loses in a stage the time above the median of that stage. Findings claim parts of the loss, so that
//! no part is counted twice.

use std::collections::BTreeMap;

use crate::histogram::{Histogram, Resolution, TAIL_ROWS, tail_row_of};
use crate::snapshot::Series;
use crate::stage::{MAX_STAGES, Operation, Side, SizeClass, Stage};

/// Operations that the tail needs.
pub(super) const MIN_TAIL: f64 = 100.0;
/// Lowest quantile at which a tail begins.
pub(super) const MIN_QUANTILE: f64 = 0.5;

/// Operations that are compared with each other.
pub(super) type Class = (Side, Operation, SizeClass);

/// Loss of the operations of one series.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub side: Side,
    pub volume: u32,
    pub core: u32,
    pub operation: Operation,
    pub size: SizeClass,
    /// All operations.
    pub operations: f64,
    /// Those in the tail.
    pub tail: f64,
    /// Time of all operations, in nanoseconds.
    pub sum_ns: f64,
    /// Time of all operations if each took the median of its class, in nanoseconds.
    pub typical_ns: f64,
    /// Difference between the shortest total of the tail and the median of the class, in nanoseconds.
    pub tail_excess_ns: f64,
    /// Loss that no finding has claimed, in the order of the stages of the side.
    pub lost_ns: [f64; MAX_STAGES],
}

/// Losses of a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub parts: Vec<Part>,
    /// Shortest total of the tail of each class, in nanoseconds.
    pub thresholds: BTreeMap<Class, u64>,
    pub quantile: f64,
    pub operations: u64,
    pub tail: f64,
    /// All losses, in nanoseconds.
    pub lost_ns: f64,
    /// Shortest total of the tail of all operations together, and their median, in nanoseconds.
    pub tail_ns: u64,
    pub median_ns: u64,
}

impl Part {
    pub(super) fn class(&self) -> Class {
        (self.side, self.operation, self.size)
    }

    /// Returns the loss that is not claimed, by stage.
    pub(super) fn losses(&self) -> impl Iterator<Item = (Stage, f64)> {
        self.side.stages().iter().copied().zip(self.lost_ns)
    }
}

impl Ledger {
    /// Returns the losses of these series beyond a quantile.
    pub(super) fn new<'a>(series: impl Iterator<Item = &'a Series>, quantile: f64) -> Ledger {
        let series: Vec<&Series> = series.filter(|series| series.total.count() > 0).collect();
        let mut classes: BTreeMap<Class, Series> = BTreeMap::new();
        let mut all = Histogram::new(Resolution::Eight);
        for part in &series {
            all.merge(&part.total);
            let class = (part.side, part.operation, part.size);
            classes.entry(class).and_modify(|sum| sum.merge(part)).or_insert_with(|| (*part).clone());
        }
        let operations = all.count();
        let highest = 1.0 - MIN_TAIL / operations.max(1) as f64;
        let quantile = quantile.min(highest).max(MIN_QUANTILE);
        let bounds: BTreeMap<Class, Bounds> =
            classes.iter().map(|(class, sum)| (*class, Bounds::new(sum, quantile))).collect();
        let parts: Vec<Part> = series
            .iter()
            .map(|part| to_part(part, &bounds[&(part.side, part.operation, part.size)]))
            .collect();
        let thresholds = bounds.iter().map(|(class, bounds)| (*class, bounds.threshold_ns()));
        Ledger {
            thresholds: thresholds.collect(),
            quantile,
            operations,
            tail: parts.iter().map(|part| part.tail).sum(),
            lost_ns: parts.iter().flat_map(|part| part.lost_ns).sum(),
            tail_ns: all.quantile(quantile),
            median_ns: all.quantile(0.5),
            parts,
        }
    }

    /// Returns the loss of chosen parts and stages that no finding has claimed, in nanoseconds.
    pub(super) fn lost(&self, chosen: impl Fn(&Part, Stage) -> bool) -> f64 {
        let losses =
            self.parts.iter().flat_map(|part| part.losses().map(move |(stage, ns)| (part, stage, ns)));
        losses.filter(|(part, stage, _)| chosen(part, *stage)).map(|(_, _, ns)| ns).sum()
    }

    /// Returns the loss of each volume in chosen stages that no finding has claimed, in nanoseconds.
    pub(super) fn lost_by_volume(&self, chosen: impl Fn(Stage) -> bool) -> BTreeMap<u32, f64> {
        let mut lost = BTreeMap::new();
        for part in &self.parts {
            let losses = part.losses().filter(|(stage, _)| chosen(*stage)).map(|(_, ns)| ns);
            *lost.entry(part.volume).or_default() += losses.sum::<f64>();
        }
        lost
    }

    /// Claims a fraction of the loss of chosen parts and stages, and returns its share of all losses.
    pub(super) fn claim(&mut self, fraction: f64, chosen: impl Fn(&Part, Stage) -> bool) -> f64 {
        let fraction = fraction.clamp(0.0, 1.0);
        let mut claimed = 0.0;
        for part in &mut self.parts {
            for at in 0..part.side.stages().len() {
                if chosen(part, part.side.stages()[at]) {
                    claimed += part.lost_ns[at] * fraction;
                    part.lost_ns[at] *= 1.0 - fraction;
                }
            }
        }
        self.share(claimed)
    }

    /// Returns the share of a loss.
    pub(super) fn share(&self, ns: f64) -> f64 {
        if self.lost_ns > 0.0 { (ns / self.lost_ns).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the stage that lost most of chosen losses.
    pub(super) fn worst_stage(&self, chosen: impl Fn(&Part, Stage) -> bool) -> Option<Stage> {
        let mut sums: BTreeMap<Stage, f64> = BTreeMap::new();
        for part in &self.parts {
            for (stage, ns) in part.losses().filter(|(stage, ns)| *ns > 0.0 && chosen(part, *stage)) {
                *sums.entry(stage).or_default() += ns;
            }
        }
        sums.into_iter().max_by(|left, right| left.1.total_cmp(&right.1)).map(|(stage, _)| stage)
    }

    /// Returns the only operation of chosen losses, if nine tenths are of one and others exist.
    pub(super) fn only_operation(&self, chosen: impl Fn(&Part) -> bool) -> Option<Operation> {
        let mut sums: BTreeMap<Operation, f64> = BTreeMap::new();
        for part in self.parts.iter().filter(|part| chosen(part)) {
            *sums.entry(part.operation).or_default() += part.lost_ns.iter().sum::<f64>();
        }
        let all: f64 = sums.values().sum();
        let has_others = sums.len() > 1;
        sums.into_iter().find(|(_, ns)| has_others && *ns >= all * 0.9 && all > 0.0).map(|(at, _)| at)
    }

    /// Returns the mean loss of an operation of the tail, in nanoseconds.
    pub(super) fn mean_loss_ns(&self) -> f64 {
        self.lost_ns / self.tail.max(1.0)
    }
}

/// Medians of a class, and the border of its tail.
struct Bounds {
    /// Cell that contains the quantile.
    cell: usize,
    /// Part of that cell that is in the tail.
    fraction: f64,
    median_ns: f64,
    stage_medians_ns: [f64; MAX_STAGES],
}

impl Bounds {
    fn new(sum: &Series, quantile: f64) -> Bounds {
        let cell = sum.total.quantile_cell(quantile).unwrap_or(0);
        let above = sum.total.count_from(cell + 1) as f64;
        let inside = (sum.total.count_from(cell) as f64 - above).max(1.0);
        let wanted = sum.total.count() as f64 * (1.0 - quantile);
        let mut stage_medians_ns = [0.0; MAX_STAGES];
        for (median, stage) in stage_medians_ns.iter_mut().zip(sum.side.stages()) {
            *median = sum.stage_quantile(*stage, 0.5) as f64;
        }
        let fraction = ((wanted - above) / inside).clamp(0.0, 1.0);
        Bounds { cell, fraction, median_ns: sum.total.quantile(0.5) as f64, stage_medians_ns }
    }

    fn threshold_ns(&self) -> u64 {
        Resolution::Eight.start_of(self.cell)
    }

    /// Returns the part of a cell that is in the tail.
    fn tail_of(&self, cell: usize) -> f64 {
        match cell.cmp(&self.cell) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => self.fraction,
            std::cmp::Ordering::Greater => 1.0,
        }
    }
}

/// Operations of one doubling.
#[derive(Clone, Copy, Default)]
struct Row {
    operations: f64,
    /// Time above the median of the totals, of all operations and of those in the tail, in nanoseconds.
    excess_ns: f64,
    tail_excess_ns: f64,
}

fn to_part(series: &Series, bounds: &Bounds) -> Part {
    let mut rows = [Row::default(); TAIL_ROWS];
    let mut tail = 0.0;
    for (cell, count) in series.total.cells() {
        let ns = Resolution::Eight.middle_of(cell);
        let (count, part) = (count as f64, bounds.tail_of(cell));
        let excess_ns = (ns as f64 - bounds.median_ns).max(0.0) * count;
        let row = &mut rows[tail_row_of(ns)];
        row.operations += count;
        row.excess_ns += excess_ns;
        row.tail_excess_ns += excess_ns * part;
        tail += count * part;
    }
    Part {
        side: series.side,
        volume: series.volume,
        core: series.core,
        operation: series.operation,
        size: series.size,
        operations: series.total.count() as f64,
        tail,
        sum_ns: series.total.sum_ns() as f64,
        typical_ns: series.total.count() as f64 * bounds.median_ns,
        tail_excess_ns: (bounds.threshold_ns() as f64 - bounds.median_ns).max(0.0),
        lost_ns: losses(series, bounds, &rows),
    }
}

/// Returns the loss of each stage. The doubling in which the tail begins is divided by the excess of the totals.
fn losses(series: &Series, bounds: &Bounds, rows: &[Row; TAIL_ROWS]) -> [f64; MAX_STAGES] {
    let mut lost_ns = [0.0; MAX_STAGES];
    if series.tail.is_empty() {
        let stage = volume_stage(series.side);
        let position = series.side.position_of(stage).unwrap_or(0);
        lost_ns[position] = rows.iter().map(|row| row.tail_excess_ns).sum();
        return lost_ns;
    }
    for at in &series.tail {
        let row = rows[usize::from(at.row).min(TAIL_ROWS - 1)];
        if row.tail_excess_ns <= 0.0 {
            continue;
        }
        let part = row.tail_excess_ns / row.excess_ns;
        for ((lost, sum), median) in lost_ns.iter_mut().zip(&at.sums_ns).zip(bounds.stage_medians_ns) {
            *lost += (*sum as f64 - row.operations * median).max(0.0) * part;
        }
    }
    lost_ns
}

/// Returns the stage in which a volume works.
pub(super) fn volume_stage(side: Side) -> Stage {
    match side {
        Side::Target => Stage::Device,
        Side::Host | Side::Engine => Stage::Wait,
        // Streams have no volume.
        Side::Stream => Stage::Tx,
        // Nor have queue pairs.
        Side::Verbs => Stage::Ack,
    }
}

/// Returns `true` for the stages in which a result waits until the caller fetches it.
pub(super) fn is_at_caller(stage: Stage) -> bool {
    matches!(stage, Stage::Wake | Stage::Notice | Stage::Rx | Stage::Poll)
}

/// Returns `true` for the stages in which the volume has the operation.
pub(super) fn is_at_volume(stage: Stage) -> bool {
    matches!(stage, Stage::Queue | Stage::Device | Stage::Wait)
}
