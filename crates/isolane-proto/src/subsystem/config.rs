//! Configuration of a port: its NVM subsystems, their namespaces, and limits.
//!
//! Checked when a [`Port`](super::Port) is created or changed.
//!
//! Invariant: the Identify pages can express every configuration that [`PortConfig::check`]
//! accepts.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use isolane_wire::Nqn;
use isolane_wire::fabrics::MAX_CNTLID;
use isolane_wire::log::RestartLoss;
use thiserror::Error;

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Name for [`SubsystemConfig::ports`]; `None`: only subsystems without a list are there.
    pub name: Option<String>,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// Whether hosts reach only the discovery subsystem there.
    pub discovery_only: bool,
    /// PORTID in the discovery log, which no other listener has; `None`: the one that its name had before, or the next.
    pub port_id: Option<u16>,
}

impl Listener {
    /// Whether hosts reach this NVM subsystem there.
    pub(super) fn has(&self, subsystem: &SubsystemConfig) -> bool {
        let is_listed = |ports: &Vec<String>| self.name.as_ref().is_some_and(|name| ports.contains(name));
        !self.discovery_only && subsystem.ports.as_ref().is_none_or(is_listed)
    }
}

/// A listener without a name, for all subsystems without a list.
impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Listener {
        Listener { name: None, address, discovery_only: false, port_id: None }
    }
}

/// Initial configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The NVM subsystems; the port adds the discovery subsystem, with the texts of the first one.
    pub subsystems: Vec<SubsystemConfig>,
    /// The listeners; the discovery log has each one that the host can reach.
    pub listeners: Vec<Listener>,
    /// Addresses for the discovery log, instead of the listeners.
    pub advertise: Vec<SocketAddr>,
    /// Addresses of other discovery services, for the discovery log.
    pub referrals: Vec<SocketAddr>,
    /// Maximum number of associations, including discovery; a further host gets Controller Busy.
    pub max_associations: usize,
    /// First generation counter of the discovery log. It must never decrease, so a target without
    /// persistent state passes the seconds since the epoch at its start.
    pub generation_start: u64,
}

/// The NVM subsystem (NVMe Base 1.4 §1.6.29).
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Name that hosts connect to.
    pub nqn: Nqn,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// Model number, at most 40 printable ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 printable ASCII characters.
    pub firmware: String,
    /// Namespaces that exist at start, in any order.
    pub namespaces: Vec<NamespaceConfig>,
    /// Hosts that can connect; `None`: all.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// Names of the listeners at which hosts reach it; `None`: all.
    pub ports: Option<Vec<String>>,
    /// Lowest and highest CNTLID, from 1 to FFEFh.
    pub cntlids: RangeInclusive<u16>,
    /// Maximum number of I/O queues of one association.
    pub max_io_queues: u16,
    /// Entries of one I/O queue, one of which always stays empty; reported as CAP.MQES.
    pub max_queue_entries: u16,
    /// In-capsule data of an I/O queue, in bytes, a multiple of 16; reported as IOCCSZ.
    pub max_in_capsule_bytes: u32,
    /// Data of one command, in bytes, a power of two of at least 8 KiB (MDTS 0 would mean no
    /// limit); reported as MDTS.
    pub max_transfer_bytes: u32,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Namespace identifier, from 1 to [`MAX_NSID`].
    pub nsid: u32,
    /// Hosts that see it, of those of the subsystem; `None`: all of these.
    pub hosts: Option<Vec<Nqn>>,
    /// Block size, size, and write protection.
    pub geometry: NamespaceGeometry,
    /// UUID of the namespace; all zero: none.
    pub uuid: [u8; 16],
    /// Namespace globally unique identifier; all zero: none.
    pub nguid: [u8; 16],
    /// Whether a power failure can lose completed writes that were not flushed.
    pub volatile_cache: bool,
    /// Whether Deallocate releases space.
    pub deallocate: bool,
    /// Whether deallocated blocks always read as zeroes (DLFEAT 001b).
    pub zeroes_after_deallocate: bool,
    /// Minimum number of blocks that deallocation can release (0: unknown).
    pub deallocate_blocks_preferred: u32,
    /// Generation of the content; `None`: a host cannot distinguish a restart from a network
    /// failure.
    pub generation: Option<Generation>,
}

/// Identifies the time during which no acknowledged write is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// A UUID that changes whenever acknowledged writes may have been lost.
    pub id: [u8; 16],
    /// The acknowledged writes that are lost in that case.
    pub loses: RestartLoss,
}

/// The properties of a namespace that every I/O command is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceGeometry {
    /// Log2 of the logical block size in bytes: 9 to 12.
    pub block_shift: u8,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Whether writes are rejected.
    pub read_only: bool,
}

/// Highest namespace identifier (NN of Identify Controller).
pub const MAX_NSID: u32 = 1024;
/// Entries of an admin submission queue (ASQSZ of the discovery log).
pub const MAX_ADMIN_ENTRIES: u16 = 128;
/// In-capsule data that admin and fabrics commands can always carry, in bytes (TCP §3.3.1).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

impl Default for SubsystemConfig {
    fn default() -> SubsystemConfig {
        SubsystemConfig {
            nqn: Nqn::discovery(),
            serial: String::new(),
            model: "Isolane".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            namespaces: Vec::new(),
            allowed_hosts: None,
            ports: None,
            cntlids: 1..=MAX_CNTLID,
            max_io_queues: 64,
            max_queue_entries: 256,
            max_in_capsule_bytes: 16 * 1024,
            max_transfer_bytes: 1 << 20,
        }
    }
}

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The reserved name of the discovery service.
    #[error("{} is the name of the discovery service: choose another name for the subsystem", Nqn::DISCOVERY)]
    DiscoveryNqn,
    /// Two subsystems with the same name.
    #[error("two subsystems have the name {0}: a host could not tell them apart; rename one of them")]
    SameNqn(Box<Nqn>),
    /// Two listeners with the same name.
    #[error("two ports have the name {0}: a subsystem could not list one of them; rename one")]
    SamePort(String),
    /// Two listeners with the same PORTID.
    #[error("two ports have the ID {0}: number them differently, or leave that to the target")]
    SamePortId(u16),
    /// A subsystem lists the name of no listener.
    #[error("there is no port {0}: correct the name, or add the port first")]
    UnknownPort(String),
    /// Every PORTID has been used.
    #[error("the target has had 65535 ports since its start: use a name again, or start it again")]
    TooManyPorts,
    /// An empty range of controller IDs, or one with reserved values.
    #[error(
        "controller IDs from {0} to {1}: the first must not exceed the last, and they go from 1 to 65519"
    )]
    Cntlids(u16, u16),
    /// The subsystem was removed.
    #[error("the subsystem has been removed")]
    UnknownSubsystem,
    /// Text that does not fit its field of Identify.
    #[error("{field} {text:?} is longer than {max_bytes} characters or not printable ASCII: shorten it")]
    Text {
        /// The field.
        field: &'static str,
        /// Its value.
        text: String,
        /// Capacity of the field.
        max_bytes: usize,
    },
    /// A namespace identifier outside of 1 to [`MAX_NSID`].
    #[error("namespace ID {0} is not between 1 and {MAX_NSID}: choose another")]
    Nsid(u32),
    /// A duplicate identifier.
    #[error("namespace ID {0} is given twice: choose another for one of them")]
    NsidTwice(u32),
    /// A block size that is not offered.
    #[error("namespace {nsid} has blocks of 2^{shift} bytes: use 512 or 4096 bytes")]
    BlockSize {
        /// The namespace.
        nsid: u32,
        /// Log2 of the size.
        shift: u8,
    },
    /// A namespace without blocks.
    #[error("namespace {0} has no blocks: give it a size of at least one block")]
    Empty(u32),
    /// A limit that the protocol cannot express.
    #[error("{field} is {value}: it must be {rule}")]
    Limit {
        /// The limit.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The valid values.
        rule: &'static str,
    },
}

impl PortConfig {
    /// Rejects values that Identify, CAP, or Connect cannot express.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            subsystem.check()?;
            if self.subsystems[..at].iter().any(|other| other.nqn == subsystem.nqn) {
                return Err(ConfigError::SameNqn(Box::new(subsystem.nqn)));
            }
        }
        limit("max_associations", self.max_associations as u64, 1..=0xf000, "between 1 and 61440")
    }
}

impl SubsystemConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.nqn.is_discovery() {
            return Err(ConfigError::DiscoveryNqn);
        }
        text("serial number", &self.serial, 20)?;
        text("model number", &self.model, 40)?;
        text("firmware revision", &self.firmware, 8)?;
        let (first, last) = (*self.cntlids.start(), *self.cntlids.end());
        if first < 1 || first > last || last > MAX_CNTLID {
            return Err(ConfigError::Cntlids(first, last));
        }
        self.check_limits()?;
        NamespaceConfig::check_all(&self.namespaces)
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        limit("max_io_queues", self.max_io_queues.into(), 1..=0xfffe, "between 1 and 65534")?;
        limit("max_queue_entries", self.max_queue_entries.into(), 2..=0xffff, "between 2 and 65535")?;
        let in_capsule = u64::from(self.max_in_capsule_bytes);
        limit("max_in_capsule_bytes", in_capsule, 0..=1 << 20, "at most 1 MiB")?;
        if in_capsule % 16 != 0 {
            return Err(invalid_limit("max_in_capsule_bytes", in_capsule, "a multiple of 16"));
        }
        let transfer = u64::from(self.max_transfer_bytes);
        limit("max_transfer_bytes", transfer, 8192..=1 << 28, "between 8 KiB and 256 MiB")?;
        if !transfer.is_power_of_two() {
            return Err(invalid_limit("max_transfer_bytes", transfer, "a power of two"));
        }
        Ok(())
    }

    /// MDTS: log2 of the largest transfer in units of the smallest memory page, 4 KiB (Base 1.4
    /// Figure 247).
    pub(super) fn mdts(&self) -> u8 {
        (self.max_transfer_bytes / 4096).ilog2() as u8
    }
}

impl NamespaceConfig {
    pub(super) fn check_all(namespaces: &[NamespaceConfig]) -> Result<(), ConfigError> {
        let mut seen = std::collections::BTreeSet::new();
        for namespace in namespaces {
            namespace.check()?;
            if !seen.insert(namespace.nsid) {
                return Err(ConfigError::NsidTwice(namespace.nsid));
            }
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_NSID).contains(&self.nsid) {
            return Err(ConfigError::Nsid(self.nsid));
        }
        if ![9, 12].contains(&self.geometry.block_shift) {
            return Err(ConfigError::BlockSize { nsid: self.nsid, shift: self.geometry.block_shift });
        }
        if self.geometry.blocks == 0 {
            return Err(ConfigError::Empty(self.nsid));
        }
        Ok(())
    }
}

fn text(field: &'static str, text: &str, max_bytes: usize) -> Result<(), ConfigError> {
    let is_printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if is_printable && text.len() <= max_bytes {
        return Ok(());
    }
    Err(ConfigError::Text { field, text: text.into(), max_bytes })
}

fn limit(
    field: &'static str,
    value: u64,
    range: RangeInclusive<u64>,
    rule: &'static str,
) -> Result<(), ConfigError> {
    if range.contains(&value) { Ok(()) } else { Err(invalid_limit(field, value, rule)) }
}

fn invalid_limit(field: &'static str, value: u64, rule: &'static str) -> ConfigError {
    ConfigError::Limit { field, value, rule }
}
