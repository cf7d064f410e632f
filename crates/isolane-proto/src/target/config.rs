//! Offered features, limits, and timeouts of a target's connection.

use std::time::Duration;

use isolane_wire::Framing;

/// Configuration of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Maximum data of one H2CData PDU, in bytes (MAXH2CDATA): at least 4,096, and a multiple of 4.
    pub max_h2c_data_bytes: u32,
    /// Maximum data requested by one R2T, in bytes.
    pub max_r2t_bytes: u32,
    /// Maximum in-capsule data, in bytes: at least 8,192, which admin and fabrics commands can
    /// carry.
    pub max_in_capsule_bytes: u32,
    /// Order of transfers.
    pub scheduling: Scheduling,
    /// Accept header digests if the host requests them.
    pub header_digest: bool,
    /// Accept data digests if the host requests them.
    pub data_digest: bool,
    /// Alignment of data towards this target in dwords, 0's based. Linux hosts require 0.
    pub cpda: u8,
    /// Maximum number of commands in flight before Connect sets the queue size.
    pub max_commands_before_connect: usize,
    /// Timeout from accept to a successful Connect.
    pub handshake: Duration,
    /// Stall limit: a transfer, a partial PDU, or queued output fails the connection after one to
    /// two limits without progress, or after four limits in total.
    pub stall: Duration,
    /// Timeout after a fatal error, in which the host reads the TermReq and closes (TCP 1.0 §3.5:
    /// at most 30 s).
    pub drain: Duration,
}

/// Limits on bulk data that is queued ahead of later commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Maximum length of a data PDU of a long response, in bytes. Shorter responses are sent
    /// between these PDUs.
    pub chunk_bytes: usize,
    /// Number of bytes ready to be sent at which long responses wait; a quarter of it while short
    /// responses are also being sent.
    pub ready_bytes: usize,
    /// Maximum requested write data that has not arrived, in bytes.
    pub max_granted_bytes: usize,
}

impl Scheduling {
    /// Short before long, without starvation.
    pub const ON: Scheduling =
        Scheduling { chunk_bytes: 128 << 10, ready_bytes: 1 << 20, max_granted_bytes: 1 << 20 };

    /// First come, first served.
    pub const OFF: Scheduling =
        Scheduling { chunk_bytes: usize::MAX, ready_bytes: usize::MAX, max_granted_bytes: usize::MAX };

    /// Minimum length of a long response, which is scheduled.
    pub(super) fn long_bytes(&self) -> usize {
        if self.chunk_bytes == usize::MAX { usize::MAX } else { self.chunk_bytes / 4 }
    }

    /// Length of one grant while several transfers wait; also the limit of unscheduled grants in
    /// total.
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
    /// Clamps all values to their valid ranges: MAXH2CDATA a multiple of 4 and at least 4,096 (TCP
    /// 1.0 §3.6.2.3), at least 8,192 in-capsule bytes (§3.3.1), no empty R2T.
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
