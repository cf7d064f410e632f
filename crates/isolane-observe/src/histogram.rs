//! Histograms with a fixed number of cells for each doubling, from 64 ns to 68.7 s.
//!
//! Powers of two are borders of cells, so counts up to a power of two are exact. The first cell has all durations below
//! 64 ns, the last one all of 2^36 ns (68.7 s) and above.

use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of cells for each doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Four: quantiles are within 13 %.
    Four,
    /// Eight: quantiles are within 7 %.
    Eight,
}

/// Binary logarithm of the first duration of the second cell, in nanoseconds.
const FIRST_DOUBLING: u32 = 6;
/// Binary logarithm of the first duration of the last cell, in nanoseconds.
const END_DOUBLING: u32 = 36;
const DOUBLINGS: usize = (END_DOUBLING - FIRST_DOUBLING) as usize;
/// Number of cells at [`Resolution::Eight`].
pub const FINE_CELLS: usize = DOUBLINGS * 8 + 2;
/// Number of cells at [`Resolution::Four`].
pub const COARSE_CELLS: usize = DOUBLINGS * 4 + 2;

impl Resolution {
    const fn bits(self) -> u32 {
        match self {
            Resolution::Four => 2,
            Resolution::Eight => 3,
        }
    }

    /// Returns the number of cells for each doubling.
    pub const fn per_doubling(self) -> usize {
        1 << self.bits()
    }

    /// Returns the number of cells.
    pub const fn cells(self) -> usize {
        (DOUBLINGS << self.bits()) + 2
    }

    /// Returns the cell of a duration.
    #[inline]
    pub const fn cell_of(self, ns: u64) -> usize {
        let ns = ns_from_first(ns);
        let doubling = ns.ilog2();
        // The second part also has the highest bit of the duration.
        let cell = ((doubling as usize) << self.bits()) + (ns >> (doubling - self.bits())) as usize;
        let cell = cell - (((FIRST_DOUBLING as usize + 1) << self.bits()) - 1);
        if cell < self.cells() { cell } else { self.cells() - 1 }
    }

    /// Returns the first duration of a cell, in nanoseconds. For the number of cells, it returns `u64::MAX`.
    pub const fn start_of(self, cell: usize) -> u64 {
        if cell == 0 {
            return 0;
        }
        if cell >= self.cells() {
            return u64::MAX;
        }
        let (doubling, part) = ((cell - 1) >> self.bits(), (cell - 1) & (self.per_doubling() - 1));
        ((self.per_doubling() + part) as u64) << (FIRST_DOUBLING + doubling as u32 - self.bits())
    }

    /// Returns the duration that represents a cell: its middle, in nanoseconds.
    pub const fn middle_of(self, cell: usize) -> u64 {
        let start = self.start_of(cell);
        if cell + 1 >= self.cells() { start } else { start + (self.start_of(cell + 1) - start) / 2 }
    }
}

/// Number of rows by doubling of the total: see [`crate::cells::SeriesCells`].
pub const TAIL_ROWS: usize = DOUBLINGS + 2;

/// Returns the row and the coarse cell of a total, of which `cell` is the cell at [`Resolution::Eight`].
#[inline]
pub(crate) const fn places_of(cell: usize) -> (usize, usize) {
    ((cell + 7) >> 3, (cell + 1) >> 1)
}

/// Returns the row of a total: 0 below 64 ns, then one row for each doubling.
#[inline]
pub const fn tail_row_of(ns: u64) -> usize {
    let row = (ns_from_first(ns).ilog2() - (FIRST_DOUBLING - 1)) as usize;
    if row < TAIL_ROWS { row } else { TAIL_ROWS - 1 }
}

/// Returns the duration, or the longest one of the first cell if it is in that.
#[inline]
const fn ns_from_first(ns: u64) -> u64 {
    const LONGEST: u64 = (1 << FIRST_DOUBLING) - 1;
    if ns > LONGEST { ns } else { LONGEST }
}

/// Histogram of durations, as plain data. Only cells that are not empty take memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    resolution: Resolution,
    /// Cells and their counts above zero, in the order of their durations.
    cells: Vec<(u16, u64)>,
    count: u64,
    sum_ns: u64,
}

impl Histogram {
    /// Returns an empty histogram.
    pub const fn new(resolution: Resolution) -> Histogram {
        Histogram { resolution, cells: Vec::new(), count: 0, sum_ns: 0 }
    }

    /// Returns the histogram with these counts, one for each cell.
    ///
    /// # Panics
    ///
    /// If the number of counts is not the number of cells.
    pub fn from_counts(resolution: Resolution, counts: &[u64], sum_ns: u64) -> Histogram {
        assert_eq!(counts.len(), resolution.cells(), "one count for each cell");
        let cells = (0..).zip(counts.iter().copied()).filter(|(_, count)| *count > 0);
        Histogram::from_cells(resolution, cells.collect(), sum_ns)
    }

    fn from_cells(resolution: Resolution, cells: Vec<(u16, u64)>, sum_ns: u64) -> Histogram {
        let count = cells.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        Histogram { resolution, cells, count, sum_ns }
    }

    /// Records `count` operations that took `ns` each.
    pub fn record(&mut self, ns: u64, count: u64) {
        self.add_to_cell(self.resolution.cell_of(ns), count);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }

    fn add_to_cell(&mut self, cell: usize, count: u64) {
        if count == 0 {
            return;
        }
        let cell = cell as u16;
        match self.cells.binary_search_by_key(&cell, |(at, _)| *at) {
            Ok(place) => self.cells[place].1 = self.cells[place].1.saturating_add(count),
            Err(place) => self.cells.insert(place, (cell, count)),
        }
        self.count = self.count.saturating_add(count);
    }

    /// Returns the number of cells for each doubling.
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// Returns the number of recorded operations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all durations, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the mean duration, in nanoseconds; 0 if the histogram is empty.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// Returns the cells that are not empty, with their counts, in the order of their durations.
    pub fn cells(&self) -> impl Iterator<Item = (usize, u64)> {
        self.cells.iter().map(|(cell, count)| (usize::from(*cell), *count))
    }

    /// Returns the cell that contains a quantile (0.0 to 1.0), or `None` if the histogram is empty.
    pub fn quantile_cell(&self, quantile: f64) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let wanted = ((self.count as f64 * quantile).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        let found = self.cells().find(|(_, count)| {
            seen = count.saturating_add(seen);
            seen >= wanted
        });
        found.map(|(cell, _)| cell)
    }

    /// Returns a quantile (0.0 to 1.0) in nanoseconds: the middle of its cell; 0 if the histogram is empty.
    pub fn quantile(&self, quantile: f64) -> u64 {
        self.quantile_cell(quantile).map_or(0, |cell| self.resolution.middle_of(cell))
    }

    /// Returns the end of the highest cell that is not empty: an upper bound of the maximum, in nanoseconds.
    pub fn max_bound(&self) -> u64 {
        self.cells().last().map_or(0, |(cell, _)| self.resolution.start_of(cell + 1))
    }

    /// Returns the number of operations in this cell and all higher ones.
    pub fn count_from(&self, cell: usize) -> u64 {
        self.cells().filter(|(at, _)| *at >= cell).fold(0, |sum: u64, (_, count)| sum.saturating_add(count))
    }

    /// Adds all operations of `other`.
    ///
    /// # Panics
    ///
    /// If the resolutions differ.
    pub fn merge(&mut self, other: &Histogram) {
        assert_eq!(self.resolution, other.resolution, "histograms of one resolution");
        other.cells().for_each(|(cell, count)| self.add_to_cell(cell, count));
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the operations since `earlier`, an older copy of the same histogram.
    ///
    /// # Panics
    ///
    /// If the resolutions differ.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        assert_eq!(self.resolution, earlier.resolution, "histograms of one resolution");
        let mut cells = self.cells.clone();
        for (cell, count) in &mut cells {
            if let Ok(place) = earlier.cells.binary_search_by_key(cell, |(at, _)| *at) {
                *count = count.saturating_sub(earlier.cells[place].1);
            }
        }
        cells.retain(|(_, count)| *count > 0);
        Histogram::from_cells(self.resolution, cells, self.sum_ns.saturating_sub(earlier.sum_ns))
    }
}

/// Written as `[cells per doubling, sum in nanoseconds, [[cell, count], …]]`.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(3))?;
        list.serialize_element(&self.resolution.per_doubling())?;
        list.serialize_element(&self.sum_ns)?;
        list.serialize_element(&self.cells().collect::<Vec<_>>())?;
        list.end()
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        deserializer.deserialize_seq(HistogramVisitor)
    }
}

struct HistogramVisitor;

impl<'de> Visitor<'de> for HistogramVisitor {
    type Value = Histogram;

    fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("[cells per doubling (4 or 8), sum in nanoseconds, [[cell, count], …]]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Histogram, A::Error> {
        let missing = || A::Error::custom("a histogram has three elements");
        let resolution = match list.next_element::<u64>()?.ok_or_else(missing)? {
            4 => Resolution::Four,
            8 => Resolution::Eight,
            other => return Err(A::Error::custom(format!("histogram with {other} cells per doubling"))),
        };
        let mut histogram = Histogram::new(resolution);
        histogram.sum_ns = list.next_element()?.ok_or_else(missing)?;
        let CellList(cells) = list.next_element()?.ok_or_else(missing)?;
        for (cell, count) in cells {
            if cell >= resolution.cells() {
                return Err(A::Error::custom(format!("histogram cell {cell} of {}", resolution.cells())));
            }
            histogram.add_to_cell(cell, count);
        }
        Ok(histogram)
    }
}

/// At most as many cells as a histogram has.
struct CellList(Vec<(usize, u64)>);

impl<'de> Deserialize<'de> for CellList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CellList, D::Error> {
        struct Cells;
        impl<'de> Visitor<'de> for Cells {
            type Value = CellList;

            fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(text, "at most {FINE_CELLS} pairs of a cell and a count")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CellList, A::Error> {
                let mut cells = Vec::new();
                while let Some(cell) = list.next_element()? {
                    if cells.len() == FINE_CELLS {
                        return Err(A::Error::custom("a histogram has more cells than exist"));
                    }
                    cells.push(cell);
                }
                Ok(CellList(cells))
            }
        }
        deserializer.deserialize_seq(Cells)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [Resolution; 2] = [Resolution::Four, Resolution::Eight];

    fn recorded(resolution: Resolution, durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::new(resolution);
        durations.iter().for_each(|ns| histogram.record(*ns, 1));
        histogram
    }

    #[test]
    fn has_documented_cells() {
        assert_eq!((Resolution::Eight.cells(), Resolution::Four.cells()), (FINE_CELLS, COARSE_CELLS));
        assert_eq!((FINE_CELLS, COARSE_CELLS), (242, 122));
        for resolution in BOTH {
            for cell in 0..resolution.cells() {
                let start = resolution.start_of(cell);
                assert_eq!(resolution.cell_of(start), cell);
                assert_eq!(resolution.cell_of(resolution.start_of(cell + 1) - 1), cell);
                assert_eq!(resolution.cell_of(resolution.middle_of(cell)), cell);
            }
            for shift in FIRST_DOUBLING..=END_DOUBLING {
                assert_eq!(resolution.start_of(resolution.cell_of(1 << shift)), 1 << shift, "2^{shift}");
            }
        }
    }

    #[test]
    fn rows_of_tail_are_doublings() {
        assert_eq!((tail_row_of(0), tail_row_of(63), tail_row_of(64), tail_row_of(127)), (0, 0, 1, 1));
        assert_eq!(tail_row_of(u64::MAX), TAIL_ROWS - 1);
        for ns in (0..40).flat_map(|shift| [1 << shift, (1 << shift) + (1 << shift) / 3, u64::MAX >> shift]) {
            let places = places_of(Resolution::Eight.cell_of(ns));
            assert_eq!(places, (tail_row_of(ns), Resolution::Four.cell_of(ns)), "{ns}");
        }
    }

    #[test]
    fn rejects_malformed_documents() {
        for text in
            ["[5,0,[]]", "[8,0]", "[8]", "[]", "[8,0,[[242,1]]]", "[4,0,[[122,1]]]", "[8,-1,[]]", "{}"]
        {
            assert!(serde_json::from_str::<Histogram>(text).is_err(), "{text}");
        }
        let long = format!("[8,0,[{}]]", vec!["[1,1]"; FINE_CELLS + 1].join(","));
        assert!(serde_json::from_str::<Histogram>(&long).is_err());
    }

    proptest! {
        #[test]
        fn quantiles_match_hdrhistogram(
            durations in prop::collection::vec(64u64..60_000_000_000, 1..300),
            quantile in 0.0f64..1.0,
        ) {
            let mut exact = hdrhistogram::Histogram::<u64>::new(3).expect("histogram");
            durations.iter().for_each(|ns| exact.record(*ns).expect("in range"));
            let exact = exact.value_at_quantile(quantile) as f64;
            for (resolution, bound) in [(Resolution::Four, 0.13), (Resolution::Eight, 0.07)] {
                let ours = recorded(resolution, &durations).quantile(quantile) as f64;
                prop_assert!((ours / exact - 1.0).abs() <= bound, "{ours} ns instead of {exact} ns");
            }
        }

        #[test]
        fn merge_equals_recording_in_one(
            left in prop::collection::vec(any::<u64>(), 0..50),
            right in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            for resolution in BOTH {
                let mut merged = recorded(resolution, &left);
                merged.merge(&recorded(resolution, &right));
                prop_assert_eq!(&merged, &recorded(resolution, &[left.clone(), right.clone()].concat()));
            }
        }

        #[test]
        fn intervals_add_up_to_the_whole(
            first in prop::collection::vec(0u64..1 << 40, 0..50),
            second in prop::collection::vec(0u64..1 << 40, 0..50),
        ) {
            for resolution in BOTH {
                let earlier = recorded(resolution, &first);
                let mut whole = earlier.clone();
                second.iter().for_each(|ns| whole.record(*ns, 1));
                let mut sum = whole.since(&earlier);
                sum.merge(&earlier);
                prop_assert_eq!(&sum, &whole);
            }
        }

        #[test]
        fn document_keeps_the_histogram(durations in prop::collection::vec(0u64..1 << 40, 0..50)) {
            for resolution in BOTH {
                let histogram = recorded(resolution, &durations);
                let text = serde_json::to_string(&histogram).expect("JSON");
                prop_assert_eq!(serde_json::from_str::<Histogram>(&text).expect("valid"), histogram);
            }
        }
    }
}
