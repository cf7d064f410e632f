//! Verbs over TCP: queue pairs, completion queues, and registered memory.
//!
//! * [`Device`], [`QueuePair`], [`CompletionQueue`]: queue pairs over TCP, for any thread.
//! * [`ReliableConnection`]: both ends of the protocol of a queue pair, without a socket, a clock, or a thread.
//! * [`SharedReceiveQueue`]: receives for many queue pairs.
//! * [`ProtectionDomain`]: registered memory, found by key.
//! * [`wire`]: the format of segments and of the exchange that opens a lane.
//!
//! Invariant: input from a peer never panics, and never reaches memory outside of a registration that allows it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod connection;
pub mod connection_manager;
mod datagram;
mod device;
#[cfg(test)]
mod fake_device;
mod memory;
mod message_proof;
mod observed;
mod shared_key;
mod types;
pub mod wire;

pub use connection::{Pending, ReceiveQueue, Received, ReliableConnection};
pub use device::{
    CompletionQueue, ConnectError, DatagramQueuePair, Device, DeviceConfig, Lane, Listener, LocalAddress,
    MemoryLane, ModifyError, ProgressMode, QueuePair, QueuePairConfig, SharedReceiveQueue, TcpLane,
    VariableError, device_name, gid, local_addresses,
};
pub use memory::{Access, AccessError, ProtectionDomain, RegisterError, Registration};

pub use shared_key::SharedKey;
pub use types::{
    AsyncEvent, CompletedOperation, Completion, CompletionNotice, ConnectionParameters, DatagramRequest,
    Destination, GRH_BYTES, Limits, LocalData, OnCompletion, OnEnd, OnEvent, OnNotice, Peer, PostError,
    Queue, QueuePairState, ReceiveAttributes, ReceiveRequest, SendAttributes, SendOperation, SendRequest,
    Sge, SgeList, Status, WorkCompletion,
};
pub use wire::MAX_DATAGRAM_BYTES;
