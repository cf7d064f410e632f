//! Requested features and timeouts of a host's connection.

use std::time::Duration;

use isolane_wire::Framing;

/// The wishes and bounds of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Alignment of data towards this host in dwords, 0's based. Old targets want 0.
    pub hpda: u8,
    /// R2Ts that may be outstanding for one command, 0's based, at most 3. Old targets want 0.
    pub maxr2t: u32,
    /// From the connection to ICResp.
    pub handshake: Duration,
    /// A half-received PDU or queued output may rest for so long, twice that at the most, and take four times
    /// that in all.
    pub stall: Duration,
    /// After a fatal error, the target's time to read our TermReq (TCP 1.0 §3.5: at most 30 s).
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
    /// The same options made legal.
    pub(super) fn clamped(mut self) -> ConnectionConfig {
        self.hpda = self.hpda.min(Framing::MAX_PDA);
        self.maxr2t = self.maxr2t.min(super::commands::MAX_R2TS as u32 - 1);
        self
    }
}
