//! Data of Get Log Page (Base 1.4 §5.14.1; discovery: Fabrics 1.1 §5.3).
//!
//! The changed namespace list (04h) is a [`crate::identify::NamespaceList`].

mod discovery;
mod effects;
mod error;
mod firmware;
mod generation;
mod host_stages;
mod smart;
#[cfg(test)]
mod tests;

pub use discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryFlags, DiscoveryHeader, SecureChannel, SubsystemType, Transport,
    TransportRequirements,
};
pub use effects::{CommandEffects, CommandEffectsLog};
pub use error::ErrorEntry;
pub use firmware::{ActiveFirmware, FirmwareSlots};
pub use generation::{GenerationLog, RestartLoss, SIGNATURE};
pub use host_stages::HostStagesHeader;
pub use smart::{CriticalWarning, Smart};
