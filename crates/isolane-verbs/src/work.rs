//! Work requests and their completions.

use smallvec::SmallVec;

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
        key: u32,
        /// Immediate data, which completes a receive of the peer.
        immediate: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Address of the first byte.
        address: u64,
        /// Remote key.
        key: u32,
    },
    /// Replaces 8 bytes of the peer if they have the expected value.
    CompareSwap {
        /// Address, a multiple of 8.
        address: u64,
        /// Remote key.
        key: u32,
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
        key: u32,
        /// Value to add.
        add: u64,
    },
}

impl SendOperation {
    /// Returns whether the peer needs a receive for it.
    pub(crate) fn consumes_receive(&self) -> bool {
        matches!(self, SendOperation::Send { .. } | SendOperation::Write { immediate: Some(_), .. })
    }

    /// Returns whether it completes with a response, not with an acknowledgment.
    pub(crate) fn has_response(&self) -> bool {
        use SendOperation::{CompareSwap, FetchAdd, Read};
        matches!(self, Read { .. } | CompareSwap { .. } | FetchAdd { .. })
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
