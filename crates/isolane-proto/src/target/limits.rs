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
    /// What may pass what on the way.
    pub scheduling: Scheduling,
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
    pub granted_bytes_max: usize,
}

impl Scheduling {
    /// Short before long, and nothing long starves.
    pub const ON: Scheduling =
        Scheduling { chunk_bytes: 128 << 10, ready_bytes: 1 << 20, granted_bytes_max: 1 << 20 };

    /// First come, first served.
    pub const OFF: Scheduling =
        Scheduling { chunk_bytes: usize::MAX, ready_bytes: usize::MAX, granted_bytes_max: usize::MAX };

    /// Answers longer than this wait for their turn.
    pub(super) fn long_bytes(&self) -> usize {
        if self.chunk_bytes == usize::MAX { usize::MAX } else { self.chunk_bytes / 4 }
    }

    /// How much is asked for at a time when several transfers wait for their turn; and how much may be asked
    /// for without a turn, in addition.
    pub(super) fn grant_bytes(&self) -> usize {
        self.granted_bytes_max / 4
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            h2c_data_bytes_max: 1 << 20,
            r2t_bytes_max: 1 << 20,
            in_capsule_bytes_max: 16 * 1024,
            scheduling: Scheduling::ON,
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
        self.scheduling.chunk_bytes = (self.scheduling.chunk_bytes & !3).max(4096);
        self.scheduling.ready_bytes = self.scheduling.ready_bytes.max(4);
        self.scheduling.granted_bytes_max = (self.scheduling.granted_bytes_max & !15).max(4 * 4096);
        self.in_capsule_bytes_max = self.in_capsule_bytes_max.max(8192);
        self.cpda = self.cpda.min(Framing::PDA_MAX);
        self.commands_before_connect_max = self.commands_before_connect_max.max(1);
        self
    }
}
