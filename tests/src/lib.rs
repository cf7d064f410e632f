//! What the scenarios share: a writer that remembers what it was promised, and a checker that holds the
//! disk to it; captures that other programs can read.
//!
//! Not a test by itself: `cargo test` runs the files in `tests/`, the suites of shell scripts run the
//! `durable` program beside a target that is killed or loses its power.

#![forbid(unsafe_code)]

pub mod capture;
pub mod durable;

/// The Rust of every document; `tests/snippets.rs` checks that none is left out.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    #[doc = include_str!("../../CHANGELOG.md")]
    #[doc = include_str!("../README.md")]
    #[doc = include_str!("../../docs/ARCHITECTURE.md")]
    #[doc = include_str!("../../docs/DURABILITY.md")]
    #[doc = include_str!("../../docs/INTEROP.md")]
    #[doc = include_str!("../../docs/ISOLATION.md")]
    #[doc = include_str!("../../docs/PERFORMANCE.md")]
    #[doc = include_str!("../../docs/TECHNIQUES.md")]
    #[doc = include_str!("../../docs/capabilities.md")]
    struct Documents;
}
