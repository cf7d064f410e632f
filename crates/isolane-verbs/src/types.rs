//! Types of the interface: states and limits of queue pairs, work requests, and their completions.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

/// State of a queue pair (IBA 1.3 §10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Requests of the peer are executed.
    ReadyToReceive,
    /// Requests are also sent.
    ReadyToSend,
    /// All requests are flushed.
    Error,
}

impl QueuePairState {
    /// Whether lanes can be open, and the queue pair has not failed.
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend)
    }
}

/// Why a request cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PostError {
    /// The state does not allow it.
    #[error("a queue pair in state {0:?} does not take this request")]
    State(QueuePairState),
    /// The queue pair takes receives from a shared queue.
    #[error("the queue pair takes its receives from a shared receive queue; post to that")]
    SharedReceiveQueue,
    /// The queue is full.
    #[error("the queue is full with {0} requests; poll completions first")]
    Full(usize),
    /// The request has too many SGEs.
    #[error("a request of {sges} SGEs exceeds the limit of {limit}")]
    Sges {
        /// Number of SGEs.
        sges: usize,
        /// Limit.
        limit: usize,
    },
    /// The request cannot carry inline data, or not that much.
    #[error(
        "{bytes} bytes of inline data exceed the limit of {limit}, or belong to a request without a source"
    )]
    Inline {
        /// Number of bytes.
        bytes: usize,
        /// Limit.
        limit: usize,
    },
    /// The request is longer than 2 GiB, or an atomic operation without exactly 8 bytes.
    #[error("a request of {0} bytes; atomic operations have 8 bytes, all others up to 2 GiB")]
    Length(u64),
}

/// Event that belongs to no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// A request of the peer was invalid.
    InvalidRequest,
    /// A request of the peer was not allowed by key, bounds, or rights.
    AccessViolation,
    /// The peer broke the protocol.
    Fatal,
    /// The shared receive queue has fewer receives than its limit.
    LimitReached,
    /// A failed queue pair has taken its last receive from the shared receive queue.
    LastReceive,
}

/// Function that receives the events of the queue pair with a number. It is called with locks held: it cannot call the
/// library.
pub type OnEvent = Arc<dyn Fn(u32, AsyncEvent) + Send + Sync>;

/// Function that is called when a queue pair has failed. It is called with locks held: it cannot call the library.
pub type OnEnd = Arc<dyn Fn() + Send + Sync>;

/// Function that receives completions, and returns whether they belong in their queue. It is called with locks held: it
/// cannot call the library.
pub type OnCompletion = Arc<dyn Fn(Queue, &Completion) -> bool + Send + Sync>;

/// The other end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of its device.
    pub address: IpAddr,
    /// Number of its queue pair.
    pub number: u32,
}

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
    /// Whether a CRC32C follows each header and each payload.
    pub checksums: bool,
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

/// Range of registered memory in a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// Ranges of registered memory, in order.
pub type SgeList = SmallVec<[Sge; 1]>;

/// Request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Returned in the completion.
    pub id: u64,
    /// Operation.
    pub operation: SendOperation,
    /// Source of a SEND or WRITE; destination of a READ or atomic operation.
    pub data: LocalData,
    /// Whether a success has a completion.
    pub signaled: bool,
    /// Whether the receive that it completes wakes a waiting program.
    pub solicited: bool,
    /// Whether it waits for the READs and atomic operations before it.
    pub fenced: bool,
}

/// Local data of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalData {
    /// Registered memory.
    Sges(SgeList),
    /// A copy, which the program need not keep.
    Inline(Vec<u8>),
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// Fills a receive of the peer.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Writes to memory of the peer.
    Write {
        /// Address of the first byte.
        address: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data, which completes a receive of the peer.
        immediate: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Address of the first byte.
        address: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Replaces 8 bytes of the peer if they have the expected value.
    CompareSwap {
        /// Address, a multiple of 8.
        address: u64,
        /// Remote key.
        rkey: u32,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer.
    FetchAdd {
        /// Address, a multiple of 8.
        address: u64,
        /// Remote key.
        rkey: u32,
        /// Value to add.
        add: u64,
    },
}

/// What the peer answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Acknowledgment,
    /// Any number of bytes.
    Data,
    /// The 8 bytes that an atomic operation has found.
    Value,
}

impl SendOperation {
    /// Returns whether the peer needs a receive for it.
    pub(crate) fn consumes_receive(&self) -> bool {
        match self {
            SendOperation::Send { .. } => true,
            SendOperation::Write { immediate, .. } => immediate.is_some(),
            SendOperation::Read { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. } => false,
        }
    }

    /// Returns the first address of the peer at which it writes bytes of this end.
    pub(crate) fn written_address(&self) -> Option<u64> {
        match self {
            SendOperation::Write { address, .. } => Some(*address),
            SendOperation::Send { .. }
            | SendOperation::Read { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. } => None,
        }
    }

    /// Returns what the peer answers.
    pub(crate) fn answer(&self) -> Answer {
        match self {
            SendOperation::Send { .. } | SendOperation::Write { .. } => Answer::Acknowledgment,
            SendOperation::Read { .. } => Answer::Data,
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => Answer::Value,
        }
    }

    /// Returns whether it completes with a response, not with an acknowledgment.
    pub(crate) fn has_response(&self) -> bool {
        self.answer() != Answer::Acknowledgment
    }
}

/// Request for the receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Returned in the completion.
    pub id: u64,
    /// Destination.
    pub data: SgeList,
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramRequest {
    /// Returned in the completion.
    pub id: u64,
    /// Payload, up to [`MAX_DATAGRAM_BYTES`](crate::MAX_DATAGRAM_BYTES).
    pub data: LocalData,
    /// Receiver.
    pub destination: Destination,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether a success has a completion.
    pub signaled: bool,
    /// Whether the receive that it completes wakes a waiting program.
    pub solicited: bool,
}

/// Receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address of its device.
    pub address: IpAddr,
    /// Number of its queue pair.
    pub number: u32,
    /// Its Q_Key. If the highest bit is set, the Q_Key of the sending queue pair counts.
    pub q_key: u32,
}

/// Length in bytes of the header that precedes the payload in a receive: a global route header of InfiniBand.
pub const GRH_BYTES: usize = 40;

/// Completion of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the request.
    pub id: u64,
    /// Result.
    pub status: Status,
    /// Kind of operation.
    pub operation: CompletedOperation,
    /// Number of bytes received, if the operation received data and succeeded.
    pub length: u64,
    /// Immediate data of a receive.
    pub immediate: Option<u32>,
    /// Whether the peer asked to wake a waiting program.
    pub solicited: bool,
    /// Number of the queue pair that has sent a received datagram.
    pub source: Option<u32>,
}

/// Queue that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// A finished request of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Number of the queue pair: [`QueuePair::number`](crate::QueuePair::number).
    pub queue_pair: u32,
    /// Result.
    pub completion: Completion,
}

/// Notice of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionNotice {
    /// A completion of the requested kind has arrived.
    Arrived,
    /// The queue was full when a completion arrived.
    Overrun,
}

/// Function that receives notices. It is called with locks held: it cannot call the library.
pub type OnNotice = Box<dyn Fn(CompletionNotice) + Send + Sync>;

/// Kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedOperation {
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// A compare and swap.
    CompareSwap,
    /// A fetch and add.
    FetchAdd,
    /// A receive that a SEND filled.
    Receive,
    /// A receive that the immediate data of a WRITE completed.
    ReceiveWrite,
}

impl From<&SendOperation> for CompletedOperation {
    fn from(operation: &SendOperation) -> Self {
        match operation {
            SendOperation::Send { .. } => CompletedOperation::Send,
            SendOperation::Write { .. } => CompletedOperation::Write,
            SendOperation::Read { .. } => CompletedOperation::Read,
            SendOperation::CompareSwap { .. } => CompletedOperation::CompareSwap,
            SendOperation::FetchAdd { .. } => CompletedOperation::FetchAdd,
        }
    }
}

isolane_layout::codes! {
    /// Status of a completion, with the numbers of `ibv_wc_status`.
    pub enum Status: u8 {
        Success = 0, "success";
        LocalLength = 1, "local length error";
        LocalProtection = 4, "local protection error";
        Flushed = 5, "work request flushed";
        BadResponse = 7, "bad response";
        RemoteInvalidRequest = 9, "remote invalid request";
        RemoteAccess = 10, "remote access error";
        RemoteOperation = 11, "remote operation error";
        RetryExceeded = 12, "transport retry counter exceeded";
        RnrRetryExceeded = 13, "receiver not ready retry counter exceeded";
    }
}
