//! Configuration of a target.

use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use isolane_proto::subsystem::{ConfigError, MAX_NSID, NamespaceConfig, SubsystemConfig};
use isolane_proto::target::{ConnectionConfig, Scheduling};
use isolane_reactor::{IoChoice, Mode, ReactorConfig};
use isolane_volume::Volume;
use isolane_wire::Nqn;

use crate::auth::AuthConfig;
use crate::error::StartError;
use crate::limits::TargetLimits;
use crate::placement::Placement;
use crate::port::TargetPort;
use crate::qos::QosConfig;
use crate::stall_times::StallTimes;

/// An NVM subsystem: its namespaces, and the hosts that can use them.
#[derive(Clone)]
pub struct Subsystem {
    /// Name that hosts connect to.
    pub nqn: Nqn,
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// The namespaces: id (from 1) and volume.
    pub volumes: Vec<(u32, Arc<dyn Volume>)>,
    /// Namespaces whose volumes could not be opened. Hosts do not see them until one gets a volume
    /// ([`NamespaceChange::Replace`](crate::NamespaceChange::Replace)), and repeat commands that they send to them.
    pub offline: Vec<OfflineVolume>,
    /// Namespaces that fewer hosts see: id, and the NQNs of these hosts.
    pub masks: Vec<(u32, Vec<Nqn>)>,
    /// NQNs of the hosts that can connect; `None` admits every host.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// Names of the ports at which hosts reach it; `None`: all ports.
    pub ports: Option<Vec<String>>,
    /// Model number, at most 40 printable ASCII characters.
    pub model: String,
    /// Lowest and highest controller ID, from 1 to 65519.
    pub cntlids: RangeInclusive<u16>,
    /// Maximum speed of namespaces, by ID.
    pub qos: BTreeMap<u32, QosConfig>,
}

/// A volume that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineVolume {
    /// ID of its namespace, from 1, which no volume has.
    pub nsid: u32,
    /// Name of the volume.
    pub name: String,
    /// Why it could not be opened.
    pub reason: String,
}

impl Subsystem {
    /// Returns a subsystem without namespaces, for every host at all ports.
    pub fn new(nqn: Nqn) -> Subsystem {
        let SubsystemConfig { model, allowed_hosts, ports, cntlids, .. } = SubsystemConfig::default();
        let (serial, volumes, offline, masks, qos) =
            (String::from("ISOLANE"), Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
        Subsystem { nqn, serial, volumes, offline, masks, allowed_hosts, ports, model, cntlids, qos }
    }

    /// Returns the hosts that see a namespace; `None`: all.
    pub(crate) fn hosts_of(&self, nsid: u32) -> Option<Vec<Nqn>> {
        self.masks.iter().find(|(masked, _)| *masked == nsid).map(|(_, hosts)| hosts.clone())
    }

    /// Whether hosts reach it at this port.
    pub fn is_at(&self, port: &TargetPort) -> bool {
        let is_listed = |ports: &Vec<String>| port.name.as_ref().is_some_and(|name| ports.contains(name));
        !port.discovery_only && self.ports.as_ref().is_none_or(is_listed)
    }

    /// Checks the IDs of the namespaces without a volume, which hosts do not see.
    pub(crate) fn check_offline(&self) -> Result<(), ConfigError> {
        let mut used: HashSet<u32> = self.volumes.iter().map(|(nsid, _)| *nsid).collect();
        for OfflineVolume { nsid, .. } in &self.offline {
            if !(1..=MAX_NSID).contains(nsid) {
                return Err(ConfigError::Nsid(*nsid));
            }
            if !used.insert(*nsid) {
                return Err(ConfigError::NsidTwice(*nsid));
            }
        }
        Ok(())
    }

    /// Returns the description for the control path, with the limits of `template`.
    pub(crate) fn to_config(
        &self,
        template: &SubsystemConfig,
        namespaces: Vec<NamespaceConfig>,
    ) -> SubsystemConfig {
        SubsystemConfig {
            nqn: self.nqn,
            serial: self.serial.clone(),
            namespaces,
            allowed_hosts: self.allowed_hosts.clone(),
            ports: self.ports.clone(),
            model: self.model.clone(),
            cntlids: self.cntlids.clone(),
            ..template.clone()
        }
    }
}

/// Subsystems, addresses, and limits of a target. Start from [`TargetConfig::new`] and change single fields.
#[derive(Clone)]
pub struct TargetConfig {
    /// The NVM subsystems.
    pub subsystems: Vec<Subsystem>,
    /// The ports: addresses to listen on, each with its socket options.
    pub listen: Vec<TargetPort>,
    /// Listening sockets that the process was given. The port with the address of one uses it, so that connections
    /// which hosts open before the start wait in it.
    pub sockets: Vec<Arc<TcpListener>>,
    /// Addresses in the discovery log; if empty, the listeners that a host can reach.
    pub advertise: Vec<SocketAddr>,
    /// Addresses of other discovery services, which the discovery log names.
    pub referrals: Vec<SocketAddr>,
    /// First generation counter of the discovery log (GENCTR), which must not be below one that hosts have seen; `None`:
    /// the seconds since the epoch.
    pub discovery_generation: Option<u64>,
    /// Authentication of hosts, for all subsystems; `None` serves every allowed host.
    pub auth: Option<AuthConfig>,
    /// Cores to pin one reactor to, each; empty for a single unpinned reactor.
    pub cores: Vec<usize>,
    /// Rule for the placement of connections on cores.
    pub placement: Placement,
    /// Idle behavior of the reactors.
    pub mode: Mode,
    /// Time that [`Mode::Adaptive`] spins after work.
    pub spin: Duration,
    /// Kernel interface for sleep, readiness, and file I/O.
    pub io: IoChoice,
    /// Maximum number of I/O queues of one controller.
    pub io_queues: u16,
    /// Maximum number of entries of one queue.
    pub queue_depth: u16,
    /// Maximum number of connected queues on all cores.
    pub max_connections: usize,
    /// Limits of connections of the target, of subsystems, and of hosts, below [`TargetConfig::max_connections`]:
    /// see [`Target::set_limits`](crate::Target::set_limits).
    pub limits: TargetLimits,
    /// Maximum number of connections before Connect on all cores. One more displaces the oldest connection of
    /// the address with the most of them.
    pub max_newcomers: usize,
    /// Time limit from the TCP connection to a successful Connect.
    pub handshake_timeout: Duration,
    /// Time limit for a transfer without progress (at most twice that), and for unacknowledged bytes at the
    /// host.
    pub stall_timeout: Duration,
    /// Time limit for a volume. After it, a controller's shutdown completes without the flush, and its reset
    /// without the stuck commands. Commands that overlap a stuck change still wait for it.
    pub stuck_after: Duration,
    /// Age of the oldest command at its volume from which a namespace is stalled.
    pub stall_after: Duration,
    /// Age at which a command is answered in place of a volume that does not complete it: its host can repeat it, while the
    /// operation goes on. The same for a command that waits for a [limit](QosConfig) of its namespace. So long is held, too,
    /// a command of a namespace that is offline, if its host knows no retry delays (ACRE). Linux resets the controller after
    /// 30 s. Checked four times per second.
    pub answer_within: Duration,
    /// Fair queueing: short commands pass long ones of their connection, and a turn receives a bounded amount
    /// from each of several connections. Otherwise commands run in order of arrival.
    pub scheduling: bool,
    /// Interval at which lanes move between cores by load, so that reactors without lanes sleep; `None` keeps
    /// each lane on its core. If cpufreq allows it, the clock of the first core follows its load until a
    /// clean shutdown.
    pub rebalance_interval: Option<Duration>,
    /// Minimum size in bytes of a zero-copy send, if the kernel supports it; `None` always copies.
    pub zerocopy_threshold: Option<usize>,
    /// Record latencies, stages, and slow operations: see [`Target::snapshot`](crate::Target::snapshot).
    pub observe: bool,
    /// Measure the stage `peer`, until the host has acknowledged a send, of one send in this number; `None` for no send.
    /// Needs `observe`.
    pub acks: Option<NonZeroU32>,
    /// Memory of these numbers, of all cores together, in bytes. Volumes beyond it are counted together.
    pub observe_memory: usize,
    /// Memory of one reactor for data in flight, in pages of 4 KiB; at least 1,024.
    pub max_pool_pages: usize,
}

impl TargetConfig {
    /// Returns a configuration with one subsystem, without volumes and addresses.
    pub fn new(nqn: Nqn) -> TargetConfig {
        TargetConfig {
            subsystems: vec![Subsystem::new(nqn)],
            listen: Vec::new(),
            sockets: Vec::new(),
            advertise: Vec::new(),
            referrals: Vec::new(),
            discovery_generation: None,
            auth: None,
            cores: Vec::new(),
            placement: Placement::default(),
            mode: Mode::Adaptive,
            spin: ReactorConfig::SPIN,
            io: IoChoice::Auto,
            io_queues: 64,
            queue_depth: 256,
            max_connections: 4096,
            limits: TargetLimits::default(),
            max_newcomers: 12 * 1024,
            handshake_timeout: ConnectionConfig::default().handshake,
            stall_timeout: ConnectionConfig::default().stall,
            stuck_after: Duration::from_secs(10),
            stall_after: StallTimes::default().stall_after,
            answer_within: StallTimes::default().answer_within,
            scheduling: true,
            rebalance_interval: None,
            zerocopy_threshold: None,
            observe: true,
            acks: None,
            observe_memory: 64 << 20,
            max_pool_pages: 32 * 1024,
        }
    }

    /// Returns the limits of each subsystem. A host is granted as many I/O queues as it can connect.
    pub(crate) fn subsystem_template(&self, max_connections: usize) -> SubsystemConfig {
        let max_io_queues = u16::try_from(max_connections.saturating_sub(1)).unwrap_or(u16::MAX).max(1);
        SubsystemConfig {
            max_io_queues: self.io_queues.min(max_io_queues),
            max_queue_entries: self.queue_depth,
            max_in_capsule_bytes: MAX_IN_CAPSULE_BYTES,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            ..SubsystemConfig::default()
        }
    }

    pub(crate) fn stall_times(&self) -> StallTimes {
        StallTimes { stall_after: self.stall_after, answer_within: self.answer_within }
    }

    /// Returns the limits of each connection.
    pub(crate) fn limits(&self) -> ConnectionConfig {
        ConnectionConfig {
            max_in_capsule_bytes: MAX_IN_CAPSULE_BYTES,
            scheduling: if self.scheduling { Scheduling::ON } else { Scheduling::OFF },
            handshake: self.handshake_timeout,
            stall: self.stall_timeout,
            ..ConnectionConfig::default()
        }
    }

    /// # Errors
    /// If an address is given twice, which would look like an address in use, if two namespaces have the same identity,
    /// which hosts would treat as two paths to one namespace, or if a namespace without a volume has no ID of its own.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        for (at, port) in self.listen.iter().enumerate() {
            let address = port.listen.address;
            let is_twice = self.listen[..at].iter().any(|other| other.listen.address == address);
            if is_twice && address.port() != 0 {
                return Err(StartError::SameAddress(address));
            }
        }
        self.subsystems.iter().try_for_each(Subsystem::check_offline)?;
        let volumes: Vec<_> = self.subsystems.iter().flat_map(|subsystem| &subsystem.volumes).collect();
        for (at, (_, volume)) in volumes.iter().enumerate() {
            let twin = volumes[..at].iter().find(|(_, other)| other.identity() == volume.identity());
            if let Some((_, other)) = twin {
                let (first, second) = (other.name().to_owned(), volume.name().to_owned());
                return Err(StartError::SameIdentity { first, second });
            }
        }
        Ok(())
    }
}

/// Maximum data length of one command (MDTS).
pub(crate) const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// Maximum in-capsule data of an I/O command (IOCCSZ 1028).
pub(crate) const MAX_IN_CAPSULE_BYTES: u32 = 16 * 1024;
