//! A peer that has connected, and whose hello or proof of a key has not arrived.
//!
//! Invariant: it holds a socket and a place in a list of limited length, and until a deadline.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use super::handshake::{self, Arriving, ConnectError, Greeting, TIMEOUT};
use super::lane_opener::{FirstLanes, OfferedQueuePair};
use crate::shared_key::{PROOF_LEN, SharedKey};
use crate::wire::{Hello, Role};

/// A connection that a peer has opened.
pub(super) struct Waiting {
    pub(super) stream: TcpStream,
    greeting: Greeting,
    /// Of the socket that has accepted it.
    pub(super) first_lanes: Option<Arc<FirstLanes>>,
    /// The complete hello; its queue pair does not expect it yet, or the proof is missing.
    pub(super) hello: Option<Hello>,
    /// The reply with the proof of this end, once it is sent, and the part of the peer's proof that has arrived.
    pub(super) reply: Option<Hello>,
    proof: Arriving<PROOF_LEN>,
    /// The queue pair of the reply, if it is not created.
    pub(super) offered: Option<OfferedQueuePair>,
    pub(super) deadline: Instant,
}

impl Waiting {
    pub(super) fn new(stream: TcpStream, first_lanes: Option<Arc<FirstLanes>>) -> Waiting {
        Waiting {
            stream,
            greeting: Greeting::default(),
            first_lanes,
            hello: None,
            reply: None,
            proof: Arriving::default(),
            offered: None,
            deadline: Instant::now() + TIMEOUT,
        }
    }

    /// Returns whether the peer has proved the key. `None` if its proof is missing or wrong, so that the connection ends.
    pub(super) fn has_proved(&mut self, key: &SharedKey) -> Option<bool> {
        let (Some(hello), Some(reply)) = (&self.hello, &self.reply) else { return Some(false) };
        match self.proof.bytes(&self.stream) {
            Ok(None) => Some(false),
            Ok(Some(proof)) if key.verifies_connection(hello, reply, proof) => Some(true),
            Ok(Some(_)) => {
                self.report(&ConnectError::WrongKey);
                None
            }
            // A peer that finds another key closes the connection.
            Err(_) => {
                self.report(&ConnectError::NoProof);
                None
            }
        }
    }

    /// Receives the hello of the peer. Returns `false` if the connection ends.
    pub(super) fn greet(&mut self, key: Option<&SharedKey>) -> bool {
        self.hello = match self.greeting.receive(&self.stream, Role::Connects) {
            Ok(hello) => hello,
            Err(error) => {
                log::debug!("a peer is refused: {error}");
                return false;
            }
        };
        let Some(hello) = &self.hello else { return true };
        if hello.capabilities.authenticated() == key.is_some() {
            return true;
        }
        let _ = handshake::write(&self.stream, &handshake::refusal(hello, key.is_some()).encode());
        self.report(&if key.is_some() { ConnectError::PeerLacksKey } else { ConnectError::KeyRequired });
        false
    }

    fn report(&self, error: &ConnectError) {
        if let Ok(peer) = self.stream.peer_addr() {
            log::limited!(Warn, "{peer} is refused: {error}");
        }
    }
}
