//! Events of a target, for operators.
//!
//! Invariant: without a receiver, an event costs one load, on the control path.

use std::net::SocketAddr;
use std::sync::OnceLock;

use isolane_proto::subsystem::CloseReason;
use isolane_wire::Nqn;

/// An event of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// A host has connected its admin queue.
    Connected {
        /// Address of the host.
        peer: SocketAddr,
        /// NQN of the host, if it has one.
        host: Option<Nqn>,
        /// NQN of the subsystem.
        subsystem: Option<Nqn>,
        /// Controller ID.
        cntlid: u16,
    },
    /// The association of a host ends.
    Disconnected {
        /// NQN of the host, if it has one.
        host: Option<Nqn>,
        /// NQN of the subsystem.
        subsystem: Option<Nqn>,
        /// Controller ID.
        cntlid: u16,
        /// The reason.
        reason: &'static str,
    },
}

/// The receiver of events, if there is one.
#[derive(Default)]
pub(crate) struct EventSink(OnceLock<Box<Receive>>);

pub(crate) type Receive = dyn Fn(TargetEvent) + Send + Sync;

impl EventSink {
    /// Sets the receiver. Returns `false` if there is one.
    pub(crate) fn set(&self, receive: Box<Receive>) -> bool {
        self.0.set(receive).is_ok()
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> TargetEvent) {
        if let Some(receive) = self.0.get() {
            receive(event());
        }
    }
}

/// Returns the reason for the end of an association in words.
pub(crate) fn reason_text(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::AdminQueueLost => "the association's admin connection is gone",
        CloseReason::KeepAliveExpired => "the host was silent for longer than its keep-alive timeout",
        CloseReason::HostRemoved => "its host is no longer allowed to use the subsystem",
        CloseReason::SubsystemRemoved => "its subsystem was removed",
        CloseReason::Requested => "an operator has disconnected it",
        CloseReason::PortRemoved => "its port was removed, or its subsystem is no longer there",
    }
}
