//! Parts of a sans-IO connection over a byte stream, for any protocol that splits it into headers and payload.
//!
//! * [`InputBuffer`]: received bytes that are not parsed yet.
//! * [`SendQueue`]: headers and references to payload in the order of sending.
//! * [`ReceivePlan`] and [`TransmitPlan`]: the slices of one `readv` and one `sendmsg`.
//! * [`StallDetector`]: deadlines for a peer that owes something.
//!
//! Invariant: no part has a file descriptor, a clock, or a thread; time is an argument.
#![forbid(unsafe_code)]

mod input;
mod plan;
mod send_queue;
mod stall;

pub use input::InputBuffer;
pub use plan::{
    MAX_DESTINATION_BYTES, MAX_DESTINATION_SLICES, MAX_RECEIVE_SLICES, MAX_TRANSMIT_SLICES, ReceivePlan,
    TransmitPlan,
};
pub use send_queue::SendQueue;
pub use stall::{OVERDUE_FACTOR, Outstanding, StallDetector, Watermark};
