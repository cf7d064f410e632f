//! Host library and target in one process, with a damaging proxy between them.
//!
//! The host reports an error or reconnects, and no data is lost or mixed up.

#[path = "hostile/accept_loop.rs"]
mod accept_loop;
#[path = "hostile/corruption.rs"]
mod corruption;
#[path = "hostile/faulty_path.rs"]
mod faulty_path;
#[path = "../../crates/isolane-target/tests/common/timeout.rs"]
mod timeout;
