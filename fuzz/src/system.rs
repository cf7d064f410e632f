//! Targets for the parsers of `/proc` and `/sys`, one for each.
//!
//! Invariant: no text makes a parser panic.

use isolane_inspect::system::*;

use crate::Target;

/// Expands to the target of a parser, with samples of its text.
macro_rules! parser {
    ($name:literal, $decode:expr, $($sample:expr),+) => {
        Target {
            name: $name,
            check: |bytes| {
                let _ = $decode(&String::from_utf8_lossy(bytes));
            },
            corpus: || vec![$($sample.as_bytes().to_vec()),+],
        }
    };
}

/// All parsers.
pub(crate) const TARGETS: &[Target] = &[
    parser!("system-number", decode_number, "18446744073709551615\n", "0"),
    parser!("system-cpu-list", decode_cpu_list, "0-3,8\n", "0,2-16383"),
];
