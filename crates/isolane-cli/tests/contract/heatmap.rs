//! `isolane heatmap` and `isolane trace`: files that they write, and errors.

use super::sample::Sample;
use super::{fail, run, text};

/// Directory with a snapshot in which one of 8 members stalls.
fn snapshot() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let sample = Sample { steps: 30, stalled: 3, stall: 10..15, ..Sample::default() };
    let path = directory.path().join("snapshot.json");
    std::fs::write(&path, serde_json::to_vec(&sample.snapshot()).unwrap()).unwrap();
    let path = text(&path).to_owned();
    (directory, path)
}

#[test]
fn heatmap_draws_a_snapshot() {
    let (directory, from) = snapshot();
    for (by, name) in [("device", "disk3"), ("volume", "stripe"), ("core", "core 1"), ("host", "nqn.")] {
        for ending in ["svg", "html"] {
            let output = directory.path().join(format!("{by}.{ending}"));
            assert!(run(&["heatmap", "--from", &from, "--by", by, "-o", text(&output)]).status.success());
            let drawing = std::fs::read_to_string(&output).unwrap();
            assert!(drawing.contains("<svg") && drawing.contains(name), "{by}.{ending}");
            assert_eq!(drawing.starts_with("<!doctype html>"), ending == "html");
            assert_eq!(drawing.contains("30 s, "), ending == "html", "the verdict over all steps");
        }
    }
}

#[test]
fn heatmap_writes_an_image() {
    let (directory, from) = snapshot();
    let output = directory.path().join("drawing.png");
    assert!(run(&["heatmap", "--from", &from, "-o", text(&output)]).status.success());
    assert!(std::fs::read(&output).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
}

#[test]
fn heatmap_rejects_wrong_files() {
    let (directory, from) = snapshot();
    let output = directory.path().join("drawing.gif");
    let error = fail(&["heatmap", "--from", &from, "-o", text(&output)]);
    assert!(error.contains("drawing.gif") && error.contains(".svg, .png, or .html"), "{error}");
    std::fs::write(&from, "{\"version\":1}").unwrap();
    let output = directory.path().join("drawing.svg");
    let error = fail(&["heatmap", "--from", &from, "-o", text(&output)]);
    assert!(error.contains("no operation of a device in 0 recorded steps; try again"), "{error}");
    assert!(!output.exists());
}

#[test]
fn trace_has_a_row_for_each_core() {
    let (directory, from) = snapshot();
    let output = directory.path().join("trace.json");
    assert!(run(&["trace", "--from", &from, "-o", text(&output)]).status.success());
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let rows: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(rows.len(), 1, "all slow operations are on core 1");
    assert_eq!(rows[0]["args"]["name"], "core 1 (CPU 2)");
    assert_eq!(events.iter().filter(|event| event["name"] == "device").count(), 30);
}
