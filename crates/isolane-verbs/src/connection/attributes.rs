//! Attributes of a queue pair, and the values that its two ends agree on.

/// Limits of a queue pair, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of send requests without a completion.
    pub send_requests: usize,
    /// Maximum number of receives without a completion; at most [`Limits::MAX_RECEIVES`].
    pub receives: usize,
    /// Maximum number of SGEs of a request.
    pub sges: usize,
    /// Maximum number of bytes of an inline request.
    pub inline_bytes: usize,
}

impl Limits {
    /// Maximum number of receives: the peer counts them modulo 2¹⁶.
    pub const MAX_RECEIVES: usize = 1 << 14;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { send_requests: 128, receives: 128, sges: 4, inline_bytes: 256 }
    }
}

/// Values that the two ends agree on when their first lane opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// Number of the first message that this end sends.
    pub first_message: u32,
    /// Number of the first message that the peer sends.
    pub peer_first_message: u32,
    /// Maximum payload of a segment that the peer accepts, in bytes.
    pub peer_segment_bytes: u32,
    /// Number of READs and atomic operations that the peer can execute at a time.
    pub peer_responder_resources: usize,
    /// Whether the peer takes receives from a shared queue, so that it promises none.
    pub peer_shares_receives: bool,
    /// Number of lanes.
    pub lanes: u8,
}

/// How a queue pair executes requests of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// Number of READs and atomic operations of the peer that can be outstanding.
    pub responder_resources: usize,
    /// Code of the delay that this end names to a peer for which it has no receive: see [`rnr_delay`](crate::wire::rnr_delay).
    pub rnr_timer: u8,
}

impl Default for ReceiveAttributes {
    fn default() -> Self {
        // The code of 640 µs.
        ReceiveAttributes { responder_resources: 16, rnr_timer: 12 }
    }
}

/// How a queue pair sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAttributes {
    /// Number of READs and atomic operations that can be outstanding; the peer can allow fewer.
    pub outstanding_reads: usize,
    /// How often a request is sent again to a peer without a receive, times the delay that the peer names: 0 to 6;
    /// from 7 on forever.
    pub rnr_retries: u8,
}

impl Default for SendAttributes {
    fn default() -> Self {
        SendAttributes { outstanding_reads: 128, rnr_retries: 7 }
    }
}
