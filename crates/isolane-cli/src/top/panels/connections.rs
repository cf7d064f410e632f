//! Connections.

use isolane_inspect::text::duration;
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{Connection, Tcp};

use super::{View, age, bandwidth, quantiles, rate, time};
use crate::top::table::{Cell, Column, Kind, Order, Table, Tone};

const COLUMNS: &[Column] = &[
    Column { name: "host", kind: Kind::Text, rank: 0 },
    Column { name: "address", kind: Kind::Text, rank: 5 },
    Column { name: "queue", kind: Kind::Number, rank: 0 },
    Column { name: "core", kind: Kind::Number, rank: 0 },
    Column { name: "ops/s", kind: Kind::Number, rank: 0 },
    Column { name: "bytes/s", kind: Kind::Number, rank: 4 },
    Column { name: "p50", kind: Kind::Number, rank: 1 },
    Column { name: "p99", kind: Kind::Number, rank: 0 },
    Column { name: "p99.9", kind: Kind::Number, rank: 1 },
    Column { name: "max", kind: Kind::Number, rank: 3 },
    Column { name: "depth", kind: Kind::Number, rank: 2 },
    Column { name: "oldest", kind: Kind::Number, rank: 3 },
    Column { name: "rtt", kind: Kind::Number, rank: 4 },
    Column { name: "peer p50", kind: Kind::Number, rank: 6 },
    Column { name: "peer p99", kind: Kind::Number, rank: 6 },
    Column { name: "state", kind: Kind::Text, rank: 0 },
];

/// Returns the table.
pub fn table(view: &View) -> Table {
    let rows = view.numbers.connections.iter().map(|connection| row(view, connection)).collect();
    let order = Order { column: 0, descending: false };
    Table { title: "Connections", columns: COLUMNS, rows, order, ..Table::default() }
}

fn row(view: &View, connection: &Connection) -> Vec<Cell> {
    let mut total = Histogram::new(Resolution::Four);
    connection.totals.iter().for_each(|(_, times)| total.merge(times));
    let [p50, p99, p999, max] = quantiles(&total);
    let bytes = connection.received_bytes.saturating_add(connection.sent_bytes);
    let peer = |quantile| {
        connection.peer_times.as_ref().map_or_else(Cell::none, |times| time(times.quantile(quantile)))
    };
    let number = |number: u64| Cell::number(number as f64, number.to_string());
    let queue = f64::from(connection.controller) * 65536.0 + f64::from(connection.queue);
    vec![
        Cell::text(&connection.host),
        Cell::text(&connection.peer),
        Cell::number(queue, format!("{}:{}", connection.controller, connection.queue)),
        number(connection.core.into()),
        rate(total.count() as f64 / view.seconds),
        bandwidth(bytes as f64 / view.seconds),
        p50,
        p99,
        p999,
        max,
        number(connection.in_flight.into()),
        age(connection.oldest_ms),
        connection.tcp.map_or_else(Cell::none, |tcp| {
            Cell::number(tcp.rtt_us as f64, duration(tcp.rtt_us.saturating_mul(1000)))
        }),
        peer(0.5),
        peer(0.99),
        state(view, connection),
    ]
}

/// Returns the reason for which the connection is slow, as far as the kernel knows it.
fn state(view: &View, connection: &Connection) -> Cell {
    let tcp = connection.tcp.unwrap_or_default();
    let Tcp { rwnd_limited_us, sndbuf_limited_us, retransmits, .. } = tcp;
    let share = |us: u64| us as f64 / (view.seconds * 10_000.0);
    let (peer, buffer) = (share(rwnd_limited_us), share(sndbuf_limited_us));
    if peer >= MIN_SHARE {
        return Cell::text(format!("peer reads late {peer:.0} %")).with_tone(Tone::Warn);
    }
    if retransmits > 0 {
        return Cell::text(format!("{retransmits} retransmits")).with_tone(Tone::Warn);
    }
    if buffer >= MIN_SHARE {
        return Cell::text(format!("send buffer full {buffer:.0} %"));
    }
    Cell::text(if connection.in_flight > 0 { "busy" } else { "idle" }).with_tone(Tone::Soft)
}

/// Share of the window from which a limit is shown, in percent.
const MIN_SHARE: f64 = 1.0;
