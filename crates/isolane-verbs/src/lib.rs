//! Verbs over TCP: queue pairs, completion queues, and registered memory.
//!
//! * [`wire`]: the format of segments and of the exchange that opens a lane.
//!
//! Invariant: input from a peer never panics.
#![forbid(unsafe_code)]

pub mod wire;
