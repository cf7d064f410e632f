//! Life cycle of a connection, the same on both sides.

use std::time::Instant;

/// Where a connection is in its life. It only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// ICReq and ICResp, and Connect.
    Handshake,
    /// Commands flow.
    Open,
    /// A fatal error is being sent; input is discarded until this deadline.
    Draining(Instant),
    /// Nothing more to do but close.
    Closed,
}

impl Phase {
    /// Whether PDUs are still understood.
    pub(crate) fn is_alive(self) -> bool {
        matches!(self, Phase::Handshake | Phase::Open)
    }
}
