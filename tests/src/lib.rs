//! What the scenarios share: a writer that remembers what it was promised, and a checker that holds the
//! disk to it; captures that other programs can read.
//!
//! Not a test by itself: `cargo test` runs the files in `tests/`, the suites of shell scripts run the
//! `durable` program beside a target that is killed or loses its power.

#![forbid(unsafe_code)]

pub mod capture;
pub mod durable;
