//! Targets that attack: whatever they answer, the host says what was wrong, or goes on; it never panics,
//! waits for ever, or touches memory that is not the command's.
//!
//! The host library runs against a target that lies, over loopback.

#[path = "hostile/door.rs"]
mod door;
#[path = "hostile/liar.rs"]
mod liar;
#[path = "hostile/lies.rs"]
mod lies;
#[path = "../../crates/isolane-target/tests/common/patience.rs"]
mod patience;
