//! Authentication of hosts, as a program that embeds the target configures it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use isolane_proto::auth::{KeyPair, Policy};
use isolane_wire::Nqn;

/// Source of the keys of hosts, and the hash functions and groups that the target accepts.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// Keys of each host.
    pub keys: Arc<dyn HostKeys>,
    /// Hash functions and groups, the preferred ones first.
    pub policy: Policy,
    /// Time limit from the Connect of a queue to the proof of its host.
    pub timeout: Duration,
    /// Maximum number of connected queues whose host has not authenticated, on all cores; at most half of
    /// [`TargetConfig::max_connections`](crate::TargetConfig::max_connections), but 16 at least. Above it, the address
    /// with the most of them gives way: its oldest one ends for a host of another address, and its next one is refused.
    pub max_unauthenticated: usize,
}

impl AuthConfig {
    /// All hash functions and groups, 30 s, and 512 queues.
    pub fn new(keys: Arc<dyn HostKeys>) -> AuthConfig {
        AuthConfig {
            keys,
            policy: Policy::default(),
            timeout: Duration::from_secs(30),
            max_unauthenticated: 512,
        }
    }
}

impl AuthConfig {
    /// Returns the maximum number of queues whose host has not authenticated.
    pub(crate) fn max_unauthenticated(&self, max_connections: usize) -> usize {
        self.max_unauthenticated.min((max_connections / 2).max(16))
    }
}

/// Source of the keys of hosts.
pub trait HostKeys: fmt::Debug + Send + Sync {
    /// Returns the proof that a host must give at a subsystem, which can be the discovery subsystem; `None` if it
    /// need not give any. A host without a name can give none. Called for each Connect, by a thread that serves
    /// I/O, so it must not block.
    fn required(&self, host: Option<&Nqn>, subsystem: &Nqn) -> Option<RequiredAuth>;
}

/// Proof of identity that a host must give.
#[derive(Clone, Debug)]
pub struct RequiredAuth {
    /// Key pairs of the host: one, or two while keys change. Without any, the host is refused.
    pub keys: Vec<KeyPair>,
    /// The host must ask the target for a proof also.
    pub is_mutual: bool,
}
