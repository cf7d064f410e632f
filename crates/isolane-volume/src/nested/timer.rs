//! Times of requests to members.

use std::sync::Arc;

use isolane_observe::stage::Operation;
use isolane_reactor::clock;

use crate::request::Request;
use crate::volume::Volume;

/// End of requests to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEnd {
    /// A request to a member has ended.
    One {
        /// [`address_of`] the member.
        member: usize,
        /// Kind.
        operation: Operation,
        /// Length.
        bytes: u64,
        /// Duration, in nanoseconds.
        ns: u64,
        /// It was successful.
        succeeded: bool,
    },
    /// A nested request with writes to several members has ended.
    Last {
        /// Given to [`Executor::start_tagged`](super::Executor::start_tagged).
        tag: Option<u64>,
        /// [`address_of`] the member whose write ended last.
        member: usize,
        /// Length of its write.
        bytes: u64,
        /// Time after the end of the write before it, in nanoseconds.
        by_ns: u64,
    },
}

impl MemberEnd {
    /// Returns [`address_of`] the member.
    pub fn member(&self) -> usize {
        match self {
            MemberEnd::One { member, .. } | MemberEnd::Last { member, .. } => *member,
        }
    }
}

/// Returns a number that identifies a volume while it is open.
pub fn address_of(volume: &Arc<dyn Volume>) -> usize {
    Arc::as_ptr(volume).cast::<()>().addr()
}

/// Ended requests that the driver has not taken.
#[derive(Debug, Default)]
pub(super) struct MemberTimer {
    pub ended: Vec<MemberEnd>,
}

/// A request to a member in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    member: usize,
    operation: Operation,
    bytes: u64,
    started: u64,
}

/// The last end of the writes of one nested request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWrite {
    writes: u32,
    member: usize,
    bytes: u64,
    ended: u64,
    before: u64,
}

impl Run {
    pub fn new(volume: &Arc<dyn Volume>, request: &Request, is_timed: bool) -> Run {
        let in_bytes = |blocks: u64| blocks * u64::from(volume.info().block_size);
        let (operation, bytes) = match request {
            Request::Read { blocks, .. } => (Operation::Read, in_bytes(*blocks)),
            Request::Write { blocks, .. } => (Operation::Write, in_bytes(*blocks)),
            Request::WriteZeroes { blocks, .. } => (Operation::WriteZeroes, in_bytes(*blocks)),
            Request::Deallocate { .. } => (Operation::Deallocate, 0),
            Request::Flush | Request::Continue(_) => (Operation::Flush, 0),
        };
        Run { member: address_of(volume), operation, bytes, started: if is_timed { clock::now() } else { 0 } }
    }
}

impl MemberTimer {
    /// A request to a member has ended; `writes` is that of the nested request that sent it.
    pub fn end(&mut self, run: &Run, succeeded: bool, writes: Option<&mut LastWrite>) {
        let now = clock::now();
        let Run { member, operation, bytes, started } = *run;
        let ns = now.saturating_sub(started);
        self.ended.push(MemberEnd::One { member, operation, bytes, ns, succeeded });
        if let Some(last) = writes.filter(|_| operation == Operation::Write) {
            *last = LastWrite { writes: last.writes + 1, member, bytes, ended: now, before: last.ended };
        }
    }

    /// A nested request has ended.
    pub fn end_request(&mut self, tag: Option<u64>, writes: &LastWrite) {
        let LastWrite { writes, member, bytes, ended, before } = *writes;
        if writes > 1 {
            let by_ns = ended.saturating_sub(before);
            self.ended.push(MemberEnd::Last { tag, member, bytes, by_ns });
        }
    }
}
