//! Streams of short and long messages over one connection: by the program's own socket calls, or through an
//! isolated engine.
//!
//! An application thread on one core moves messages, a peer with a plain socket on another is the other end.
//! Measured is what arrives, the processor time of the application's thread, and that of all: application,
//! peer and engine. It is the only part of this crate that links code of Isolane: what an application links.

mod app;
mod compute;
mod engine;
mod options;
mod peer;
mod run;
mod suite;
mod table;
mod way;

pub use options::{Options, Via, Work};
pub use run::{Report, run};
pub use suite::{Suite, SuiteOptions, measure};
pub use table::tables;
