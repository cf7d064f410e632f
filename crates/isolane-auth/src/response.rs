//! Responses to challenges (Base 2.2 §8.3.4.5.4, §8.3.4.5.5).
//!
//! A response is the HMAC, by the transformed key, of the challenge, the numbers of the transaction, and
//! the names of both sides. With a DH exchange, the challenge is augmented by the shared secret first.

use isolane_wire::Nqn;
use isolane_wire::auth::Hash;

use crate::dh::SharedSecret;
use crate::digest::{Digest, hash, hmac};
use crate::key::Key;

/// The side that responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host, with its key.
    Host,
    /// The controller, with the controller's key.
    Controller,
}

/// Names of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    /// NQN of the host.
    pub host: Nqn,
    /// NQN of the subsystem.
    pub subsystem: Nqn,
}

/// Numbers of one challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// T_ID.
    pub id: u16,
    /// SEQNUM of the challenge.
    pub sequence: u32,
}

/// Computes the responses of one side.
pub struct Responder<'a> {
    /// The hash function of the transaction.
    pub hash: Hash,
    /// The side that responds.
    pub role: Role,
    /// Names of both sides.
    pub parties: &'a Parties,
    /// The shared secret; `None` with the NULL group.
    pub secret: Option<&'a SharedSecret>,
}

impl Responder<'_> {
    /// Computes the response to a challenge.
    pub fn response(&self, key: &Key, challenge: &Digest, transaction: Transaction) -> Digest {
        let augmented = match self.secret {
            Some(secret) => {
                hmac(self.hash, hash(self.hash, secret.as_bytes()).as_bytes(), &[challenge.as_bytes()])
            }
            None => challenge.clone(),
        };
        let (label, own, peer) = match self.role {
            Role::Host => ("HostHost", &self.parties.host, &self.parties.subsystem),
            Role::Controller => ("Controller", &self.parties.subsystem, &self.parties.host),
        };
        hmac(
            self.hash,
            key.transform(own.as_str()).as_bytes(),
            &[
                augmented.as_bytes(),
                &transaction.sequence.to_le_bytes(),
                &transaction.id.to_le_bytes(),
                &[NO_CONCATENATION],
                label.as_bytes(),
                own.as_str().as_bytes(),
                &[0],
                peer.as_str().as_bytes(),
            ],
        )
    }
}

/// SC_C of the transaction: no secure channel concatenation.
const NO_CONCATENATION: u8 = 0;

#[cfg(test)]
mod tests;
