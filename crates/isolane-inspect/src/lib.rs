//! Inspection of a running Isolane and of its system.
//!
//! | module | purpose |
//! |---|---|
//! | [`control`] | control socket of a running program |
//! | [`deep`] | times of interrupt handlers, tasks, and disk requests, which need root |
//! | [`heatmap`] | drawings of time x latency x number of operations |
//! | [`host`] | control socket of a program with a host |
//! | [`light`] | lights of the slot of a drive |
//! | [`metrics`] | OpenMetrics text, and protobuf for Prometheus |
//! | [`document`] | the snapshot of this program, for readers |
//! | [`events`] | events of this program, for clients that follow them |
//! | [`program`] | the program that side threads describe |
//! | [`side_threads`] | all side threads of a program |
//! | [`source`] | snapshots of a running program or of a file, for commands |
//! | [`doctor`] | checks of the settings of the system |
//! | [`system`] | readers of `/proc` and `/sys` below a replaceable root |
//! | [`text`] | names, durations, rates, and times for people |
//! | [`topology`] | hardware beneath a volume, cores, and connections |
//! | [`trace`] | slow operations as trace events |
//! | [`window`] | sums of the numbers of several steps |
//!
//! Only programs depend on this crate; target, host, and engine do not.
//!
//! Invariant: nothing here runs in the thread of a reactor.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod control;
pub mod deep;
pub mod doctor;
pub mod document;
pub mod events;
pub mod heatmap;
pub mod host;
pub mod light;
pub mod metrics;
mod placement;
pub mod program;
mod recorder;
#[cfg(test)]
mod sample;
pub mod side_threads;
pub mod source;
pub mod system;
#[cfg(test)]
mod testing;
pub mod text;
pub mod topology;
pub mod trace;
mod unix_socket;
pub mod window;

pub use host::serve;
