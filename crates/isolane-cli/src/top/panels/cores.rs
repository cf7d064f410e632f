//! Cores of the program.

use isolane_observe::snapshot::Core;

use super::{View, rate, time};
use crate::top::table::{Cell, Column, Kind, Order, Table, Tone};

const COLUMNS: &[Column] = &[
    Column { name: "core", kind: Kind::Number, rank: 0 },
    Column { name: "CPU", kind: Kind::Number, rank: 0 },
    Column { name: "busy", kind: Kind::Number, rank: 0 },
    Column { name: "waited", kind: Kind::Number, rank: 0 },
    Column { name: "asleep", kind: Kind::Number, rank: 0 },
    Column { name: "late", kind: Kind::Number, rank: 2 },
    Column { name: "turns/s", kind: Kind::Number, rank: 2 },
    Column { name: "turn p99", kind: Kind::Number, rank: 2 },
    Column { name: "turn max", kind: Kind::Number, rank: 2 },
    Column { name: "time", kind: Kind::Bar, rank: 1 },
    Column { name: "other tasks", kind: Kind::Text, rank: 3 },
];

/// Share of the time for which a core waited that is worth a look, and bad, in percent.
const WARN_WAITED: f64 = 0.5;
const BAD_WAITED: f64 = 5.0;

/// Returns the table.
pub fn table(view: &View) -> Table {
    let rows =
        view.numbers.cores.iter().filter(|core| core.thread != 0).map(|core| row(view, core)).collect();
    let note = "b busy  w waited for the CPU  a asleep".to_owned();
    Table { title: "Cores", note, columns: COLUMNS, rows, order: Order::default() }
}

fn row(view: &View, core: &Core) -> Vec<Cell> {
    let share = |ns: u64| ns as f64 / (view.seconds * 1e7);
    let percent = |ns: u64| Cell::number(share(ns), format!("{:.1} %", share(ns)));
    let waited = share(core.waited_ns);
    let tone = match waited {
        BAD_WAITED.. => Tone::Bad,
        WARN_WAITED.. => Tone::Warn,
        _ => Tone::Plain,
    };
    let turns = core.turns.as_ref().filter(|turns| turns.count() > 0);
    let parts = [
        ('b', core.busy_ns.saturating_sub(core.waited_ns), 6),
        ('w', core.waited_ns, 3),
        ('a', core.asleep_ns, 4),
    ];
    vec![
        Cell::number(core.index.into(), core.index.to_string()),
        core.cpu.map_or_else(Cell::none, |cpu| Cell::number(cpu.into(), cpu.to_string())),
        percent(core.busy_ns),
        percent(core.waited_ns).with_tone(tone),
        percent(core.asleep_ns),
        time(core.late_ns),
        turns.map_or_else(Cell::none, |turns| rate(turns.count() as f64 / view.seconds)),
        turns.map_or_else(Cell::none, |turns| time(turns.quantile(0.99))),
        turns.map_or_else(Cell::none, |turns| time(turns.max_bound())),
        Cell::bar(parts.map(|(letter, ns, color)| (letter, (share(ns) / 100.0).min(1.0), color)).to_vec()),
        others(view, core),
    ]
}

/// Returns the other tasks on the CPU of a core, in the last step.
fn others(view: &View, core: &Core) -> Cell {
    let tasks = view.snapshot.steps.last().map(|step| step.system.tasks.as_slice()).unwrap_or_default();
    let mut tasks: Vec<_> = tasks.iter().filter(|task| Some(task.cpu) == core.cpu).collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(task.ran_ms));
    let names: Vec<String> =
        tasks.iter().take(2).map(|task| format!("{} ({})", task.name, task.pid)).collect();
    if names.is_empty() { Cell::none() } else { Cell::text(names.join(", ")) }
}
