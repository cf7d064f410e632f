//! Paths that attack: whatever becomes of the answers on their way, the host says what was wrong or comes
//! back by itself, and no data is lost or mixed.
//!
//! The host library, a path that damages, and the target, in one process.

#[path = "hostile/damage.rs"]
mod damage;
#[path = "hostile/door.rs"]
mod door;
#[path = "hostile/path.rs"]
mod path;
#[path = "../../crates/isolane-target/tests/common/patience.rs"]
mod patience;
