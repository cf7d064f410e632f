//! Connections of the server, by key and by token.
//!
//! Invariant: a key of a closed connection finds nothing, so that a late completion reaches no other client.

use std::time::{Duration, Instant};

use isolane_connection::{StallDetector, Watermark};
use isolane_reactor::Token;
use slotmap::{DefaultKey, SlotMap};

use crate::Connection;

/// A connection with its socket.
pub(super) struct Client {
    pub conn: Connection,
    pub token: Token,
    /// For log lines.
    pub peer: String,
    /// When it was accepted.
    pub since: Instant,
    pub stall: StallDetector,
    /// Not read until memory or space for output is available.
    pub is_paused: bool,
    /// Length of the write that waits for memory.
    pub awaited: Option<usize>,
    /// Size of the data of all requests that wait for memory.
    pub waiting_bytes: usize,
    /// Listed for a send.
    pub is_dirty: bool,
    /// The socket accepts no more output for now.
    pub is_blocked: bool,
    /// The client or this server has ended the connection: it is closed after its last reply.
    pub is_ending: bool,
}

impl Client {
    /// Whether the last reply was sent.
    pub fn is_done(&self) -> bool {
        self.is_ending && self.conn.is_idle() && !self.conn.wants_transmit()
    }

    /// Returns the size of the data that has memory.
    pub fn granted_bytes(&self) -> usize {
        self.conn.held_bytes() - self.waiting_bytes
    }

    /// Lists the client for a send.
    pub fn list(&mut self, key: DefaultKey, dirty: &mut Vec<DefaultKey>) {
        if !std::mem::replace(&mut self.is_dirty, true) {
            dirty.push(key);
        }
    }

    /// Checks the client at each tick. Returns the reason to close it, and the exceeded time.
    pub fn check(&mut self, now: Instant) -> Option<(&'static str, Duration)> {
        if !self.is_ending && !self.conn.is_transmitting() && now >= self.since + HANDSHAKE_TIMEOUT {
            return Some(("no handshake", HANDSHAKE_TIMEOUT));
        }
        let mut outstanding = self.conn.outstanding();
        if self.is_paused {
            // This server does not read the remainder of a request.
            outstanding.pdus = Watermark { done: outstanding.pdus.expected, ..outstanding.pdus };
            if !self.conn.wants_transmit() {
                self.stall.extend_deadline(TICK);
            }
        }
        self.stall.is_stalled(now, &outstanding).then_some(("no progress", STALL_TIMEOUT))
    }
}

/// All connections.
#[derive(Default)]
pub(super) struct Clients {
    slots: SlotMap<DefaultKey, Client>,
    /// By the index of the token.
    by_token: Vec<Option<(Token, DefaultKey)>>,
}

impl Clients {
    pub fn insert(&mut self, client: Client) -> DefaultKey {
        let token = client.token;
        let key = self.slots.insert(client);
        if self.by_token.len() <= token.index() {
            self.by_token.resize(token.index() + 1, None);
        }
        self.by_token[token.index()] = Some((token, key));
        key
    }

    pub fn find(&self, token: Token) -> Option<DefaultKey> {
        let (known, key) = (*self.by_token.get(token.index())?)?;
        (known == token).then_some(key)
    }

    pub fn get_mut(&mut self, key: DefaultKey) -> Option<&mut Client> {
        self.slots.get_mut(key)
    }

    pub fn get(&self, key: DefaultKey) -> Option<&Client> {
        self.slots.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (DefaultKey, &Client)> {
        self.slots.iter()
    }

    pub fn remove(&mut self, key: DefaultKey) -> Option<Client> {
        let client = self.slots.remove(key)?;
        if let Some(entry) = self.by_token.get_mut(client.token.index()) {
            *entry = None;
        }
        Some(client)
    }

    pub fn keys(&self) -> Vec<DefaultKey> {
        self.slots.keys().collect()
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// Time from the accept to the end of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a byte of a request that has begun, or of a reply that waits.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which connections are checked.
pub(super) const TICK: Duration = Duration::from_millis(250);
