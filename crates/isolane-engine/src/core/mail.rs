//! What the control thread and a core tell each other.

use isolane_ring::entries::{Receiver, Sender};
use isolane_ring::{Bell, Flag, Memory, Shared};

use crate::closer::Socket;
use crate::service::{Build, Ending};

/// To a core.
pub(crate) enum Mail {
    /// A session's doorbells.
    Port { session: u32, receiver: Receiver, bell: Bell<Shared<Flag>, Socket> },
    /// A queue of one of its threads.
    Queue { session: u32, queue: u32, sender: Sender, bell: Bell<Shared<Flag>, Socket> },
    /// No more of it: from now on objects that name it tell nobody. Answered with [`Said::Closed`].
    CloseQueue { session: u32, queue: u32 },
    /// An object.
    Open { session: u32, id: u32, queue: Option<u32>, memory: Memory, build: Build },
    /// It is to end.
    End { session: u32, id: u32, ending: Ending },
    /// The session has as many objects as it may have: those that only wait for others, and for long, end.
    Relieve { session: u32 },
    /// The session is over: all that it has on this core ends.
    EndSession { session: u32 },
    /// The engine ends in order: all objects do.
    Stop,
    /// Turn once: the engine looks whether this thread still does.
    Beat,
    /// The thread ends, and whatever it has is dropped as it is.
    Halt,
}

/// To the control thread.
#[derive(Debug)]
pub(crate) enum Notice {
    /// From a core, about a session.
    Said { session: u32, said: Said },
    /// The supervisor keeps a deposit for which nobody waits, or does not.
    Deposited { key: u64, is_kept: bool },
    /// Print who is attached, and what they have.
    Show,
    /// Turn once, as [`Mail::Beat`].
    Beat,
    /// The thread ends, and all sessions with it.
    Halt,
}

/// What a core says about a session.
#[derive(Debug)]
pub(crate) enum Said {
    /// An object is there, or cannot be.
    Opened { id: u32, outcome: Result<Vec<u8>, String> },
    /// An object has ended.
    Ended { id: u32, outcome: Result<(), String> },
    /// Nothing is written to a queue any more.
    Closed { queue: u32 },
    /// The client did what cannot be.
    Hostile { why: String },
}
