//! Contents of the tables.

mod connections;
mod cores;
mod devices;
mod slow;
mod volumes;

use std::collections::BTreeMap;

use isolane_inspect::text::{amount, duration};
use isolane_inspect::window;
use isolane_observe::histogram::Histogram;
use isolane_observe::snapshot::{Connection, Numbers, Snapshot, Volume};
use isolane_observe::stage::{Side, Stage};

use super::table::{Cell, Table, Tone};

/// Names of the tables, in their order.
pub const NAMES: [&str; 5] = ["volumes", "devices", "connections", "cores", "slow"];

/// A snapshot, and the numbers of a window that ends with it.
#[derive(Debug)]
pub struct View {
    pub snapshot: Snapshot,
    pub numbers: Numbers,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Positions in the snapshot, by ID.
    volumes: BTreeMap<u32, usize>,
    connections: BTreeMap<u64, usize>,
}

impl View {
    /// Returns the view of the time between two copies. Without an older copy, or after a restart of the program, it is
    /// the time since the start.
    pub fn between(earlier: Option<&Snapshot>, snapshot: Snapshot) -> View {
        let same = earlier.filter(|earlier| snapshot.is_same_run(earlier));
        let (numbers, ms) = match same {
            Some(earlier) => {
                let ms = snapshot.program.uptime_ms.saturating_sub(earlier.program.uptime_ms);
                (snapshot.numbers.since(&earlier.numbers), ms)
            }
            None => (snapshot.numbers.clone(), snapshot.program.uptime_ms),
        };
        View::new(snapshot, numbers, ms.max(1) as f64 / 1000.0)
    }

    fn new(snapshot: Snapshot, numbers: Numbers, seconds: f64) -> View {
        let volumes = snapshot.volumes.iter().enumerate().map(|(at, volume)| (volume.id, at)).collect();
        let connections =
            snapshot.numbers.connections.iter().enumerate().map(|(at, it)| (it.id, at)).collect();
        View { snapshot, numbers, seconds, volumes, connections }
    }

    fn volume(&self, id: u32) -> Option<&Volume> {
        self.volumes.get(&id).map(|at| &self.snapshot.volumes[*at])
    }

    fn connection(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id).map(|at| &self.snapshot.numbers.connections[*at])
    }

    /// Returns the view of the last steps, at most `seconds` long and without the last `skipped`; without steps, of the
    /// time since the start.
    pub fn of_last_steps(mut snapshot: Snapshot, seconds: u64, skipped: usize) -> View {
        let last = snapshot.steps.len().saturating_sub(skipped.saturating_add(1));
        let Some(end) = snapshot.steps.get(last).map(|step| step.at_unix_ms) else {
            return View::between(None, snapshot);
        };
        let is_before = |at: u64| at.saturating_add(seconds.saturating_mul(1000)) <= end;
        let first = snapshot.steps.iter().position(|step| !is_before(step.at_unix_ms)).unwrap_or(last);
        let (numbers, seconds) = window::sum_of_steps(&snapshot.steps[first.min(last)..=last]);
        snapshot.at_unix_ms = end;
        View::new(snapshot, numbers, seconds)
    }

    /// Returns the tables in the order of [`NAMES`].
    pub fn tables(&self) -> [Table; 5] {
        [
            volumes::table(self),
            devices::table(self),
            connections::table(self),
            cores::table(self),
            slow::table(self),
        ]
    }

    /// Returns completions and bytes per second of the volumes that hosts see.
    pub fn rates(&self) -> (f64, f64) {
        let is_member = |id: u32| self.volume(id).is_some_and(|volume| volume.parent.is_some());
        let own = self.numbers.series.iter().filter(|series| !is_member(series.volume));
        let (count, bytes) = own.fold((0.0, 0.0), |(count, bytes), series| {
            (count + series.total.count() as f64, bytes + series.bytes as f64)
        });
        (count / self.seconds, bytes / self.seconds)
    }
}

/// Returns cells of p50, p99, p99.9, and the upper bound of the maximum.
fn quantiles(times: &Histogram) -> [Cell; 4] {
    if times.count() == 0 {
        return [(); 4].map(|()| Cell::none());
    }
    [times.quantile(0.5), times.quantile(0.99), times.quantile(0.999), times.max_bound()].map(time)
}

fn time(ns: u64) -> Cell {
    Cell::number(ns as f64, duration(ns))
}

fn rate(per_second: f64) -> Cell {
    if per_second > 0.0 { Cell::number(per_second, amount(per_second)) } else { Cell::none() }
}

fn bandwidth(per_second: f64) -> Cell {
    if per_second <= 0.0 {
        return Cell::none();
    }
    Cell::number(per_second, format!("{}/s", crate::units::show_bytes(per_second)))
}

/// Returns the age of the oldest command in flight; young ones are not of interest.
fn age(ms: Option<u64>) -> Cell {
    let tone = match ms {
        Some(10_000..) => Tone::Bad,
        Some(1000..) => Tone::Warn,
        _ => Tone::Plain,
    };
    let shown = ms.filter(|ms| *ms > 0).map(|ms| time(ms.saturating_mul(1_000_000)));
    shown.map_or_else(Cell::none, |cell| cell.with_tone(tone))
}

/// Returns the letter of a stage in bars. No two stages of a side have the same.
fn letter(stage: Stage) -> char {
    match stage {
        Stage::Blocks => 'k',
        Stage::Deliver => 'v',
        Stage::Wake => 'k',
        Stage::Rx => 'x',
        Stage::Poll => 'l',
        _ => stage.name().chars().next().unwrap_or('?'),
    }
}

/// Returns a bar of the shares of stages, in their order.
fn bar(side: Side, ns_of: impl Fn(Stage) -> u64) -> Cell {
    let sum = side.stages().iter().map(|stage| ns_of(*stage) as f64).sum::<f64>().max(1.0);
    let parts = side.stages().iter().enumerate();
    Cell::bar(parts.map(|(color, stage)| (letter(*stage), ns_of(*stage) as f64 / sum, color)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stages_of_a_side_have_different_letters() {
        for side in [Side::Target, Side::Host, Side::Engine, Side::Stream, Side::Verbs] {
            let letters: BTreeSet<char> = side.stages().iter().map(|stage| letter(*stage)).collect();
            assert_eq!(letters.len(), side.stages().len(), "{side:?}");
        }
    }
}
