//! Shared parts of the tests: a writer and checker of durable data, captures, and the import graph of crates.
//!
//! `cargo test` runs the files in `tests/`. The shell suites run the `durable` program during kills and power
//! cuts of a target.

#![forbid(unsafe_code)]

pub mod capture;
pub mod durable;
pub mod imports;

/// Rust code of every document; `tests/snippets.rs` checks that the list is complete.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    #[doc = include_str!("../../CHANGELOG.md")]
    #[doc = include_str!("../../CONTRIBUTING.md")]
    #[doc = include_str!("../../SECURITY.md")]
    #[doc = include_str!("../README.md")]
    #[doc = include_str!("../../docs/ARCHITECTURE.md")]
    #[doc = include_str!("../../docs/AUTH.md")]
    #[doc = include_str!("../../docs/CAPABILITIES.md")]
    #[doc = include_str!("../../docs/CEPH.md")]
    #[doc = include_str!("../../docs/CONFIG.md")]
    #[doc = include_str!("../../docs/CONTROL.md")]
    #[doc = include_str!("../../docs/DOCTOR.md")]
    #[doc = include_str!("../../docs/DURABILITY.md")]
    #[doc = include_str!("../../docs/EXPLAIN.md")]
    #[doc = include_str!("../../docs/INTEROP.md")]
    #[doc = include_str!("../../docs/ISOLATION.md")]
    #[doc = include_str!("../../docs/OPERATING.md")]
    #[doc = include_str!("../../docs/PERFORMANCE.md")]
    #[doc = include_str!("../../docs/PROGRAMMING.md")]
    #[doc = include_str!("../../docs/PYTHON.md")]
    #[doc = include_str!("../../docs/README.md")]
    #[doc = include_str!("../../docs/TECHNIQUES.md")]
    #[doc = include_str!("../../docs/VERBS.md")]
    struct Documents;
}
