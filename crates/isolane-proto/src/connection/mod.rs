//! Receiving and sending of PDUs, shared by both ends of a connection.
//!
//! Splits the byte stream into PDUs, places payload, and digests data. This module knows lengths,
//! digests, and the rules of every PDU; [`target`](crate::target) and [`host`](crate::host)
//! interpret the PDUs.

mod body;
mod digested;
mod header;
mod predict;
mod receiver;
mod violation;

use std::time::Instant;

pub use violation::{FatalError, Violation};

pub(crate) use digested::push_data;
pub(crate) use header::{Header, exact};
pub(crate) use predict::Prediction;
pub(crate) use receiver::Receiver;

/// Phase of a connection; it only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// ICReq, ICResp, and Connect.
    Handshake,
    /// Commands are exchanged.
    Open,
    /// A fatal error is being sent; input is discarded until this deadline.
    Draining(Instant),
    /// The driver must close the connection.
    Closed,
}

impl Phase {
    /// Whether PDUs are still interpreted.
    pub(crate) fn is_alive(self) -> bool {
        matches!(self, Phase::Handshake | Phase::Open)
    }
}

/// Result of one receive step.
pub enum Step<E> {
    /// An event for the driver.
    Event(E),
    /// No event; more input may be available.
    Continue,
    /// More bytes must arrive.
    NeedMoreData,
}
