//! Fabrics and domains, which all other objects use.

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use isolane_ffi::{install_logger, refuse, report};
use isolane_memory::{MemoryRegion, guard_copies};
use isolane_shm::with_only_faults_unblocked;
use isolane_verbs::{Access, Device, DeviceConfig, ProtectionDomain, SharedKey};

use crate::abi::{FidDomain, FidFabric};
use crate::ffi::{Errno, Result, Users};

/// A fabric.
#[repr(C)]
pub(crate) struct Fabric {
    pub(crate) abi: FidFabric,
    pub(crate) users: Arc<Users>,
}

/// A domain.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) abi: FidDomain,
    pub(crate) shared: Arc<DomainShared>,
    pub(crate) fabric: Arc<Users>,
    /// Peers name memory by its address, not by its offset in the registration.
    pub(crate) has_virtual_addresses: bool,
    /// The library chooses keys.
    pub(crate) chooses_keys: bool,
}

/// The part of a domain that its objects use.
pub(crate) struct DomainShared {
    pub(crate) device: Device,
    pub(crate) memory: Arc<ProtectionDomain>,
    pub(crate) users: Users,
}

/// Returns the key that all peers must have, if the environment names its file.
pub(crate) fn shared_key() -> Result<Option<Arc<SharedKey>>> {
    install_logger();
    SharedKey::of_program().map_err(refuse)
}

impl DomainShared {
    pub(crate) fn new(address: IpAddr) -> Result<DomainShared> {
        // A peer with another key, or without one, causes a warning.
        install_logger();
        let config = DeviceConfig::from_environment().map_err(refuse)?;
        let config = DeviceConfig { address, ..config };
        let device = with_only_faults_unblocked(|| Device::open(config))
            .inspect_err(|error| report(&format!("cannot open a device: {error}")))?;
        let memory = Arc::<ProtectionDomain>::default();
        guard_copies();
        // SAFETY: programs need not register the memory of their own operations. Each range is the program's until the
        // operation completes, and accesses to memory that is not mapped fail.
        let all =
            unsafe { MemoryRegion::from_raw(NonNull::with_exposed_provenance(FIRST_ADDRESS), ALL_BYTES) };
        let rights = Access(0).with_local_write(true);
        memory
            .register_as(Some(LOCAL_KEY), Arc::new(all), FIRST_ADDRESS.get() as u64, rights)
            .map_err(|_| Errno::NO_MEMORY)?;
        Ok(DomainShared { device, memory, users: Users::default() })
    }
}

/// Key of all memory of the process, for local operations only. Keys of programs are below it.
pub(crate) const LOCAL_KEY: u32 = u32::MAX;
const FIRST_ADDRESS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;
/// More than the address space of a process.
const ALL_BYTES: usize = isize::MAX as usize;
