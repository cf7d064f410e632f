//! Target for configuration files: any text, and texts that are almost valid.
//!
//! Invariants: no text causes a panic or an unbounded report, a valid one survives printing, and differences applied to
//! a text have the meaning of the new configuration.

use isolane_config::{Config, MAX_SHOWN_PROBLEMS, ObjectId, diff, edit, gaps};
use isolane_volumes::Kinds;

use crate::Target;

pub const TARGETS: &[Target] = &[Target { name: "config", check: file, corpus: files }];

const FULL: &str = include_str!("../../crates/isolane-config/src/full.toml");
const EXAMPLE: &str = include_str!("../../docs/isolane.toml");

fn files() -> Vec<Vec<u8>> {
    let tables = FULL.split("\n\n").map(|table| table.as_bytes().to_vec());
    tables.chain([FULL.into(), EXAMPLE.into()]).collect()
}

fn file(bytes: &[u8]) {
    let (text, kinds) = (String::from_utf8_lossy(bytes), Kinds::default());
    let config = match Config::parse(&text, "f", &kinds) {
        Ok(config) => config,
        Err(problems) => {
            let shown = problems.to_string();
            assert!(problems.count > 0 && problems.shown.len() <= MAX_SHOWN_PROBLEMS);
            assert!(shown.len() <= MAX_SHOWN_PROBLEMS * MAX_PROBLEM_BYTES + 100, "{shown}");
            return;
        }
    };
    let printed = config.to_toml();
    assert_eq!(Config::parse(&printed, "f", &kinds).as_ref(), Ok(&config), "{printed}");
    assert!(diff(&config, &config).is_empty());
    gaps(&config).iter().for_each(|gap| drop(gap.to_string()));
    let other = Config::parse(EXAMPLE, "f", &kinds).expect("the example is valid");
    for (text, old, new) in [(&*text, &config, &other), (EXAMPLE, &other, &config)] {
        let edits: Vec<(ObjectId, _)> =
            diff(old, new).into_iter().map(|change| (change.object, change.edit)).collect();
        let (text, edited) = edit(text, &edits, "f", &kinds).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(edited, *new, "{text}");
    }
}

/// Bytes of one problem: place, key, value, reason, and remedy are bounded by the bounds of names and of shown values,
/// and by the volumes that an error quotes.
const MAX_PROBLEM_BYTES: usize = 4096;
