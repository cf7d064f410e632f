//! The parts of a device that its connections and memory share.

use std::sync::Arc;

use isolane_verbs::ProtectionDomain;

/// A device with the registered memory of its queue pairs.
pub(crate) struct Opened {
    pub(crate) device: Arc<isolane_verbs::Device>,
    pub(crate) domain: Arc<ProtectionDomain>,
}
