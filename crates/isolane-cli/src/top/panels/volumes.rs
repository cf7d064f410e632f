//! Volumes that hosts see, with a row for each operation.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use isolane_inspect::window::by_operation;
use isolane_observe::snapshot::{Series, Volume};
use isolane_observe::stage::{Operation, Stage};

use super::{View, age, bandwidth, bar, letter, quantiles, rate};
use crate::top::table::{Cell, Column, Kind, Order, Table, Tone};

const COLUMNS: &[Column] = &[
    Column { name: "volume", kind: Kind::Text, rank: 0 },
    Column { name: "op", kind: Kind::Text, rank: 0 },
    Column { name: "ops/s", kind: Kind::Number, rank: 0 },
    Column { name: "bytes/s", kind: Kind::Number, rank: 4 },
    Column { name: "p50", kind: Kind::Number, rank: 0 },
    Column { name: "p99", kind: Kind::Number, rank: 0 },
    Column { name: "p99.9", kind: Kind::Number, rank: 0 },
    Column { name: "max", kind: Kind::Number, rank: 0 },
    Column { name: "oldest", kind: Kind::Number, rank: 2 },
    Column { name: "errors", kind: Kind::Number, rank: 5 },
    Column { name: "state", kind: Kind::Text, rank: 3 },
    Column { name: "stages", kind: Kind::Bar, rank: 1 },
];

/// Returns the table.
pub fn table(view: &View) -> Table {
    let sums = by_operation(&view.numbers);
    let mut rows = Vec::new();
    let mut stages = BTreeSet::new();
    for volume in view.snapshot.volumes.iter().filter(|volume| volume.parent.is_none()) {
        let before = rows.len();
        for ((_, operation), sum) in sums.range(keys_of(volume.id)) {
            rows.push(row(view, volume, operation.name(), Some(sum)));
            stages.extend(sum.side.stages().iter().filter(|stage| sum.stage_sum_ns(**stage) > 0));
        }
        if rows.len() == before {
            rows.push(row(view, volume, "-", None));
        }
    }
    let note: Vec<String> =
        stages.iter().map(|stage| format!("{} {}", letter(*stage), stage.name())).collect();
    let order = Order { column: 0, descending: false };
    Table { title: "Volumes", note: note.join("  "), columns: COLUMNS, rows, order }
}

/// Returns the keys of all operations of a volume or queue pair.
pub fn keys_of(volume: u32) -> RangeInclusive<(u32, Operation)> {
    (volume, Operation::Read)..=(volume, Operation::Atomic)
}

fn row(view: &View, volume: &Volume, operation: &str, sum: Option<&Series>) -> Vec<Cell> {
    let count = sum.map_or(0, |sum| sum.total.count());
    let bytes = sum.map_or(0, |sum| sum.bytes);
    let errors = sum.map_or(0, |sum| sum.errors);
    let none = || [(); 4].map(|()| Cell::none());
    let [p50, p99, p999, max] = sum.map_or_else(none, |sum| quantiles(&sum.total));
    let stages = sum.map(|sum| bar(sum.side, |stage: Stage| sum.stage_sum_ns(stage)));
    vec![
        Cell::text(&volume.name),
        Cell::text(operation),
        rate(count as f64 / view.seconds),
        bandwidth(bytes as f64 / view.seconds),
        p50,
        p99,
        p999,
        max,
        age(volume.oldest_ms),
        if errors == 0 {
            Cell::none()
        } else {
            Cell::number(errors as f64, errors.to_string()).with_tone(Tone::Bad)
        },
        Cell::text(volume.background.as_deref().unwrap_or("-")),
        stages.unwrap_or_else(|| Cell::bar(Vec::new())),
    ]
}
