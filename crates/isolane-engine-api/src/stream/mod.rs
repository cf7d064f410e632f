//! Shared state of a stream: its location, its control block, and the recovery of its positions.

mod control_block;
mod layout;
mod recovery;

pub use control_block::{ControlBlock, StreamEnd, requests_bypass};
pub use layout::StreamLayout;
pub use recovery::{Origin, recover_discarded, recover_sent};
