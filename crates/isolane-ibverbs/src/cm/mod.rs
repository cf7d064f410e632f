//! Connection manager: librdmacm over TCP.
//!
//! ```text
//! program ── rdma_* ──► Id ──► Agent: one thread with all sockets ──► TCP ──► the peer's agent
//! ```
//!
//! A connection manager exchanges the numbers of queue pairs; their lanes are opened as for any queue pair.

mod addrinfo;
mod agent;
mod connect;
mod event;
mod id;
mod migrate;
mod qp;
#[cfg(test)]
mod tests;

use isolane_verbs::wire::connection_manager as message;
