//! Proofs of a shared key: both ends of a lane, and the sender of a datagram, show that they have it.
//!
//! Invariant: the key, and the keys derived from it, are in no error, log, or `Debug` output.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isolane_auth::{Key, KeyFile, KeyFileError, MacKey};

use crate::wire::Hello;

/// A key that both ends have. Each role has another key that is derived from it, so a proof cannot be sent back.
pub struct SharedKey {
    connects: MacKey,
    accepts: MacKey,
    datagrams: MacKey,
    /// Of connection managers: of the client, and of the listener.
    messages: [MacKey; 2],
}

/// Length of the proof of the end that connects, its second message.
pub const PROOF_LEN: usize = MacKey::CODE_LEN;

impl SharedKey {
    /// Environment variable with the file of the key.
    pub const VARIABLE: &str = "ISOLANE_VERBS_KEY";

    /// Reads the key from the file that [`SharedKey::VARIABLE`] names; `None` if it is not set, or empty.
    ///
    /// # Errors
    /// As [`SharedKey::read`].
    pub fn from_environment() -> Result<Option<Arc<SharedKey>>, KeyFileError> {
        let file = std::env::var_os(SharedKey::VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
        file.map(|file| SharedKey::read(&file).map(Arc::new)).transpose()
    }

    /// Derives the keys of the roles.
    pub fn new(key: &Key) -> SharedKey {
        let derive = |role| MacKey::derive(key, role);
        SharedKey {
            connects: derive("isolane verbs 2 connects"),
            accepts: derive("isolane verbs 2 accepts"),
            datagrams: derive("isolane verbs 2 datagrams"),
            messages: ["isolane verbs 2 requests", "isolane verbs 2 replies"].map(derive),
        }
    }

    /// Reads the key from a file that only its owner can read, as `isolane key gen` writes it.
    ///
    /// # Errors
    /// [`KeyFileError`] names the file, the cause, and the remedy.
    pub fn read(path: &Path) -> Result<SharedKey, KeyFileError> {
        KeyFile::read(path).map(|key| SharedKey::new(&key))
    }

    /// Returns the proof of the end that accepts. It covers both hellos, of which `reply` has no proof yet.
    pub(crate) fn sign_reply(&self, hello: &Hello, reply: &Hello) -> [u8; PROOF_LEN] {
        self.accepts.sign(&[&hello.encode(), &without_proof(reply).encode()])
    }

    pub(crate) fn verifies_reply(&self, hello: &Hello, reply: &Hello) -> bool {
        let parts = [hello.encode(), without_proof(reply).encode()];
        self.accepts.verifies(&[&parts[0], &parts[1]], &reply.authentication)
    }

    /// Returns the proof of the end that connects. It covers both complete hellos.
    pub(crate) fn sign_connection(&self, hello: &Hello, reply: &Hello) -> [u8; PROOF_LEN] {
        self.connects.sign(&[&hello.encode(), &reply.encode()])
    }

    pub(crate) fn verifies_connection(&self, hello: &Hello, reply: &Hello, proof: &[u8; PROOF_LEN]) -> bool {
        self.connects.verifies(&[&hello.encode(), &reply.encode()], proof)
    }

    /// Returns the proof of a message of a connection manager.
    pub(crate) fn sign_message(&self, listens: bool, parts: &[&[u8]]) -> [u8; PROOF_LEN] {
        self.messages[usize::from(listens)].sign(parts)
    }

    pub(crate) fn verifies_message(&self, listens: bool, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.messages[usize::from(listens)].verifies(parts, proof)
    }

    /// Returns the proof of a datagram between two GIDs.
    pub(crate) fn sign_datagram(
        &self,
        [source, destination]: &[[u8; 16]; 2],
        bytes: &[u8],
    ) -> [u8; PROOF_LEN] {
        self.datagrams.sign(&[source, destination, bytes])
    }

    pub(crate) fn verifies_datagram(
        &self,
        [source, destination]: &[[u8; 16]; 2],
        bytes: &[u8],
        proof: &[u8; PROOF_LEN],
    ) -> bool {
        self.datagrams.verifies(&[source, destination, bytes], proof)
    }
}

fn without_proof(reply: &Hello) -> Hello {
    Hello { authentication: [0; PROOF_LEN], ..reply.clone() }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SharedKey")
    }
}
