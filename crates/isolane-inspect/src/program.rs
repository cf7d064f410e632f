//! The program that side threads describe.

use std::sync::Arc;

use isolane_observe::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::events::Events;

/// A running program. Its functions are called by side threads, at any time.
pub trait Program: Send + Sync + 'static {
    /// Returns the numbers since the start. Waits for no core.
    fn snapshot(&self) -> Snapshot;

    /// Lets reads avoid a volume with this ID, a member of a mirror, or ends that. Returns `false` if they cannot.
    fn avoid(&self, _volume: u32, _is_avoided: bool) -> bool {
        false
    }

    /// Executes a request below `/v1/` of the control socket. `None`: there is no such path. May wait: each request has a
    /// thread of its own.
    fn control(&self, _request: &Request) -> Option<Reply> {
        None
    }

    /// Returns the events that clients of the control socket can follow.
    fn events(&self) -> Option<&Events> {
        None
    }

    /// Returns the current turn of each core, or nothing if the program cannot tell.
    fn turns(&self) -> Vec<Turn> {
        Vec::new()
    }
}

/// A request on the control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, as `GET`.
    pub method: String,
    /// Path, as `/v1/namespaces`.
    pub path: String,
    /// JSON; empty without a body.
    pub body: Vec<u8>,
}

/// Response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Status of HTTP.
    pub status: u16,
    /// JSON. That of an error is a problem of RFC 9457.
    pub body: Value,
}

impl Reply {
    /// Returns a successful response.
    pub fn ok(body: Value) -> Reply {
        Reply { status: 200, body }
    }

    /// Returns an error, with the text that a user gets.
    pub fn problem(status: u16, title: &str, detail: impl std::fmt::Display) -> Reply {
        let body =
            json!({ "type": "about:blank", "status": status, "title": title, "detail": detail.to_string() });
        Reply { status, body }
    }
}

/// Actions for devices that are slower than their peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnSlow {
    /// Lines in the log.
    pub log: bool,
    /// The metrics `isolane_device_slow` and `isolane_device_ratio`.
    pub metric: bool,
    /// The locate light at the slot.
    pub light: bool,
    /// Reads of a mirror avoid the member.
    pub avoid: bool,
}

impl Default for OnSlow {
    fn default() -> OnSlow {
        OnSlow { log: true, metric: true, light: false, avoid: false }
    }
}

/// A program that is shared by side threads.
pub type SharedProgram = Arc<dyn Program>;

impl<F: Fn() -> Snapshot + Send + Sync + 'static> Program for F {
    fn snapshot(&self) -> Snapshot {
        self()
    }
}

/// The current turn of a core. A core is stuck while it stays in one turn and phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Position of the core, from 0.
    pub core: u32,
    /// Thread ID.
    pub thread: u32,
    /// Number of the turn.
    pub number: u64,
    /// Part of the turn; `None` while the core polls or sleeps.
    pub phase: Option<&'static str>,
}
