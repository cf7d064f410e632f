//! Receiver of everything that the agent finds out for an identifier.

use std::net::SocketAddr;
use std::sync::Weak;

use crate::wire::connection_manager::Message;

/// Receives messages and errors for an identifier. It is called without locks held.
pub trait Handler: Send + Sync {
    /// A peer asks a listener for a connection.
    fn requested(&self, connection: u64, local: SocketAddr, peer: SocketAddr, request: Message) -> Answer;

    /// A message has arrived.
    fn received(&self, message: Message);

    /// The connection could not be made. `is_refused` if no agent listens there.
    fn failed(&self, is_refused: bool);

    /// The connection has ended.
    fn closed(&self);
}

/// Reply of a listener to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The listener has it, and answers it later.
    Taken,
    /// The request is not for this listener.
    Refused,
    /// The program has not taken as many requests as the backlog allows. The peer can try again.
    Busy,
}

/// A handler, which can have ended.
pub type HandlerRef = Weak<dyn Handler>;
