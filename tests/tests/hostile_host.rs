//! Hostile hosts against a complete target over loopback.
//!
//! The target responds as specified or closes the connection, bounds its memory, and serves other hosts.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod common;

#[path = "hostile/control.rs"]
mod control;
#[path = "hostile/malformed.rs"]
mod malformed;
#[path = "hostile/many_hosts.rs"]
mod many_hosts;
