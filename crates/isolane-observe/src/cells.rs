//! Numbers that one thread writes and any thread reads.
//!
//! A write is a relaxed load and a relaxed store: no locked instruction, and no cache line that another thread writes.
//! A copy is consistent within each number, not across numbers.

use std::array;
use std::sync::OnceLock;

use crate::histogram::{COARSE_CELLS, FINE_CELLS, Histogram, Resolution, TAIL_ROWS, places_of, tail_row_of};
use crate::snapshot::{Series, SeriesKey, StageHistogram, TailRow};
use crate::stage::{MAX_STAGES, Operation, Side, SizeClass, Stage, kinds};
use crate::sync::{AtomicU64, Ordering};

/// Number that one thread writes and any thread reads.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Counter {
        Counter(AtomicU64::new(0))
    }
}

impl Counter {
    /// Adds `amount`. Only the owning thread calls it.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts `amount`. Only the owning thread calls it.
    pub fn subtract(&self, amount: u64) {
        self.set(self.value().wrapping_sub(amount));
    }

    /// Replaces the value. Only the owning thread calls it.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to at least `value`. Only the owning thread calls it.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.value() {
            self.set(value);
        }
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Histogram of `N` cells that one thread writes.
#[derive(Debug)]
pub struct Cells<const N: usize> {
    counts: [Counter; N],
    sum_ns: Counter,
}

/// Histogram of totals: eight cells for each doubling.
pub type FineCells = Cells<FINE_CELLS>;
/// Histogram of a stage, of a connection, or of turns: four cells for each doubling.
pub type CoarseCells = Cells<COARSE_CELLS>;

impl<const N: usize> Default for Cells<N> {
    fn default() -> Cells<N> {
        Cells { counts: array::from_fn(|_| Counter::default()), sum_ns: Counter::default() }
    }
}

impl<const N: usize> Cells<N> {
    const RESOLUTION: Resolution = match N {
        FINE_CELLS => Resolution::Eight,
        COARSE_CELLS => Resolution::Four,
        _ => panic!("a histogram has FINE_CELLS or COARSE_CELLS"),
    };

    /// Records `count` operations that took `ns` each.
    #[inline]
    pub fn record(&self, ns: u64, count: u64) {
        self.counts[Self::RESOLUTION.cell_of(ns)].add(count);
        self.sum_ns.add(ns.wrapping_mul(count));
    }

    /// Records `count` operations that took `ns` each, of which `cell` is the cell.
    #[inline]
    pub fn record_at(&self, cell: usize, ns: u64, count: u64) {
        self.counts[cell].add(count);
        self.sum_ns.add(ns.wrapping_mul(count));
    }

    /// Counts `count` operations that took `ns` each, but does not add up their durations.
    #[inline]
    fn count(&self, ns: u64, count: u64) {
        self.counts[Self::RESOLUTION.cell_of(ns)].add(count);
    }

    /// Returns a copy.
    pub fn copy(&self) -> Histogram {
        self.copy_with(0)
    }

    /// Returns a copy whose sum has `sum_ns` more.
    fn copy_with(&self, sum_ns: u64) -> Histogram {
        let counts: [u64; N] = array::from_fn(|cell| self.counts[cell].value());
        Histogram::from_counts(Self::RESOLUTION, &counts, self.sum_ns.value().wrapping_add(sum_ns))
    }
}

/// Durations of the stages of a command, in nanoseconds, in the order of [`Side::stages`].
pub type StageTimes = [u64; MAX_STAGES];

/// Numbers of one (volume, operation, size class) on one core.
///
/// Beside the histograms of the total and of each stage, it adds up the stages separately for each doubling of the
/// total, so that a reader knows the stages of the operations beyond a quantile.
#[derive(Debug)]
pub struct SeriesCells {
    total: FineCells,
    /// Counts of durations above zero; the sums are in `tail`. A stage gets its histogram when it first takes time.
    stages: [OnceLock<Box<CoarseCells>>; MAX_STAGES],
    tail: [[Counter; MAX_STAGES]; TAIL_ROWS],
    bytes: Counter,
    errors: Counter,
    /// Writes of a stripe or mirror that this member completed last.
    last: Counter,
    /// Sum of the times by which it was later than the member before it.
    last_by_ns: Counter,
    max_ns: Counter,
    /// Bounds of the times before the totals, by doubling, and their sum.
    unseen: [Counter; TAIL_ROWS],
    unseen_ns: Counter,
}

impl Default for SeriesCells {
    fn default() -> SeriesCells {
        SeriesCells {
            total: Cells::default(),
            stages: array::from_fn(|_| OnceLock::new()),
            tail: array::from_fn(|_| array::from_fn(|_| Counter::default())),
            bytes: Counter::default(),
            errors: Counter::default(),
            last: Counter::default(),
            last_by_ns: Counter::default(),
            max_ns: Counter::default(),
            unseen: array::from_fn(|_| Counter::default()),
            unseen_ns: Counter::default(),
        }
    }
}

impl SeriesCells {
    /// Records `count` operations with these stages, whose sum is the total of each.
    #[inline]
    pub fn record(&self, times: &StageTimes, count: u64) {
        let (row, _) = self.count_total(times.iter().sum(), count);
        times.iter().enumerate().for_each(|(stage, ns)| self.record_stage(row, stage, *ns, count));
    }

    /// Records `count` operations that spent time in two stages only: positions and durations. Returns the cell of
    /// their total for [`Cells::record_at`].
    #[inline]
    pub fn record_two(
        &self,
        [(first, first_ns), (second, second_ns)]: [(usize, u64); 2],
        count: u64,
    ) -> usize {
        let (row, coarse) = self.count_total(first_ns + second_ns, count);
        self.record_stage(row, first, first_ns, count);
        self.record_stage(row, second, second_ns, count);
        coarse
    }

    /// Records how long `count` operations can have waited before the start of their totals.
    #[inline]
    pub fn record_unseen(&self, ns: u64, count: u64) {
        self.unseen[tail_row_of(ns)].add(count);
        self.unseen_ns.add(ns.wrapping_mul(count));
    }

    /// Returns the bounds of the times before the totals: each in the middle of its doubling.
    fn copy_unseen(&self) -> Option<Histogram> {
        let mut counts = [0; COARSE_CELLS];
        for (row, count) in self.unseen.iter().enumerate() {
            let cell = if row == 0 { 0 } else { row * 4 - 1 };
            counts[cell.min(COARSE_CELLS - 1)] = count.value();
        }
        let unseen = Histogram::from_counts(Resolution::Four, &counts, self.unseen_ns.value());
        Some(unseen).filter(|unseen| unseen.count() > 0)
    }

    /// Returns the row and the coarse cell of the total.
    #[inline]
    fn count_total(&self, total: u64, count: u64) -> (usize, usize) {
        let cell = Resolution::Eight.cell_of(total);
        self.total.counts[cell].add(count);
        self.max_ns.raise(total);
        places_of(cell)
    }

    #[inline]
    fn record_stage(&self, row: usize, stage: usize, ns: u64, count: u64) {
        if ns > 0 {
            self.stages[stage].get_or_init(Box::default).count(ns, count);
            self.tail[row][stage].add(ns.wrapping_mul(count));
        }
    }

    /// Records `count` operations whose stages are unknown.
    #[inline]
    pub fn record_total(&self, total_ns: u64, count: u64) {
        self.total.record(total_ns, count);
        self.max_ns.raise(total_ns);
    }

    /// Adds bytes that operations have moved.
    #[inline]
    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.add(bytes);
    }

    /// Counts one failed operation.
    pub fn add_error(&self) {
        self.errors.add(1);
    }

    /// Counts one write that this member completed last, `by_ns` after the member before it.
    pub fn add_last(&self, by_ns: u64) {
        self.last.add(1);
        self.last_by_ns.add(by_ns);
    }

    /// Returns the numbers, or `None` if nothing was recorded.
    pub fn copy(&self, key: SeriesKey) -> Option<Series> {
        let sum_of =
            |stage: usize| self.tail.iter().fold(0_u64, |sum, row| sum.wrapping_add(row[stage].value()));
        let sums: StageTimes = array::from_fn(sum_of);
        let total = self.total.copy_with(sums.iter().fold(0, |sum, ns| sum.wrapping_add(*ns)));
        let names = key.side.stages();
        let stages = names.iter().zip(&self.stages).zip(sums).filter_map(|((stage, cells), sum_ns)| {
            let times = cells.get()?.copy_with(sum_ns);
            (times.count() > 0).then_some(StageHistogram { stage: *stage, times })
        });
        let stages = stages.collect();
        let rows = self.tail.iter().enumerate().map(|(row, sums)| TailRow {
            row: row as u8,
            sums_ns: sums.iter().take(names.len()).map(Counter::value).collect(),
        });
        let tail = rows.filter(|row| row.sums_ns.iter().any(|ns| *ns > 0)).collect();
        let series = Series {
            side: key.side,
            volume: key.volume,
            core: key.core,
            operation: key.operation,
            size: key.size,
            total,
            stages,
            tail,
            bytes: self.bytes.value(),
            errors: self.errors.value(),
            last: self.last.value(),
            last_by_ns: self.last_by_ns.value(),
            max_ns: self.max_ns.value(),
            unseen: self.copy_unseen(),
        };
        (!series.is_empty()).then_some(series)
    }

    /// Returns the memory in use, in bytes.
    pub fn memory(&self) -> usize {
        let stages = self.stages.iter().filter(|cells| cells.get().is_some()).count();
        size_of::<SeriesCells>() + stages * size_of::<CoarseCells>()
    }
}

/// Numbers of one volume on one core, by operation and size class. Each is allocated when it is first used.
#[derive(Debug, Default)]
pub struct KindCells([[OnceLock<Box<SeriesCells>>; SizeClass::ALL.len()]; Operation::ALL.len()]);

impl KindCells {
    /// Returns the cells to record into.
    #[inline]
    pub fn of(&self, operation: Operation, size: SizeClass) -> &SeriesCells {
        self.0[operation as usize][size as usize].get_or_init(Box::default)
    }

    /// Returns the numbers of all kinds of which something was recorded.
    pub fn copy(&self, side: Side, volume: u32, core: u32) -> impl Iterator<Item = Series> {
        kinds().filter_map(move |(operation, size)| {
            let cells = self.0[operation as usize][size as usize].get()?;
            cells.copy(SeriesKey { side, volume, core, operation, size })
        })
    }
}

/// Puts the duration of one stage into `times`.
///
/// # Panics
///
/// If the side does not have the stage.
pub fn set_stage(times: &mut StageTimes, side: Side, stage: Stage, ns: u64) {
    times[side.position_of(stage).expect("a stage of this side")] = ns;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEY: SeriesKey = SeriesKey {
        side: Side::Target,
        volume: 3,
        core: 1,
        operation: Operation::Read,
        size: SizeClass::Small,
    };

    #[test]
    fn copies_recorded_stages() {
        let cells = SeriesCells::default();
        assert_eq!(cells.copy(KEY), None, "nothing was recorded");
        let mut times = StageTimes::default();
        set_stage(&mut times, Side::Target, Stage::Batch, 1_000);
        set_stage(&mut times, Side::Target, Stage::Device, 9_000);
        cells.record(&times, 16);
        cells.add_bytes(65536);
        let series = cells.copy(KEY).expect("recorded");
        assert_eq!((series.total.count(), series.total.sum_ns(), series.bytes), (16, 160_000, 65536));
        assert_eq!(series.stage_sum_ns(Stage::Batch), 16_000);
        assert_eq!(series.stage_sum_ns(Stage::Device), 144_000);
        assert_eq!(series.stage_sum_ns(Stage::Memory), 0);
        let tail: u64 = series.tail.iter().flat_map(|row| &row.sums_ns).sum();
        assert_eq!(tail, series.total.sum_ns(), "the stages add up to the total");
    }

    #[test]
    fn copies_unseen_times_by_doubling() {
        let cells = SeriesCells::default();
        for ns in [0, 100, 3 << 20, u64::MAX] {
            cells.record_total(1, 1);
            cells.record_unseen(ns, 1);
            let unseen = cells.copy(KEY).and_then(|series| series.unseen).expect("recorded");
            let cell = unseen.cells().last().expect("recorded").0;
            assert_eq!(tail_row_of(Resolution::Four.start_of(cell)), tail_row_of(ns), "{ns}");
        }
    }

    #[test]
    fn takes_memory_for_used_stages_only() {
        let cells = SeriesCells::default();
        let before = cells.memory();
        let mut times = StageTimes::default();
        for stage in [Stage::Batch, Stage::Queue, Stage::Device, Stage::Answer, Stage::Socket] {
            set_stage(&mut times, Side::Target, stage, 100);
        }
        cells.record(&times, 1);
        assert_eq!(cells.memory(), before + 5 * size_of::<CoarseCells>());
        assert!(cells.memory() <= 10 * 1024, "{} bytes", cells.memory());
    }
}
