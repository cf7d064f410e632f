//! Hosts that attack the target's memory: alone in this process, because what it holds is measured.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod common;
#[path = "hostile/memory.rs"]
mod memory;
