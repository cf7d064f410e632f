//! Streams: TCP connections whose bytes go through an engine.
//!
//! The application keeps the real socket, the engine works on a duplicate of it. What is received stays in the
//! kernel until the application has read it, and what is written and not sent yet can be sent by the
//! application itself: so a stream is taken back at any moment, and survives the engine's death.

mod block;
mod ends;

pub use block::{Block, End};
pub use ends::{Incoming, Moved, Outgoing, ends};
