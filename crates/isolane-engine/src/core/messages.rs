//! Messages between the control thread and the cores.

use std::sync::Arc;

use isolane_shm::SharedMemory;
use isolane_shm::entries::{Receiver, Sender};

use crate::object::{BuildFn, ClientBell, CloseReason};

/// Message to a core.
pub(crate) enum CoreMessage {
    /// Adds the doorbells of a session.
    Doorbells { session: u32, receiver: Receiver, bell: ClientBell },
    /// Adds a notification queue.
    Queue { session: u32, queue: u32, sender: Sender, bell: ClientBell },
    /// Closes a notification queue for all objects that use it. Answered with [`SessionEvent::QueueClosed`].
    CloseQueue { session: u32, queue: u32 },
    /// Builds an object.
    Open {
        session: u32,
        id: u32,
        queue: Option<u32>,
        memory: SharedMemory,
        application: Arc<str>,
        build: BuildFn,
    },
    /// Closes an object.
    Close { session: u32, id: u32, reason: CloseReason },
    /// The session has reached a limit: abandons its stalled closed objects.
    Relieve { session: u32 },
    /// Closes all objects of a session that has ended.
    EndSession { session: u32 },
    /// Closes all objects, then ends the thread.
    Shutdown,
    /// Wakes the thread, so that it takes the current heartbeat.
    Beat,
    /// Ends the thread and drops its objects as they are.
    Exit,
}

/// Message to the control thread.
#[derive(Debug)]
pub(crate) enum ControlMessage {
    /// Event of a session on a core.
    Session { session: u32, event: SessionEvent },
    /// The supervisor has stored the record `key`, or could not.
    Stored { key: u64, stored: bool },
    /// Prints clients and their objects.
    PrintStatus,
    /// Wakes the thread, as [`CoreMessage::Beat`].
    Beat,
    /// Ends the thread and all sessions.
    Exit,
}

/// Event of a session on a core.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// An object is open, with the answer for its application, or could not be opened.
    Opened { id: u32, result: Result<Vec<u8>, String> },
    /// An object is closed.
    Closed { id: u32, result: Result<(), String> },
    /// A notification queue is closed.
    QueueClosed { queue: u32 },
    /// The client violated the protocol.
    Violation { reason: String },
}
