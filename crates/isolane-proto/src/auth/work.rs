//! Exponentiations of one message, apart from the state machines.

use isolane_auth::{Exponent, SharedSecret, UnusableDhValue};

/// Exponentiations to run: a public value, a shared secret, or both.
pub struct Work {
    pub(super) exponent: Exponent,
    pub(super) wants_public_value: bool,
    pub(super) peer: Option<Vec<u8>>,
}

/// Results of a [`Work`].
pub struct Computed {
    pub(super) exponent: Exponent,
    pub(super) public_value: Vec<u8>,
    pub(super) secret: Option<Result<SharedSecret, UnusableDhValue>>,
}

impl Work {
    /// Runs the exponentiations: up to some tens of milliseconds.
    pub fn run(self) -> Computed {
        let Work { exponent, wants_public_value, peer } = self;
        let public_value = if wants_public_value { exponent.public_value() } else { Vec::new() };
        let secret = peer.map(|peer| exponent.shared_secret(&peer));
        Computed { exponent, public_value, secret }
    }
}
