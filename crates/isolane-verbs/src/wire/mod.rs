//! Wire format: the hello that opens a lane, the segments after it, and the messages of connection managers. `docs/VERBS.md` specifies every bit.
//!
//! All multi-byte fields are little endian. Every segment names its message and its place in the message, so
//! a receiver can place it whatever lane it arrives on.

mod checksum;
pub mod connection_manager;
mod error;
mod extension;
mod header;
mod hello;
mod opcode;
mod segment;

pub use checksum::{CHECKSUM_BYTES, checksum};
pub use error::SegmentError;
pub use extension::{
    Acknowledgment, AtomicOperands, DatagramSource, LaneReport, NakCode, RemoteRange, Syndrome, rnr_delay,
};
pub use header::{SegmentFlags, SegmentHeader};
pub use hello::{Capabilities, Hello, HelloError, Role};
pub use opcode::{ExtensionKind, Opcode, Operation, OperationRole, Stage};
pub use segment::{Extension, MAX_DATAGRAM_BYTES, MAX_MESSAGE_BYTES, MAX_PREFIX_BYTES, Segment};
