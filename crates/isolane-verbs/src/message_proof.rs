//! Proofs of a shared key in the messages of two connection managers.
//!
//! Invariant: a proof is valid for one message of one connection, in one direction.

use std::sync::Arc;

use crate::shared_key::{PROOF_LEN, SharedKey};
use crate::wire::connection_manager::{GREETING_LEN, greeting};

/// Length of the random bytes of each end.
pub const NONCE_LEN: usize = 16;
/// Length of the greeting of a listener that requires a key, in bytes.
pub const KEYED_GREETING_LEN: usize = GREETING_LEN + NONCE_LEN;
/// Length of the proof after each message, in bytes: nonce of the client, counter, and HMAC.
pub const MESSAGE_PROOF_LEN: usize = NONCE_LEN + size_of::<u64>() + PROOF_LEN;

/// The proofs of one connection at one end.
pub struct MessageProofs {
    key: Arc<SharedKey>,
    greeting: [u8; KEYED_GREETING_LEN],
    /// Random bytes of the client, which the listener learns from the first message.
    nonce: Option<[u8; NONCE_LEN]>,
    listens: bool,
    sent: u64,
    received: u64,
}

impl MessageProofs {
    /// Starts the proofs of a listener. Returns them with the greeting to send.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn listen(key: Arc<SharedKey>, port: u16, is_datagram: bool) -> std::io::Result<MessageProofs> {
        let mut bytes = [0; KEYED_GREETING_LEN];
        bytes[..GREETING_LEN].copy_from_slice(&greeting(port, is_datagram));
        bytes[KEY_BYTE] |= KEY_BIT;
        getrandom::fill(&mut bytes[GREETING_LEN..]).map_err(std::io::Error::other)?;
        Ok(MessageProofs { key, greeting: bytes, nonce: None, listens: true, sent: 0, received: 0 })
    }

    /// Starts the proofs of a client that has received a greeting.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn connect(
        key: Arc<SharedKey>,
        greeting: [u8; KEYED_GREETING_LEN],
    ) -> std::io::Result<MessageProofs> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(std::io::Error::other)?;
        Ok(MessageProofs { key, greeting, nonce: Some(nonce), listens: false, sent: 0, received: 0 })
    }

    /// Whether the start of a greeting requires a key.
    pub fn are_required(greeting: &[u8; GREETING_LEN]) -> bool {
        greeting[KEY_BYTE] & KEY_BIT != 0
    }

    /// Returns the start of a greeting without the requirement of a key.
    pub fn without_key(mut greeting: [u8; GREETING_LEN]) -> [u8; GREETING_LEN] {
        greeting[KEY_BYTE] &= !KEY_BIT;
        greeting
    }

    /// Returns the greeting of the listener.
    pub fn greeting(&self) -> &[u8; KEYED_GREETING_LEN] {
        &self.greeting
    }

    /// Appends the proof to a message.
    pub fn seal(&mut self, message: &mut Vec<u8>) {
        let nonce = self.nonce.unwrap_or_default();
        let proof =
            self.key.sign_message(self.listens, &self.parts(message, &nonce, &self.sent.to_le_bytes()));
        message.extend_from_slice(&nonce);
        message.extend_from_slice(&self.sent.to_le_bytes());
        message.extend_from_slice(&proof);
        self.sent += 1;
    }

    /// Whether `proof` is right for the next message of the peer.
    pub fn verifies(&mut self, message: &[u8], proof: &[u8; MESSAGE_PROOF_LEN]) -> bool {
        let (nonce, rest) = proof.split_at(NONCE_LEN);
        let (counter, code) = rest.split_at(size_of::<u64>());
        let is_next =
            counter == self.received.to_le_bytes() && self.nonce.is_none_or(|known| known == *nonce);
        let is_right =
            is_next && self.key.verifies_message(!self.listens, &self.parts(message, nonce, counter), code);
        if is_right {
            self.nonce = self.nonce.or_else(|| nonce.try_into().ok());
            self.received += 1;
        }
        is_right
    }

    fn parts<'a>(&'a self, message: &'a [u8], nonce: &'a [u8], counter: &'a [u8]) -> [&'a [u8]; 4] {
        [&self.greeting, message, nonce, counter]
    }
}

/// Byte and bit of a greeting that requires a key.
const KEY_BYTE: usize = 5;
const KEY_BIT: u8 = 2;

#[cfg(test)]
mod tests {
    use isolane_auth::{Key, KeyTransform};

    use super::*;

    fn ends(byte: u8) -> (MessageProofs, MessageProofs) {
        let key = |byte| Arc::new(SharedKey::new(&Key::new(&[byte; 32], KeyTransform::None).unwrap()));
        let listener = MessageProofs::listen(key(1), 7, true).unwrap();
        let client = MessageProofs::connect(key(byte), *listener.greeting()).unwrap();
        (client, listener)
    }

    fn sealed(from: &mut MessageProofs, message: &[u8]) -> [u8; MESSAGE_PROOF_LEN] {
        let mut bytes = message.to_vec();
        from.seal(&mut bytes);
        bytes[message.len()..].try_into().unwrap()
    }

    #[test]
    fn each_message_proves_the_key_once() {
        let (mut client, mut listener) = ends(1);
        let first = sealed(&mut client, b"request");
        for at in 0..MESSAGE_PROOF_LEN {
            let mut changed = first;
            changed[at] ^= 1;
            assert!(!listener.verifies(b"request", &changed), "byte {at}");
        }
        assert!(!listener.verifies(b"requesT", &first) && !client.verifies(b"request", &first), "sent back");
        assert!(listener.verifies(b"request", &first) && !listener.verifies(b"request", &first));
        let reply = sealed(&mut listener, b"reply");
        assert!(!listener.verifies(b"reply", &reply) && client.verifies(b"reply", &reply));
        let second = sealed(&mut client, b"ready");
        assert!(listener.verifies(b"ready", &second));
    }

    #[test]
    fn proofs_of_other_connections_and_keys_are_wrong() {
        let (mut client, _) = ends(1);
        let (_, mut other) = ends(1);
        assert!(!other.verifies(b"request", &sealed(&mut client, b"request")), "another greeting");
        let (mut client, mut listener) = ends(2);
        assert!(!listener.verifies(b"request", &sealed(&mut client, b"request")), "another key");
    }

    #[test]
    fn greeting_requires_a_key() {
        let (_, listener) = ends(1);
        let start = *listener.greeting().first_chunk().unwrap();
        assert!(MessageProofs::are_required(&start) && !MessageProofs::are_required(&greeting(7, true)));
        assert_eq!(MessageProofs::without_key(start), greeting(7, true));
    }
}
