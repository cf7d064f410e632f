//! Volumes in Ceph: RBD images, `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, through librbd.
//!
//! librbd is loaded when the first volume is opened (`ffi/library.rs`). Its threads complete requests, which are
//! [`Step::Pending`](isolane_volume::Step::Pending) until then. A connection to a cluster serves several images
//! (`connection.rs`) and has two threads that look for changes once per second (`watch.rs`).
//!
//! Invariants:
//! * Memory of a request stays allocated until librbd has called back, also after the volume was dropped.
//! * While the cluster does not respond, or the pool is full, requests wait.
//! * Once the lock of an image is lost, changes fail until the volume is reopened, because another client may write.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod address;
mod connection;
mod ffi;
mod health;
mod open;
mod state;
mod volume;
mod watch;

pub use open::{OPTIONS, Rbd};
