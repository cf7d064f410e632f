//! Decoding and checks of a document.
//!
//! Invariant: in a decoded document, histograms of one kind have one resolution, the parents of volumes have no cycle,
//! and no name has a control character.

use std::collections::BTreeMap;

use isolane_observe::histogram::{Histogram, Resolution, TAIL_ROWS};
use isolane_observe::names::{escape, is_unprintable};
use isolane_observe::snapshot::{Connection, Core, Numbers, Series, Snapshot, System, VERSION, Volume};
use serde::Deserialize;

use super::too_long;

/// Limit for the number of objects. Each takes less than 1 KiB of memory.
const MAX_OBJECTS: usize = 600_000;
/// Limit for the depth of nested volumes.
const MAX_DEPTH: usize = 64;
/// Limit in characters of a name.
const MAX_NAME: usize = 256;

/// Reason for which a document is not a snapshot.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// Path of the field, or the line.
    pub field: String,
    /// The reason.
    pub reason: String,
}

fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Invalid {
    Invalid { field: field.into(), reason: reason.into() }
}

/// Decodes and checks a document.
///
/// # Errors
/// [`Invalid`], which names the field.
pub fn decode(text: &[u8]) -> Result<Snapshot, Invalid> {
    if text.len() > super::MAX_BYTES {
        return Err(invalid("document", too_long(super::MAX_BYTES)));
    }
    if count_objects(text) > MAX_OBJECTS {
        return Err(invalid("document", format!("more than {MAX_OBJECTS} objects")));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let mut snapshot = Snapshot::deserialize(tracked).map_err(|error| malformed(&track.path(), &error))?;
    json.end().map_err(|error| invalid("document", error.to_string()))?;
    check(&snapshot)?;
    clean_snapshot(&mut snapshot);
    Ok(snapshot)
}

/// Decodes and checks a document without the steps. The error is a text for people.
pub(crate) fn parse_document(text: &[u8]) -> Result<Snapshot, String> {
    decode(text).map_err(|invalid| format!("{}: {}", invalid.field, invalid.reason))
}

fn malformed(path: &serde_path_to_error::Path, error: &serde_json::Error) -> Invalid {
    let mut path = path.to_string();
    // A document that ends inside a key ends in the object around it.
    if let Some(object) = path.strip_suffix('?') {
        path = object.trim_end_matches('.').to_owned();
    }
    // A key can be empty.
    let field = if matches!(&*path, "." | "") { format!("line {}", error.line()) } else { clean(&path) };
    invalid(field, clean(&error.to_string()))
}

/// Returns the number of `{` outside of strings.
fn count_objects(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

fn check(snapshot: &Snapshot) -> Result<(), Invalid> {
    if snapshot.version != VERSION {
        return Err(invalid("version", format!("{} is not supported, only {VERSION}", snapshot.version)));
    }
    check_volumes(&snapshot.volumes)?;
    check_numbers("numbers", &snapshot.numbers)?;
    for (at, step) in snapshot.steps.iter().enumerate() {
        check_numbers(&format!("steps[{at}].numbers"), &step.numbers)?;
    }
    for (at, slow) in snapshot.slow.iter().enumerate() {
        if slow.stages.iter().any(|(stage, _)| slow.side.position_of(*stage).is_none()) {
            return Err(invalid(format!("slow[{at}].stages"), "a stage of another side"));
        }
    }
    Ok(())
}

fn check_volumes(volumes: &[Volume]) -> Result<(), Invalid> {
    let parents: BTreeMap<u32, Option<u32>> =
        volumes.iter().map(|volume| (volume.id, volume.parent)).collect();
    if parents.len() < volumes.len() {
        return Err(invalid("volumes", "two volumes with one id"));
    }
    for (at, volume) in volumes.iter().enumerate() {
        let mut next = volume.parent;
        for depth in 0.. {
            let Some(parent) = next else { break };
            let above = parents.get(&parent);
            let Some(above) = above.filter(|_| depth < MAX_DEPTH) else {
                return Err(invalid(format!("volumes[{at}].parent"), "no such volume, or too deep"));
            };
            next = *above;
        }
    }
    Ok(())
}

fn check_numbers(place: &str, numbers: &Numbers) -> Result<(), Invalid> {
    for (at, series) in numbers.series.iter().enumerate() {
        check_series(series)
            .map_err(|(field, reason)| invalid(format!("{place}.series[{at}].{field}"), reason))?;
    }
    for (at, Connection { totals, peer_times, .. }) in numbers.connections.iter().enumerate() {
        if totals.iter().any(|(_, times)| !has(times, Resolution::Four)) {
            return Err(invalid(format!("{place}.connections[{at}].totals"), "not 4 cells per doubling"));
        }
        if peer_times.iter().any(|times| !has(times, Resolution::Four)) {
            return Err(invalid(format!("{place}.connections[{at}].peer_times"), "not 4 cells per doubling"));
        }
    }
    for (at, Core { turns, .. }) in numbers.cores.iter().enumerate() {
        if turns.iter().any(|times| !has(times, Resolution::Four)) {
            return Err(invalid(format!("{place}.cores[{at}].turns"), "not 4 cells per doubling"));
        }
    }
    Ok(())
}

fn check_series(series: &Series) -> Result<(), (&'static str, &'static str)> {
    if !has(&series.total, Resolution::Eight) {
        return Err(("total", "not 8 cells per doubling"));
    }
    if series.unseen.iter().any(|times| !has(times, Resolution::Four)) {
        return Err(("unseen", "not 4 cells per doubling"));
    }
    if series.stages.iter().any(|at| !has(&at.times, Resolution::Four)) {
        return Err(("stages", "not 4 cells per doubling"));
    }
    if series.stages.iter().any(|at| series.side.position_of(at.stage).is_none()) {
        return Err(("stages", "a stage of another side"));
    }
    let stages = series.side.stages().len();
    if series.tail.iter().any(|row| usize::from(row.row) >= TAIL_ROWS || row.sums_ns.len() != stages) {
        return Err(("tail", "not one sum for each stage"));
    }
    Ok(())
}

fn has(times: &Histogram, resolution: Resolution) -> bool {
    times.resolution() == resolution
}

fn clean_snapshot(snapshot: &mut Snapshot) {
    let Snapshot { program, volumes, numbers, stuck, devices, steps, .. } = snapshot;
    [&mut program.name, &mut program.version, &mut program.clock, &mut program.machine]
        .into_iter()
        .for_each(clean_in_place);
    program.limits =
        std::mem::take(&mut program.limits).into_iter().map(|(name, it)| (clean(&name), it)).collect();
    for volume in volumes {
        let Volume { name, kind, group, path, parameters, device, application, background, .. } = volume;
        [name, kind].into_iter().for_each(clean_in_place);
        [group, path, parameters, device, application, background]
            .into_iter()
            .flatten()
            .for_each(clean_in_place);
    }
    clean_numbers(numbers);
    for turn in stuck {
        [&mut turn.phase, &mut turn.state, &mut turn.wchan, &mut turn.call]
            .into_iter()
            .for_each(clean_in_place);
    }
    for device in devices {
        [&mut device.name, &mut device.number, &mut device.model, &mut device.resync]
            .into_iter()
            .for_each(clean_in_place);
        device.pci.iter_mut().chain(&mut device.beneath).for_each(clean_in_place);
        device.interrupts.iter_mut().flat_map(|line| &mut line.actions).for_each(clean_in_place);
    }
    for step in steps {
        clean_numbers(&mut step.numbers);
        clean_system(&mut step.system);
    }
}

fn clean_numbers(numbers: &mut Numbers) {
    for connection in &mut numbers.connections {
        let Connection { host, host_id, local, peer, .. } = connection;
        [host, host_id, local, peer].into_iter().for_each(clean_in_place);
    }
    let counters = std::mem::take(&mut numbers.counters).into_iter();
    numbers.counters = counters.map(|(name, value)| (clean(&name), value)).collect();
}

fn clean_system(system: &mut System) {
    system.interrupts.iter_mut().for_each(|it| clean_in_place(&mut it.line));
    system.disks.iter_mut().for_each(|it| clean_in_place(&mut it.name));
    system.tasks.iter_mut().for_each(|it| clean_in_place(&mut it.name));
    system.users.iter_mut().for_each(|it| clean_in_place(&mut it.name));
    for (what, needs) in &mut system.not_seen {
        [what, needs].into_iter().for_each(clean_in_place);
    }
}

fn clean_in_place(name: &mut String) {
    if name.len() > MAX_NAME || name.chars().any(is_unprintable) {
        *name = clean(name);
    }
}

/// Returns a name of at most [`MAX_NAME`] characters in which unprintable ones are escaped.
fn clean(name: &str) -> String {
    escape(name, MAX_NAME)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(change: Value) -> Vec<u8> {
        let mut document = json!({ "version": VERSION });
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::to_vec(&document).unwrap()
    }

    fn series(change: Value) -> Value {
        let mut series = json!({
            "side": "target", "volume": 0, "core": 0, "operation": "read", "size": "small", "total": [8, 1, [[3, 1]]],
        });
        series.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({ "numbers": { "series": [series] } })
    }

    fn field(change: Value) -> String {
        decode(&document(change)).expect_err("a malformed document").field
    }

    #[test]
    fn accepts_documents_with_missing_parts() {
        assert!(decode(&document(json!({}))).is_ok());
        assert!(decode(&document(series(json!({ "unknown": [1, { "a": 2 }] })))).is_ok());
        let volumes = json!([{ "id": 1, "parent": 0 }, { "id": 0 }]);
        assert!(decode(&document(json!({ "volumes": volumes }))).is_ok());
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(decode(b"{}").unwrap_err().field, "version");
        assert_eq!(decode(br#"{"version":1,"at_unix_ms":"x"}"#).unwrap_err().field, "at_unix_ms");
        assert_eq!(decode(br#"{"version":1} x"#).unwrap_err().field, "document");
        assert_eq!(decode(br#"{"version":1,"":"#).unwrap_err().field, "line 1");
        assert_eq!(decode(br#"{"version":1,"vol"#).unwrap_err().field, "line 1");
        assert_eq!(decode(br#"{"version":1,"volumes":[{"na"#).unwrap_err().field, "volumes[0]");
        let at = |change| field(series(change));
        assert_eq!(at(json!({ "total": [4, 0, []] })), "numbers.series[0].total");
        assert_eq!(at(json!({ "total": [8, 0, [[999, 1]]] })), "numbers.series[0].total");
        assert_eq!(at(json!({ "tail": [{ "row": 99, "sums_ns": [] }] })), "numbers.series[0].tail");
        assert_eq!(at(json!({ "tail": [{ "row": 1, "sums_ns": [1] }] })), "numbers.series[0].tail");
        let stages = json!([{ "stage": "wake", "times": [4, 0, []] }]);
        assert_eq!(at(json!({ "stages": stages })), "numbers.series[0].stages");
        assert_eq!(
            field(json!({ "steps": [{ "numbers": { "cores": [{ "turns": [8, 0, []] }] } }] })),
            "steps[0].numbers.cores[0].turns"
        );
        assert_eq!(
            field(json!({ "numbers": { "connections": [{ "peer_times": [8, 0, []] }] } })),
            "numbers.connections[0].peer_times"
        );
        assert_eq!(field(json!({ "volumes": [{ "id": 3 }, { "id": 3 }] })), "volumes");
    }

    #[test]
    fn rejects_volumes_in_a_cycle() {
        let cycle = json!([{ "id": 0, "parent": 1 }, { "id": 1, "parent": 0 }]);
        assert_eq!(field(json!({ "volumes": cycle })), "volumes[0].parent");
        assert_eq!(field(json!({ "volumes": [{ "id": 0, "parent": 7 }] })), "volumes[0].parent");
    }

    #[test]
    fn bounds_memory_of_small_objects() {
        let many = vec!["{}"; MAX_OBJECTS + 1].join(",");
        let text = format!(r#"{{"version":1,"steps":[{many}]}}"#);
        assert!(decode(text.as_bytes()).unwrap_err().reason.contains("objects"));
        assert_eq!(count_objects(br#"{"a{\"{":{},"b":"{"}"#), 2);
    }

    #[test]
    fn skips_deep_unknown_fields() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(decode(format!(r#"{{"version":1,"x":{deep}}}"#).as_bytes()).is_ok());
        let error = decode(format!(r#"{{"version":1,"volumes":{deep}}}"#).as_bytes()).unwrap_err();
        assert!(error.field.starts_with("volumes"), "{error:?}");
    }

    #[test]
    fn names_have_no_control_characters() {
        let name = format!("\u{1b}[2J\n\u{61c}<b>{}", "x".repeat(65536));
        let snapshot = decode(&document(json!({
            "volumes": [{ "name": name, "path": name }],
            "numbers": { "connections": [{ "host": name }], "counters": { &name: 1 } },
            "steps": [{ "system": { "tasks": [{ "name": name }] } }],
        })))
        .unwrap();
        let Volume { name, path, .. } = &snapshot.volumes[0];
        let texts = [
            name,
            path.as_ref().unwrap(),
            &snapshot.numbers.connections[0].host,
            snapshot.numbers.counters.keys().next().unwrap(),
            &snapshot.steps[0].system.tasks[0].name,
        ];
        for text in texts {
            assert!(text.starts_with("\\u{1b}[2J\\u{a}\\u{61c}<b>xxx"), "{text}");
            assert!(text.chars().count() < 2 * MAX_NAME && text.ends_with('…'), "{text}");
        }
    }
}
