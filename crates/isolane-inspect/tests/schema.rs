//! The published schema of the snapshot.

use std::path::Path;

#[test]
fn committed_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/snapshot.schema.json");
    let remedy = "run `cargo run -p isolane-inspect --example schema > docs/snapshot.schema.json`";
    assert!(std::fs::read_to_string(path).unwrap() == isolane_observe::snapshot::schema(), "{remedy}");
}
