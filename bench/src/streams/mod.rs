//! Streams of messages over one connection, by native socket calls or through an isolated engine.
//!
//! An application thread on one core moves messages, and a peer with a plain socket on another core is the other end.
//! The report has the rate, the processor time of the application's thread, and the total of application, peer, and engine.

mod app;
mod compute;
mod options;
mod peer;
mod run;
mod transport;

pub use options::{Options, Via, Work};
pub use run::{Report, run};
