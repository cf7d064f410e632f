//! What a target is asked to serve, and why it could not start.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isolane_proto::target::{ConnectionConfig, Scheduling};
use isolane_reactor::{IoChoice, Mode, ReactorConfig};
use isolane_volume::Volume;
use isolane_wire::Nqn;

use crate::error::StartError;
use crate::listen::Listen;
use crate::placement::Placement;

/// What a target serves and how. Start from [`TargetConfig::new`] and change what should differ.
#[derive(Clone)]
pub struct TargetConfig {
    /// Name of the NVM subsystem.
    pub nqn: Nqn,
    /// Serial number of the subsystem, at most 20 printable ASCII characters.
    pub serial: String,
    /// The namespaces: id (from 1) and volume.
    pub volumes: Vec<(u32, Arc<dyn Volume>)>,
    /// Where to listen, and with which socket options.
    pub listen: Vec<Listen>,
    /// The addresses that the discovery log names; empty: the one that the asking host connected to.
    pub advertise: Vec<SocketAddr>,
    /// The only hosts that may connect, by NQN; `None` admits every host.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// One reactor is pinned to each of these cores; empty means one reactor that is not pinned.
    pub cores: Vec<usize>,
    /// By which rule connections are spread over the cores.
    pub placement: Placement,
    /// What reactors do when there is nothing to do.
    pub mode: Mode,
    /// How long [`Mode::Adaptive`] spins after work.
    pub spin: Duration,
    /// The interface of the kernel that carries sleep, readiness and files.
    pub io: IoChoice,
    /// The most I/O queues of one controller.
    pub io_queues: u16,
    /// The most entries of one queue.
    pub queue_depth: u16,
    /// The most connected queues at once, over all cores.
    pub max_connections: usize,
    /// The most connections before Connect at once, over all cores: one more takes the place of the oldest of
    /// the address that has the most.
    pub max_newcomers: usize,
    /// A host has so long from its connection to a successful Connect.
    pub handshake_timeout: Duration,
    /// A transfer may stand still for so long, twice that at the most; and for so long a host may leave bytes of ours
    /// unacknowledged.
    pub stall_timeout: Duration,
    /// After so long nobody waits for a volume any more: a controller's shutdown completes without its flush, and
    /// its reset without the commands that are stuck. What overlaps a change among them still comes after it.
    pub stuck_after: Duration,
    /// Short commands pass long ones on their connection, and a turn receives a bounded amount from each of
    /// many; without it, first come, first served.
    pub scheduling: bool,
    /// At this interval lanes are moved between cores by their load, and reactors without any sleep; `None`
    /// leaves each where it was placed. Nothing moves with one core. Where cpufreq allows it, the clock of
    /// the first core follows its load until the target has ended in order.
    pub rebalance_interval: Option<Duration>,
    /// Sends of at least so many bytes are made without a copy, where the kernel can do that: with 0 every
    /// send. `None` always copies.
    pub zerocopy_threshold: Option<usize>,
    /// Memory of one reactor for data in flight, in pages of 4 KiB; at least 1,024 are taken.
    pub max_pool_pages: usize,
}

impl TargetConfig {
    /// A target with this name that serves nothing yet, listening nowhere.
    pub fn new(nqn: Nqn) -> TargetConfig {
        TargetConfig {
            nqn,
            serial: String::from("ISOLANE"),
            volumes: Vec::new(),
            listen: Vec::new(),
            advertise: Vec::new(),
            allowed_hosts: None,
            cores: Vec::new(),
            placement: Placement::default(),
            mode: Mode::Adaptive,
            spin: ReactorConfig::SPIN,
            io: IoChoice::Auto,
            io_queues: 64,
            queue_depth: 256,
            max_connections: 4096,
            max_newcomers: 12 * 1024,
            handshake_timeout: ConnectionConfig::default().handshake,
            stall_timeout: ConnectionConfig::default().stall,
            stuck_after: Duration::from_secs(10),
            scheduling: true,
            rebalance_interval: None,
            zerocopy_threshold: None,
            max_pool_pages: 32 * 1024,
        }
    }

    /// The bounds of each connection.
    pub(crate) fn limits(&self) -> ConnectionConfig {
        ConnectionConfig {
            max_in_capsule_bytes: MAX_IN_CAPSULE_BYTES,
            scheduling: if self.scheduling { Scheduling::ON } else { Scheduling::OFF },
            handshake: self.handshake_timeout,
            stall: self.stall_timeout,
            ..ConnectionConfig::default()
        }
    }
}

impl TargetConfig {
    /// # Errors
    /// When an address is given twice, which would seem to be in use, or when hosts could not tell two
    /// namespaces apart: they would take them for two paths to one.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        for (at, Listen { address, .. }) in self.listen.iter().enumerate() {
            let is_twice = self.listen[..at].iter().any(|other| other.address == *address);
            if is_twice && address.port() != 0 {
                return Err(StartError::SameAddress(*address));
            }
        }
        for (at, (_, volume)) in self.volumes.iter().enumerate() {
            let twin = self.volumes[..at].iter().find(|(_, other)| other.identity() == volume.identity());
            if let Some((_, other)) = twin {
                let (first, second) = (other.name().to_owned(), volume.name().to_owned());
                return Err(StartError::SameIdentity { first, second });
            }
        }
        Ok(())
    }
}

/// Most data of one command (MDTS).
pub(crate) const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// Most in-capsule data of an I/O command (IOCCSZ 1028).
pub(crate) const MAX_IN_CAPSULE_BYTES: u32 = 16 * 1024;
