//! Runs the tests of `bench/measure`.

use std::io::ErrorKind;
use std::process::Command;

#[test]
fn measurements_pass_their_own_tests() {
    run("test_measure.py");
}

#[test]
fn scenarios_pass_their_own_tests() {
    run("test_explain.py");
}

fn run(script: &str) {
    let path = format!("{}/measure/tests/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = match Command::new("python3").args(["-B", &path]).output() {
        Ok(output) => output,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return eprintln!("skipped: there is no python3, which measurements need");
        }
        Err(error) => panic!("cannot run python3: {error}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
