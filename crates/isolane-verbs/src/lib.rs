//! Verbs over TCP: queue pairs, completion queues, and registered memory.
//!
//! * [`QueuePair`]: both ends of the protocol of a reliable queue pair, without a socket, a clock, or a thread.
//! * [`ProtectionDomain`]: registered memory, found by key.
//! * [`wire`]: the format of segments and of the exchange that opens a lane.
//!
//! Invariant: input from a peer never panics, and never reaches memory outside of a registration that allows it.
#![forbid(unsafe_code)]

mod memory;
mod queue_pair;
pub mod wire;
mod work;

pub use memory::{Access, AccessError, ProtectionDomain, RegisterError, Registration};
pub use queue_pair::{Agreement, AsyncEvent, Limits, PostError, Queue, QueuePair, State};
pub use work::{
    CompletedOperation, Completion, Element, Elements, LocalData, ReceiveRequest, SendOperation, SendRequest,
    Status,
};
