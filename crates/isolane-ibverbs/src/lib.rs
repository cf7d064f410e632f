//! Preload library that gives unmodified RDMA programs a device over TCP.
//!
//! ```text
//! program ── ibv_* ──► objects of `abi`, each with its state ──► isolane-verbs
//! ```
//!
//! * [`abi`]: the binary interface of libibverbs.
//! * `device`, `open`, `context`: one device per local address.
//! * `memory`, `completion_queue`, `shared_receive_queue`, `queue_pair`: its objects.
//! * `post`, `builder`: work requests.
//! * `cm`: librdmacm.
//!
//! Invariant: a panic never reaches the program, and a null pointer is an error.

#![allow(missing_docs, clippy::missing_safety_doc)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod abi;
mod address;
mod available;
mod builder;
mod channel;
mod cm;
mod completion_queue;
mod context;
mod control;
mod create_cq;
mod create_qp;
mod device;
mod dmabuf;
mod ffi;
mod memory;
mod modify;
mod open;
mod operation;
mod paths;
mod post;
mod queue_pair;
mod shared_receive_queue;
mod strings;
#[cfg(test)]
mod tests;
mod unsupported;
