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
mod datagram;
mod device;
mod memory;
pub mod wire;
mod work;

pub use connection::{
    AsyncEvent, ConnectionParameters, Limits, Pending, PostError, Queue, ReceiveAttributes, ReceiveQueue,
    Received, ReliableConnection, SendAttributes, State,
};
pub use datagram::{DatagramRequest, Destination, GRH_BYTES};
pub use device::{
    CompletionNotice, CompletionQueue, ConnectError, DatagramQueuePair, Device, DeviceConfig, Lane, Listener,
    LocalAddress, MemoryLane, ModifyError, OnEvent, OnNotice, Peer, ProgressMode, QueuePair, QueuePairConfig,
    SharedReceiveQueue, TcpLane, WorkCompletion, device_name, gid, local_addresses,
};
pub use memory::{Access, AccessError, ProtectionDomain, RegisterError, Registration};
pub use wire::MAX_DATAGRAM_BYTES;
pub use work::{
    CompletedOperation, Completion, LocalData, ReceiveRequest, SendOperation, SendRequest, Sge, SgeList,
    Status,
};
