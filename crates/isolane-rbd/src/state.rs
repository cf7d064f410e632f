//! State that the volume of an image, its requests, and the threads of its connection share.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::address::Address;
use crate::ffi::Image;
use crate::health::Health;

/// An image, as its volume, its requests, and the threads of its connection share it.
pub(crate) struct Shared {
    pub image: Arc<Image>,
    pub address: Address,
    pub health: Health,
    /// Names of the pools that its writes need.
    pub pools: Vec<String>,
    /// State of the cluster.
    pub cluster: Arc<State>,
    /// Whether this client has the lock of the image while the volume is healthy.
    pub has_lock: bool,
}

/// Exists while an image is open for writes.
pub(crate) struct Claim;

/// State of a cluster that all images of a connection have in common.
#[derive(Default)]
pub(crate) struct State {
    /// Pools that are or were full.
    pub full: Mutex<BTreeMap<String, Full>>,
    /// Why the monitors do not respond.
    pub trouble: Mutex<Option<String>>,
}

/// A pool that is or was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Full {
    pub is_full: bool,
    /// Number of times that it became full while it was watched.
    pub times: u64,
}
