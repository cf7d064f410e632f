//! Requested features and timeouts of a host's connection.

use std::time::Duration;

use isolane_wire::Framing;

/// Requested features and timeouts of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Request header digests.
    pub header_digest: bool,
    /// Request data digests.
    pub data_digest: bool,
    /// Alignment of data towards this host in dwords, 0's based. Old targets require 0.
    pub hpda: u8,
    /// Maximum number of outstanding R2Ts for one command, 0's based, at most 3. Old targets
    /// require 0.
    pub maxr2t: u32,
    /// Timeout from the connection to ICResp.
    pub handshake: Duration,
    /// Stall limit: a partial PDU or queued output fails the connection after one to two limits
    /// without progress, or after four limits in total.
    pub stall: Duration,
    /// Timeout after a fatal error, in which the target reads the TermReq (TCP 1.0 §3.5: at most 30
    /// s).
    pub drain: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        ConnectionConfig {
            header_digest: false,
            data_digest: false,
            hpda: 0,
            maxr2t: 0,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(2),
        }
    }
}

impl ConnectionConfig {
    /// Clamps all values to their valid ranges.
    pub(super) fn clamped(mut self) -> ConnectionConfig {
        self.hpda = self.hpda.min(Framing::MAX_PDA);
        self.maxr2t = self.maxr2t.min(super::commands::MAX_R2TS as u32 - 1);
        self
    }
}
