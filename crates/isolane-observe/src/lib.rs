//! Latency histograms, stages of I/O commands, and the snapshot that describes a running program.
//!
//! The data path records into [`cells`]: one writer, plain stores, no allocation per command. A reader copies them at
//! any time into a [`snapshot::Snapshot`]; numbers are cumulative and never reset, so each reader subtracts its own
//! previous copy ([`snapshot::Numbers::since`]) and no reader disturbs another one. Every histogram has the same
//! borders, so merging is addition ([`histogram::Histogram`]).
//!
//! | module | purpose |
//! |---|---|
//! | [`histogram`] | borders, plain histograms, quantiles |
//! | [`stage`] | operations, size classes, and the stages of each side |
//! | [`cells`] | the histograms that a core writes |
//! | [`slow`] | the slow operations of a core |
//! | [`observable`] | volumes and clients whose numbers any thread can read |
//! | [`ring`] | ring of records with one writer |
//! | [`snapshot`] | all data of a program, as one document |
//! | [`names`] | characters that must not be shown |
//! | [`peers`] | the rule that finds slow members of a group |
//! | [`topology`] | volumes, their members, and the devices that a user compares |
//! | [`verdict`] | the causes of slow operations, with evidence |
//!
//! Invariant: the sum of the stages of a command is its total, to the nanosecond.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cells;
pub mod histogram;
pub mod names;
pub mod observable;
pub mod peers;
pub mod ring;
pub mod slow;
pub mod snapshot;
pub mod stage;
mod sync;
pub mod topology;
pub mod verdict;
