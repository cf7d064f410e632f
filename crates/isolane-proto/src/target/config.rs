//! Offered features, limits, and timeouts of a target's connection.

use std::time::Duration;

use isolane_wire::Framing;

/// The bounds of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Most bytes of one H2CData PDU: MAXH2CDATA. At least 4,096 and a multiple of 4.
    pub max_h2c_data_bytes: u32,
    /// Most bytes asked for by one R2T.
    pub max_r2t_bytes: u32,
    /// Most bytes of data in a capsule. At least 8,192, which admin and fabrics commands may carry.
    pub max_in_capsule_bytes: u32,
    /// Order of transfers.
    pub scheduling: Scheduling,
    /// Accept header digests when the host asks for them.
    pub header_digest: bool,
    /// Accept data digests when the host asks for them.
    pub data_digest: bool,
    /// Alignment of data towards this target in dwords, 0's based. Linux hosts want 0.
    pub cpda: u8,
    /// Most commands in flight before Connect has told the queue's size.
    pub max_commands_before_connect: usize,
    /// From accept to a successful Connect.
    pub handshake: Duration,
    /// A transfer, a half-received PDU or queued output may rest for so long, twice that at the most, and
    /// take four times that in all.
    pub stall: Duration,
    /// After a fatal error, the host's time to read our TermReq and close (TCP 1.0 §3.5: at most 30 s).
    pub drain: Duration,
}

/// How far bulk is let ahead of what comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Answers longer than this wait for their turn, and are sent in data PDUs of at most so many bytes, with
    /// shorter answers between them.
    pub chunk_bytes: usize,
    /// Long answers get turns until so many bytes are ready to be sent; a quarter of it while short ones are
    /// sent, too.
    pub ready_bytes: usize,
    /// Write data that is asked for and has not arrived, in bytes: more is asked for when some of it has
    /// come.
    pub max_granted_bytes: usize,
}

impl Scheduling {
    /// Short before long, and nothing long starves.
    pub const ON: Scheduling =
        Scheduling { chunk_bytes: 128 << 10, ready_bytes: 1 << 20, max_granted_bytes: 1 << 20 };

    /// First come, first served.
    pub const OFF: Scheduling =
        Scheduling { chunk_bytes: usize::MAX, ready_bytes: usize::MAX, max_granted_bytes: usize::MAX };

    /// Answers longer than this wait for their turn.
    pub(super) fn long_bytes(&self) -> usize {
        if self.chunk_bytes == usize::MAX { usize::MAX } else { self.chunk_bytes / 4 }
    }

    /// How much is asked for at a time when several transfers wait for their turn; and how much may be asked
    /// for without a turn, in addition.
    pub(super) fn grant_bytes(&self) -> usize {
        self.max_granted_bytes / 4
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        ConnectionConfig {
            max_h2c_data_bytes: 1 << 20,
            max_r2t_bytes: 1 << 20,
            max_in_capsule_bytes: 16 * 1024,
            scheduling: Scheduling::ON,
            header_digest: true,
            data_digest: true,
            cpda: 0,
            max_commands_before_connect: 4,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl ConnectionConfig {
    /// The same limits made legal: MAXH2CDATA a multiple of 4 and at least 4,096 (TCP 1.0 §3.6.2.3), 8,192
    /// in-capsule bytes accepted (§3.3.1), no empty R2T.
    pub(super) fn clamped(mut self) -> ConnectionConfig {
        self.max_h2c_data_bytes = (self.max_h2c_data_bytes & !3).max(4096);
        self.max_r2t_bytes = (self.max_r2t_bytes & !3).max(4096);
        self.scheduling.chunk_bytes = (self.scheduling.chunk_bytes & !3).max(4096);
        self.scheduling.ready_bytes = self.scheduling.ready_bytes.max(4);
        self.scheduling.max_granted_bytes = (self.scheduling.max_granted_bytes & !15).max(4 * 4096);
        self.max_in_capsule_bytes = self.max_in_capsule_bytes.max(8192);
        self.cpda = self.cpda.min(Framing::MAX_PDA);
        self.max_commands_before_connect = self.max_commands_before_connect.max(1);
        self
    }
}
