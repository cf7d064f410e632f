//! Proofs of a shared key in datagrams: each has its sender, a counter, and an HMAC after its payload.
//!
//! Invariant: a datagram is accepted once while its sender is among the last [`MAX_SENDERS`], and never if it is older than
//! the [`WINDOW`] last ones.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::shared_key::{PROOF_LEN, SharedKey};

isolane_layout::layout! {
    /// Start of the proof of a datagram; the HMAC follows.
    pub struct Sender[24] {
        /// Random bytes of the socket of the sender.
        0 => nonce: [u8; 16],
        /// Number of datagrams that the socket has sent before.
        16 => counter: u64,
    }
}

/// Length of the proof of a datagram in bytes.
pub(super) const DATAGRAM_PROOF_LEN: usize = Sender::LEN + PROOF_LEN;

/// GIDs of the sender and of the receiver.
pub(super) type Gids = [[u8; 16]; 2];

/// The proofs of one socket.
pub(super) struct DatagramProofs {
    key: Arc<SharedKey>,
    nonce: [u8; 16],
    sent: AtomicU64,
    senders: Mutex<Senders>,
}

#[derive(Default)]
struct Senders {
    windows: HashMap<[u8; 16], Window>,
    /// Number of datagrams that were accepted.
    accepted: u64,
}

/// The counters of a sender that have arrived.
struct Window {
    newest: u64,
    /// Bit `n` is set if `newest - n` has arrived.
    arrived: u64,
    /// When the last one was accepted, in accepted datagrams.
    used: u64,
}

impl DatagramProofs {
    /// Creates the proofs of a socket.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(super) fn new(key: Arc<SharedKey>) -> io::Result<DatagramProofs> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        Ok(DatagramProofs { key, nonce, sent: AtomicU64::new(0), senders: Mutex::default() })
    }

    /// Appends the proof to a datagram.
    pub(super) fn seal(&self, bytes: &mut Vec<u8>, gids: &Gids) {
        let sender = Sender { nonce: self.nonce, counter: self.sent.fetch_add(1, Ordering::Relaxed) };
        bytes.extend_from_slice(&sender.encode());
        let proof = self.key.sign_datagram(gids, bytes);
        bytes.extend_from_slice(&proof);
    }

    /// Returns a datagram without its proof. `None` if that is wrong, or if the datagram has arrived before.
    pub(super) fn open<'a>(&self, bytes: &'a [u8], gids: &Gids) -> Option<&'a [u8]> {
        let (signed, proof) = bytes.split_last_chunk::<PROOF_LEN>()?;
        let (datagram, sender) = signed.split_last_chunk::<{ Sender::LEN }>()?;
        let is_right = self.key.verifies_datagram(gids, signed, proof);
        (is_right && self.senders.lock().accept(&Sender::decode(sender))).then_some(datagram)
    }
}

impl Senders {
    fn accept(&mut self, sender: &Sender) -> bool {
        if self.windows.len() >= MAX_SENDERS && !self.windows.contains_key(&sender.nonce) {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.used).map(|(nonce, _)| *nonce);
            oldest.map(|nonce| self.windows.remove(&nonce));
        }
        self.accepted += 1;
        let window = self.windows.entry(sender.nonce);
        let window = window.or_insert(Window { newest: sender.counter, arrived: 0, used: 0 });
        window.used = self.accepted;
        window.accept(sender.counter)
    }
}

impl Window {
    fn accept(&mut self, counter: u64) -> bool {
        if let Some(ahead) = counter.checked_sub(self.newest) {
            let is_new = ahead > 0 || self.arrived & 1 == 0;
            self.arrived = if ahead < WINDOW { self.arrived << ahead } else { 0 } | 1;
            self.newest = counter;
            return is_new;
        }
        let age = self.newest - counter;
        let is_new = age < WINDOW && self.arrived >> age & 1 == 0;
        self.arrived |= if is_new { 1 << age } else { 0 };
        is_new
    }
}

/// Number of senders whose counters are kept.
const MAX_SENDERS: usize = 1024;
/// Number of the last counters of a sender that are accepted in any order.
const WINDOW: u64 = 64;

#[cfg(test)]
mod tests {
    use isolane_auth::{Key, KeyTransform};

    use super::*;

    fn proofs(byte: u8) -> DatagramProofs {
        let key = Key::new(&[byte; 32], KeyTransform::None).unwrap();
        DatagramProofs::new(Arc::new(SharedKey::new(&key))).unwrap()
    }

    fn sealed(from: &DatagramProofs, gids: &Gids) -> Vec<u8> {
        let mut bytes = b"datagram".to_vec();
        from.seal(&mut bytes, gids);
        bytes
    }

    const GIDS: Gids = [[1; 16], [2; 16]];

    #[test]
    fn changed_datagrams_prove_nothing() {
        let (near, far) = (proofs(1), proofs(1));
        let bytes = sealed(&near, &GIDS);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_eq!(far.open(&changed, &GIDS), None, "byte {at}");
            assert_eq!(far.open(&bytes[..at], &GIDS), None, "{at} bytes");
        }
        assert_eq!(far.open(&bytes, &[[2; 16], [1; 16]]), None, "sent back");
        assert_eq!(proofs(2).open(&bytes, &GIDS), None, "another key");
        assert_eq!(far.open(&bytes, &GIDS), Some(&b"datagram"[..]));
    }

    #[test]
    fn repeated_and_old_datagrams_are_dropped() {
        let (near, far) = (proofs(1), proofs(1));
        let all: Vec<_> = (0..200).map(|_| sealed(&near, &GIDS)).collect();
        let is_accepted = |at: usize| far.open(&all[at], &GIDS).is_some();
        assert!(is_accepted(0) && !is_accepted(0) && is_accepted(2) && is_accepted(1));
        assert!(!is_accepted(1) && !is_accepted(2));
        assert!(is_accepted(100) && is_accepted(37) && !is_accepted(36) && !is_accepted(37));
        assert!(is_accepted(199) && !is_accepted(100) && !is_accepted(199) && is_accepted(150));
    }

    #[test]
    fn number_of_senders_is_limited() {
        let (near, far) = (proofs(1), proofs(1));
        assert!(far.open(&sealed(&near, &GIDS), &GIDS).is_some());
        let key = Key::new(&[1; 32], KeyTransform::None).unwrap();
        for _ in 0..MAX_SENDERS + 10 {
            let other = DatagramProofs::new(Arc::new(SharedKey::new(&key))).unwrap();
            assert!(far.open(&sealed(&other, &GIDS), &GIDS).is_some());
            assert!(far.open(&sealed(&near, &GIDS), &GIDS).is_some(), "the sender was used last");
        }
        assert_eq!(far.senders.lock().windows.len(), MAX_SENDERS);
    }
}
