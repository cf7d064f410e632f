//! Hosts that attack: whatever comes over the wire, the target answers as the specification says or closes,
//! keeps its memory, and serves the others.
//!
//! They run against a whole target over loopback. The files in `hostile` are the ways to attack it.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod common;

#[path = "hostile/control.rs"]
mod control;
#[path = "hostile/crowd.rs"]
mod crowd;
#[path = "hostile/malformed.rs"]
mod malformed;
