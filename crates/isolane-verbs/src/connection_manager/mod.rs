//! Connection manager: exchanges the numbers of queue pairs, and private data of the programs.
//!
//! ```text
//! interface of a program ── Handler ──► Agent: one thread with all sockets ──► TCP ──► the peer's agent
//! ```
//!
//! Lanes are then opened as for any queue pair.

mod agent;
mod attempt;
mod handler;
mod listener;
mod watch;

pub use agent::{Agent, agent};
pub use attempt::Attempt;
pub use handler::{Answer, Handler, HandlerRef};
pub use listener::{Bound, Listener, OTHER_PORT, bind};
