//! What a target offers and how long it waits.

use std::time::Duration;

use isolane_wire::Framing;

/// The bounds of one connection.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most bytes of one H2CData PDU: MAXH2CDATA. At least 4,096 and a multiple of 4.
    pub h2c_data_bytes_max: u32,
    /// Most bytes asked for by one R2T.
    pub r2t_bytes_max: u32,
    /// Most bytes of data in a capsule. At least 8,192, which admin and fabrics commands may carry.
    pub in_capsule_bytes_max: u32,
    /// Accept header digests when the host asks for them.
    pub header_digest: bool,
    /// Accept data digests when the host asks for them.
    pub data_digest: bool,
    /// Alignment of data towards this target in dwords, 0's based. Linux hosts want 0.
    pub cpda: u8,
    /// Most commands in flight before Connect has told the queue's size.
    pub commands_before_connect_max: usize,
    /// From accept to a successful Connect.
    pub handshake: Duration,
    /// A transfer, a half-received PDU or queued output may rest for so long, twice that at the most, and take four
    /// times that in all.
    pub stall: Duration,
    /// After a fatal error, the host's time to read our TermReq and close (TCP 1.0 §3.5: at most 30 s).
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            h2c_data_bytes_max: 1 << 20,
            r2t_bytes_max: 1 << 20,
            in_capsule_bytes_max: 16 * 1024,
            header_digest: true,
            data_digest: true,
            cpda: 0,
            commands_before_connect_max: 4,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// The same limits made legal: MAXH2CDATA a multiple of 4 and at least 4,096 (TCP 1.0 §3.6.2.3), 8,192
    /// in-capsule bytes accepted (§3.3.1), no empty R2T.
    pub(super) fn legal(mut self) -> Limits {
        self.h2c_data_bytes_max = (self.h2c_data_bytes_max & !3).max(4096);
        self.r2t_bytes_max = (self.r2t_bytes_max & !3).max(4096);
        self.in_capsule_bytes_max = self.in_capsule_bytes_max.max(8192);
        self.cpda = self.cpda.min(Framing::PDA_MAX);
        self.commands_before_connect_max = self.commands_before_connect_max.max(1);
        self
    }
}
