//! Slow operations of the last minutes.

use isolane_inspect::text::{duration, time_of_day};
use isolane_observe::snapshot::SlowOperation;

use super::{View, time};
use crate::top::table::{Cell, Column, Kind, Order, Table};
use crate::units::show_bytes;

const COLUMNS: &[Column] = &[
    Column { name: "time (UTC)", kind: Kind::Text, rank: 0 },
    Column { name: "volume", kind: Kind::Text, rank: 0 },
    Column { name: "op", kind: Kind::Text, rank: 0 },
    Column { name: "size", kind: Kind::Number, rank: 3 },
    Column { name: "LBA", kind: Kind::Number, rank: 4 },
    Column { name: "total", kind: Kind::Number, rank: 0 },
    Column { name: "stages", kind: Kind::Text, rank: 0 },
    Column { name: "core", kind: Kind::Number, rank: 4 },
    Column { name: "depth", kind: Kind::Number, rank: 3 },
    Column { name: "host", kind: Kind::Text, rank: 5 },
    Column { name: "queue", kind: Kind::Number, rank: 5 },
    Column { name: "CID", kind: Kind::Number, rank: 6 },
];

/// Limit for the number of rows.
const MAX_ROWS: usize = 10_000;

/// Returns the table, the latest operation first.
pub fn table(view: &View) -> Table {
    let rows = view.snapshot.slow.iter().rev().take(MAX_ROWS).map(|slow| row(view, slow)).collect();
    let order = Order { column: 0, descending: true };
    Table { title: "Slow operations", columns: COLUMNS, rows, order, ..Table::default() }
}

fn row(view: &View, slow: &SlowOperation) -> Vec<Cell> {
    let name = |id: u32| view.volume(id).map_or_else(|| format!("volume {id}"), |volume| volume.name.clone());
    let connection = view.connection(slow.connection);
    let queue = connection.map(|at| at.queue).or(slow.host_queue().map(|(_, queue)| queue));
    let number = |number: u64| Cell::number(number as f64, number.to_string());
    let of_queue = |value: u16| if slow.has_connection() { number(value.into()) } else { Cell::none() };
    let ms = slow.at_unix_us / 1000;
    let at = format!("{}.{:03}", time_of_day(ms), ms % 1000);
    vec![
        Cell::text(at),
        Cell::text(name(slow.volume)),
        Cell::text(slow.operation.name()),
        Cell::number(slow.bytes as f64, show_bytes(slow.bytes as f64)),
        number(slow.lba),
        time(slow.total_ns),
        Cell::text(stages(slow, name)),
        number(slow.core.into()),
        of_queue(slow.depth),
        connection.map_or_else(Cell::none, |at| Cell::text(&at.host)),
        queue.map_or_else(Cell::none, |queue| number(queue.into())),
        of_queue(slow.cid),
    ]
}

/// Returns the stages that took at least a tenth of the time, the longest first, and the last member.
fn stages(slow: &SlowOperation, name: impl Fn(u32) -> String) -> String {
    let mut stages: Vec<_> = slow.stages.iter().filter(|(_, ns)| *ns >= slow.total_ns / 10).collect();
    stages.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let stages = stages.iter().map(|(stage, ns)| format!("{} {}", stage.name(), duration(*ns)));
    let last = slow.last_member.map(|member| format!("last {}", name(member)));
    stages.chain(last).collect::<Vec<_>>().join(", ")
}
