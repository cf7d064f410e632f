//! Hosts that hold memory of the target, in a separate process because its memory is measured.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod common;
#[path = "hostile/memory.rs"]
mod memory;
