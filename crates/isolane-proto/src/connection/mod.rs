//! Receiving, sending, and stall detection, shared by both ends of a connection.
//!
//! Splits the byte stream into PDUs, places payload, and queues output. This module knows lengths,
//! digests, and the rules of every PDU; [`target`](crate::target) and [`host`](crate::host) interpret
//! the PDUs.

mod body;
mod header;
mod input;
mod phase;
mod plan;
mod predict;
mod receiver;
mod send_queue;
mod stall;
mod step;
mod violation;

pub use plan::{MAX_RECEIVE_SLICES, MAX_TRANSMIT_SLICES, ReceivePlan, TransmitPlan};
pub use violation::{FatalError, Violation};

pub(crate) use header::Header;
pub(crate) use phase::Phase;
pub(crate) use predict::Prediction;
pub(crate) use receiver::Receiver;
pub(crate) use send_queue::SendQueue;
pub(crate) use stall::{Outstanding, StallDetector, Watermark};
pub(crate) use step::Step;
