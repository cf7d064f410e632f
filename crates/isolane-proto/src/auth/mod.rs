//! DH-HMAC-CHAP of both sides (Base 2.2 §8.3.4).
//!
//! * [`HostNegotiating`] and its successors: the host, from AUTH_Negotiate to DH-HMAC-CHAP_Success2. Each
//!   state consumes itself and returns the next.
//! * [`TargetExchange`]: the controller of one queue. A host can start again at any time.
//! * [`Work`]: the exponentiations. They take milliseconds, so the driver runs them where nothing waits.
//!
//! Random values are arguments ([`Nonces`]). Messages are checked field by field in their order; each error
//! has a reason code for the peer and words for the log.
//!
//! Invariant: a queue is authenticated only by a response to its last challenge.

mod host;
mod message;
mod refusal;
mod target;
#[cfg(test)]
mod tests;
mod work;

use isolane_wire::auth::{DhGroup, Hash};

pub use host::{HostAwaiting, HostChallenged, HostError, HostErrorKind, HostNegotiating};
pub use isolane_auth::{Key, Nonces, Parties};
pub use refusal::Refusal;
pub use target::{Received, TargetExchange};
pub use work::{Computed, Work};

/// Keys of one host: its own, and the key by which the controller responds to it.
#[derive(Clone, Debug)]
pub struct KeyPair {
    /// The host's key.
    pub host: Key,
    /// The controller's key; `None`: the controller cannot prove itself.
    pub controller: Option<Key>,
}

/// Hash functions and groups that a side accepts, the preferred ones first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<DhGroup>,
}

/// All of them. FFDHE3072 comes first, whose strength suffices; larger groups cost up to ten times its time.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            hashes: vec![Hash::Sha512, Hash::Sha384, Hash::Sha256],
            groups: vec![
                DhGroup::Ffdhe3072,
                DhGroup::Ffdhe4096,
                DhGroup::Ffdhe6144,
                DhGroup::Ffdhe8192,
                DhGroup::Ffdhe2048,
                DhGroup::Null,
            ],
        }
    }
}

/// Configuration of one exchange of either side.
#[derive(Clone, Debug)]
pub struct ExchangeConfig {
    /// Names of both sides.
    pub parties: Parties,
    /// Key pairs: one for a host; one or two for a controller, so that keys can change without an interruption.
    pub keys: Vec<KeyPair>,
    /// Hash functions and groups.
    pub policy: Policy,
    /// A controller refuses a host that does not challenge it. A host with a controller's key always does.
    pub is_mutual: bool,
}
