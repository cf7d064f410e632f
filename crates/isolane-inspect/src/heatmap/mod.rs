//! Heat maps: time x latency x number of operations, one strip for each item, all on one scale.
//!
//! [`HeatMap::new`] counts the operations of a snapshot's steps by item, time, and latency. `drawing` arranges the
//! counts, [`HeatMap::to_svg`] and [`HeatMap::to_png`] draw them, and [`html::document`] writes several heat maps with the stages and the verdict into one file. Nothing
//! here reads a file or a clock.
//!
//! Invariant: the size of a drawing has a bound that does not depend on the snapshot: [`MAX_STRIPS`] strips of
//! [`MAX_COLUMNS`] columns.

mod columns;
mod counts;
mod drawing;
pub mod html;
mod items;
mod outlier;
mod png;
mod scale;
mod shape;
mod stages;
mod svg;
#[cfg(test)]
mod tests;

use isolane_observe::snapshot::Snapshot;

use self::columns::Column;
use self::counts::Counts;
use self::outlier::Outlier;
use self::scale::Levels;

/// Maximum number of strips. The items with the most operations are drawn.
pub const MAX_STRIPS: usize = 64;
/// Maximum number of columns. Steps beyond it are drawn together.
pub const MAX_COLUMNS: usize = 600;

/// Kind of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Members of stripes and mirrors, and volumes without members. Those on one disk are one item.
    Device,
    /// Volumes that hosts see.
    Volume,
    /// Threads that do I/O.
    Core,
    /// Hosts.
    Host,
}

impl By {
    /// All kinds.
    pub const ALL: [By; 4] = [By::Device, By::Volume, By::Core, By::Host];

    /// Returns the name of one item.
    pub const fn name(self) -> &'static str {
        match self {
            By::Device => "device",
            By::Volume => "volume",
            By::Core => "core",
            By::Host => "host",
        }
    }
}

/// Counted operations of a snapshot.
#[derive(Clone, Debug)]
pub struct HeatMap {
    by: By,
    /// Program and machine.
    source: String,
    columns: Vec<Column>,
    strips: Vec<Strip>,
    /// Items with operations that are not drawn.
    left_out: usize,
    levels: Levels,
}

/// One item.
#[derive(Clone, Debug)]
struct Strip {
    name: String,
    /// Operations of each column.
    counts: Vec<Counts>,
    /// Operations of all columns.
    total: Counts,
    /// Present if the item is slower than its peers.
    outlier: Option<Outlier>,
}

impl HeatMap {
    /// Counts the operations of the steps. Returns `None` if the steps have none for this kind of item.
    pub fn new(snapshot: &Snapshot, by: By) -> Option<HeatMap> {
        let columns = columns::of_steps(&snapshot.steps);
        let (items, left_out) = items::busiest(snapshot, by);
        let mut strips: Vec<Strip> =
            items.list.iter().map(|item| Strip::new(&item.name, columns.len())).collect();
        for (column, steps) in columns.iter().enumerate() {
            for step in &snapshot.steps[steps.steps.clone()] {
                items.for_each(&step.numbers, |item, histogram| {
                    strips[item].counts[column].add(histogram);
                    strips[item].total.add(histogram);
                });
            }
        }
        let peers: Vec<_> = items.list.iter().map(|item| item.peers.as_str()).collect();
        outlier::mark(&mut strips, &peers);
        let levels = Levels::new(strips.iter().flat_map(|strip| {
            strip.counts.iter().zip(&columns).map(|(counts, column)| column.rate(counts.largest()))
        }));
        let program = &snapshot.program;
        let source = format!("{} {} on {}", program.name, program.pid, program.machine);
        (!strips.is_empty()).then_some(HeatMap { by, source, columns, strips, left_out, levels })
    }

    /// Returns the names of the items that are slower than their peers.
    pub fn outliers(&self) -> impl Iterator<Item = &str> {
        self.strips.iter().filter(|strip| strip.outlier.is_some()).map(|strip| strip.name.as_str())
    }

    /// Returns the drawing as an SVG document.
    pub fn to_svg(&self) -> String {
        let (shapes, size) = drawing::draw(self);
        svg::document(&shapes, size)
    }

    /// Returns the drawing as an image, in the form of a PNG file.
    pub fn to_png(&self) -> Vec<u8> {
        let (shapes, size) = drawing::draw(self);
        png::file(&shapes, size)
    }
}

impl Strip {
    fn new(name: &str, columns: usize) -> Strip {
        Strip {
            name: name.to_owned(),
            counts: vec![Counts::default(); columns],
            total: Counts::default(),
            outlier: None,
        }
    }
}
