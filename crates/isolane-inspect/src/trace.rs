//! Slow operations and stuck turns as trace events of Chrome, which ui.perfetto.dev shows.
//!
//! Each core is a row. An operation contains its stages, in their order. Operations that overlap another one of their
//! core are in further rows below it.

use std::collections::BTreeMap;

use isolane_observe::snapshot::{Connection, SlowOperation, Snapshot, StuckTurn};
use serde_json::{Value, json};

use crate::text::{date, shown_name, time_of_day};

/// Maximum rows of a core. More operations at one time share the last row.
const MAX_ROWS: u32 = 64;

/// Interval of a row, with the intervals in it.
struct Span {
    core: u32,
    start_ns: u64,
    end_ns: u64,
    name: String,
    details: Value,
    parts: Vec<(&'static str, u64)>,
}

/// Returns the document.
pub fn document(snapshot: &Snapshot) -> Value {
    let names = Names::new(snapshot);
    let operations = snapshot.slow.iter().map(|slow| operation(&names, slow));
    let mut spans: Vec<Span> = operations.chain(snapshot.stuck.iter().map(turn)).collect();
    spans.sort_by_key(|span| (span.core, span.start_ns));
    let zero = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let mut events = vec![json!({
        "ph": "M", "name": "process_name", "pid": snapshot.program.pid,
        "args": { "name": format!("{} on {}", snapshot.program.name, snapshot.program.machine) },
    })];
    let mut rows = Rows::default();
    for span in &spans {
        let row = rows.row_of(span);
        events.extend(events_of(span, snapshot.program.pid, row, zero));
    }
    events.extend(rows.names(snapshot));
    let ms = zero / 1_000_000;
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": { "version": snapshot.program.version, "start": format!("{} {} UTC", date(ms), time_of_day(ms)) },
    })
}

/// Names of a snapshot, by ID.
struct Names<'a> {
    volumes: BTreeMap<u32, &'a str>,
    connections: BTreeMap<u64, &'a Connection>,
}

impl<'a> Names<'a> {
    fn new(snapshot: &'a Snapshot) -> Names<'a> {
        let volumes = snapshot.volumes.iter().map(|volume| (volume.id, volume.name.as_str()));
        let connections = snapshot.numbers.connections.iter().map(|connection| (connection.id, connection));
        Names { volumes: volumes.collect(), connections: connections.collect() }
    }

    fn volume(&self, id: u32) -> String {
        self.volumes.get(&id).map_or_else(|| format!("volume {id}"), |name| shown_name(name, 100))
    }
}

fn operation(names: &Names<'_>, slow: &SlowOperation) -> Span {
    let connection = names.connections.get(&slow.connection);
    let end_ns = slow.at_unix_us.saturating_mul(1000);
    let stages = slow.side.stages().iter().filter_map(|stage| slow.stages.iter().find(|(at, _)| at == stage));
    Span {
        core: slow.core,
        start_ns: end_ns.saturating_sub(slow.total_ns),
        end_ns,
        name: format!("{} {}", slow.operation.name(), names.volume(slow.volume)),
        details: json!({
            "bytes": slow.bytes, "lba": slow.lba, "cid": slow.cid, "depth": slow.depth,
            "host": connection.map(|at| shown_name(&at.host, 250)), "queue": connection.map(|at| at.queue),
            "last_member": slow.last_member.map(|member| names.volume(member)),
        }),
        parts: stages.map(|(stage, ns)| (stage.name(), *ns)).collect(),
    }
}

fn turn(turn: &StuckTurn) -> Span {
    let end_ns = turn.at_unix_us.saturating_mul(1000);
    Span {
        core: turn.core,
        start_ns: end_ns.saturating_sub(turn.lasted_ns),
        end_ns,
        name: format!("stuck turn: {}", turn.phase),
        details: json!({ "state": turn.state, "wchan": turn.wchan, "call": turn.call }),
        parts: Vec::new(),
    }
}

/// Ends of the last spans of each row, by core.
#[derive(Default)]
struct Rows(BTreeMap<u32, Vec<u64>>);

impl Rows {
    /// Returns the thread ID of the first row that is free at the start of the span.
    fn row_of(&mut self, span: &Span) -> u64 {
        let ends = self.0.entry(span.core).or_default();
        let free = ends.iter().position(|end| *end <= span.start_ns).unwrap_or(ends.len());
        let row = free.min(MAX_ROWS as usize - 1);
        if row == ends.len() {
            ends.push(0);
        }
        ends[row] = ends[row].max(span.end_ns);
        thread_of(span.core, row)
    }

    fn names(&self, snapshot: &Snapshot) -> Vec<Value> {
        let cores = snapshot.numbers.cores.iter();
        let cpus: BTreeMap<u32, u32> = cores.filter_map(|core| Some((core.index, core.cpu?))).collect();
        let mut names = Vec::new();
        for (core, ends) in &self.0 {
            let cpu = cpus.get(core).map_or_else(String::new, |cpu| format!(" (CPU {cpu})"));
            for row in 0..ends.len() {
                let more = if row == 0 { String::new() } else { format!(", at the same time {row}") };
                let (pid, tid) = (snapshot.program.pid, thread_of(*core, row));
                let name = format!("core {core}{cpu}{more}");
                names.push(json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name } }));
                names.push(json!({ "ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": { "sort_index": tid } }));
            }
        }
        names
    }
}

/// Rows of a core follow each other. 0 is not a thread.
fn thread_of(core: u32, row: usize) -> u64 {
    u64::from(core) * u64::from(MAX_ROWS) + row as u64 + 1
}

/// Returns the events of a span and its parts, one after the other.
fn events_of(span: &Span, pid: u32, row: u64, zero_ns: u64) -> Vec<Value> {
    let event = |name: &str, start_ns: u64, ns: u64, details: &Value| {
        json!({
            "ph": "X", "name": name, "pid": pid, "tid": row, "args": details,
            "ts": start_ns.saturating_sub(zero_ns) as f64 / 1000.0, "dur": ns as f64 / 1000.0,
        })
    };
    let mut events = vec![event(&span.name, span.start_ns, span.end_ns - span.start_ns, &span.details)];
    let mut at = span.start_ns;
    for (name, ns) in &span.parts {
        let ns = (*ns).min(span.end_ns.saturating_sub(at));
        events.push(event(name, at, ns, &json!({})));
        at += ns;
    }
    events
}

#[cfg(test)]
mod tests {
    use isolane_observe::stage::Stage;

    use super::*;
    use crate::sample::Sample;

    fn events(snapshot: &Snapshot) -> Vec<Value> {
        let document = document(snapshot);
        document["traceEvents"].as_array().expect("events").clone()
    }

    fn spans(snapshot: &Snapshot) -> Vec<(u64, f64, f64, String)> {
        let events = events(snapshot).into_iter().filter(|event| event["ph"] == "X");
        let span = |event: Value| {
            let number = |name: &str| event[name].as_f64().expect("a number");
            let name = event["name"].as_str().expect("a name").to_owned();
            (event["tid"].as_u64().expect("a row"), number("ts"), number("dur"), name)
        };
        events.map(span).collect()
    }

    #[test]
    fn operations_contain_their_stages() {
        let snapshot = Sample { steps: 3, stall: 1..2, ..Sample::default() }.snapshot();
        let spans = spans(&snapshot);
        assert_eq!(spans.len(), 3 * 3, "an operation and two stages in each second");
        for part in spans.chunks(3) {
            let [(row, start, length, name), first, second] = part else { unreachable!() };
            assert!(name.starts_with("read stripe") || name.starts_with("write log"), "{name}");
            assert_eq!([&first.3, &second.3], ["device", "socket"]);
            assert!(first.0 == *row && first.1 == *start && second.1 == start + first.2);
            assert!((first.2 + second.2 - length).abs() < 0.001);
        }
    }

    #[test]
    fn overlapping_operations_have_own_rows() {
        let mut snapshot = Sample { steps: 1, ..Sample::default() }.snapshot();
        let slow = snapshot.slow[0].clone();
        snapshot.slow = vec![slow; 100];
        snapshot.stuck =
            vec![StuckTurn { core: 0, at_unix_us: 5, lasted_ns: u64::MAX, ..StuckTurn::default() }];
        let spans = spans(&snapshot);
        let mut rows: Vec<u64> = spans.iter().map(|span| span.0).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 65, "64 of core 1, and one of core 0");
        let named = events(&snapshot).iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(named, rows.len());
    }

    #[test]
    fn malformed_times_stay_inside_the_operation() {
        let mut snapshot = Sample { steps: 1, ..Sample::default() }.snapshot();
        snapshot.slow[0].stages =
            vec![(Stage::Device, u64::MAX), (Stage::Socket, u64::MAX), (Stage::Wake, 1)];
        let spans = spans(&snapshot);
        let end = spans[0].1 + spans[0].2;
        assert!(spans.iter().all(|(_, start, length, _)| start + length <= end), "{spans:?}");
        assert!(document(&Snapshot::default())["traceEvents"].is_array());
    }
}
