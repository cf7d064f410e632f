//! Host library against a hostile target over loopback.
//!
//! The host reports an error or continues. It never panics, hangs, or writes outside of the buffer of a command.

#[path = "hostile/accept_loop.rs"]
mod accept_loop;
#[path = "hostile/bad_replies.rs"]
mod bad_replies;
#[path = "hostile/rogue_target.rs"]
mod rogue_target;
#[path = "../../crates/isolane-target/tests/common/timeout.rs"]
mod timeout;
