//! Devices next to their peers.

use std::collections::BTreeMap;

use isolane_inspect::window::by_operation;
use isolane_observe::histogram::Histogram;
use isolane_observe::peers::compare::median;
use isolane_observe::peers::{Criterion, compare};
use isolane_observe::snapshot::Series;
use isolane_observe::stage::Operation;
use isolane_observe::topology::{Peer, Topology};

use super::volumes::keys_of;
use super::{View, age, bandwidth, quantiles, rate};
use crate::top::table::{Cell, Column, Kind, Order, Table, Tone};

const COLUMNS: &[Column] = &[
    Column { name: "member of", kind: Kind::Text, rank: 3 },
    Column { name: "device", kind: Kind::Text, rank: 0 },
    Column { name: "op", kind: Kind::Text, rank: 0 },
    Column { name: "ops/s", kind: Kind::Number, rank: 0 },
    Column { name: "bytes/s", kind: Kind::Number, rank: 4 },
    Column { name: "p50", kind: Kind::Number, rank: 0 },
    Column { name: "p99", kind: Kind::Number, rank: 0 },
    Column { name: "p99.9", kind: Kind::Number, rank: 0 },
    Column { name: "max", kind: Kind::Number, rank: 1 },
    Column { name: "p99 to peers", kind: Kind::Number, rank: 0 },
    Column { name: "last", kind: Kind::Number, rank: 2 },
    Column { name: "oldest", kind: Kind::Number, rank: 2 },
    Column { name: "state", kind: Kind::Text, rank: 3 },
];

/// Limit for the number of rows.
const MAX_ROWS: usize = 1000;

/// Returns the table.
pub fn table(view: &View) -> Table {
    let sums = by_operation(&view.numbers);
    let mut found: Vec<(Peer, Operation, Series)> = Vec::new();
    for peer in Topology::new(&view.snapshot).devices() {
        let mut operations: BTreeMap<Operation, Series> = BTreeMap::new();
        for ((_, operation), sum) in peer.volumes.iter().flat_map(|volume| sums.range(keys_of(*volume))) {
            operations.entry(*operation).and_modify(|at| at.merge(sum)).or_insert_with(|| sum.clone());
        }
        found.extend(operations.into_iter().map(|(operation, sum)| (peer.clone(), operation, sum)));
    }
    found.truncate(MAX_ROWS);
    let groups = Groups::new(&found);
    let devices = found.iter().zip(&groups.positions);
    let rows = devices.map(|((peer, operation, sum), position)| {
        row(view, peer, *operation, sum, (groups.of(peer, *operation), *position))
    });
    let rows = rows.collect();
    let order = Order { column: 1, descending: false };
    Table { title: "Devices", columns: COLUMNS, rows, order, ..Table::default() }
}

fn row(
    view: &View,
    peer: &Peer,
    operation: Operation,
    sum: &Series,
    (group, position): (&Group<'_>, usize),
) -> Vec<Cell> {
    let volumes = || peer.volumes.iter().filter_map(|id| view.volume(*id));
    let above =
        peer.above.and_then(|id| view.volume(id)).map_or(Cell::none(), |volume| Cell::text(&volume.name));
    let oldest = volumes().filter_map(|volume| volume.oldest_ms).max();
    let state: Vec<&str> = volumes().filter_map(|volume| volume.background.as_deref()).collect();
    let [p50, p99, p999, max] = quantiles(&sum.total);
    vec![
        above,
        Cell::text(&peer.name),
        Cell::text(operation.name()),
        rate(sum.total.count() as f64 / view.seconds),
        bandwidth(sum.bytes as f64 / view.seconds),
        p50,
        p99,
        p999,
        max,
        group.ratio(position),
        group.last(sum),
        age(oldest),
        Cell::text(if state.is_empty() { "-".to_owned() } else { state.join(", ") }),
    ]
}

/// Devices of a group with the same operation.
#[derive(Default)]
struct Group<'a> {
    times: Vec<&'a Histogram>,
    /// Writes that a member completed last.
    last: f64,
    /// Positions of the devices that are slower than the others.
    slow: Vec<usize>,
}

/// Groups, by name and operation, and the position of each device in its group.
struct Groups<'a> {
    groups: BTreeMap<(&'a str, Operation), Group<'a>>,
    positions: Vec<usize>,
}

impl<'a> Groups<'a> {
    fn new(devices: &'a [(Peer, Operation, Series)]) -> Groups<'a> {
        let mut groups: BTreeMap<_, Group<'a>> = BTreeMap::new();
        let mut positions = Vec::new();
        for (peer, operation, sum) in devices {
            let group = groups.entry((peer.group.as_str(), *operation)).or_default();
            positions.push(group.times.len());
            group.times.push(&sum.total);
            group.last += sum.last as f64;
        }
        groups.values_mut().for_each(Group::find_slow);
        Groups { groups, positions }
    }

    fn of(&self, peer: &'a Peer, operation: Operation) -> &Group<'a> {
        &self.groups[&(peer.group.as_str(), operation)]
    }
}

impl Group<'_> {
    fn find_slow(&mut self) {
        let quantiles = |criterion: Criterion| -> Vec<Option<f64>> {
            self.times.iter().map(|times| criterion.quantile_of(times)).collect()
        };
        let criteria = [Criterion::MEDIAN, Criterion::TAIL, Criterion::STALLS];
        let found =
            criteria.into_iter().flat_map(|criterion| compare(&quantiles(criterion), criterion.ratio));
        self.slow = found.map(|outlier| outlier.member).collect();
    }

    /// Returns the ratio of p99 to the median of the other devices.
    fn ratio(&self, position: usize) -> Cell {
        let others = self.times.iter().enumerate().filter(|(at, _)| *at != position);
        let mut others: Vec<f64> = others.map(|(_, times)| times.quantile(0.99) as f64).collect();
        others.sort_by(f64::total_cmp);
        let middle = median(&others);
        if middle <= 0.0 {
            return Cell::none();
        }
        let ratio = self.times[position].quantile(0.99) as f64 / middle;
        let tone = if self.slow.contains(&position) { Tone::Bad } else { Tone::Plain };
        Cell::number(ratio, format!("{ratio:.1}x")).with_tone(tone)
    }

    /// Returns the share of the writes that this member completed last.
    fn last(&self, sum: &Series) -> Cell {
        if self.last <= 0.0 {
            return Cell::none();
        }
        let share = sum.last as f64 / self.last * 100.0;
        Cell::number(share, format!("{share:.0} %"))
    }
}
