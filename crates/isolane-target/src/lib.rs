//! The NVMe/TCP target: protocol, reactors, and volumes combined into a server.
//!
//! [`Target::start`] listens, starts one reactor thread per core, and serves the given volumes as namespaces
//! of one NVM subsystem, next to a discovery subsystem. A connection belongs to one core at a time, and its
//! I/O commands take no lock except the volume's. The control path (Connect, admin commands, keep alive) is
//! one lock around the subsystem's state.
//!
//! ```no_run
//! use isolane_target::{Target, TargetConfig};
//! use isolane_volume::{open, spec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = TargetConfig::new("nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349".parse()?);
//! config.subsystems[0].volumes.push((1, open(&spec::parse("mem:1G")?)?));
//! config.listen.push("127.0.0.1:0".parse()?);
//! let target = Target::start(config)?;
//! println!("listening on {}", target.local_addrs()[0]);
//! target.shutdown(Target::SHUTDOWN_TIMEOUT);
//! # Ok(())
//! # }
//! ```
//!
//! The crate parses no command line, opens no volume, and decodes no bytes: see `isolane-cli`,
//! `isolane-volume`, and `isolane-proto`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod apply;
mod auth;
mod auth_requests;
mod auth_threads;
mod changes;
mod config;
mod connection_status;
mod connections;
mod control;
mod core;
mod counters;
mod descriptors;
mod error;
mod event;
mod fault;
mod fence;
mod frozen;
mod host_page;
mod lane;
mod lane_quota;
mod limits;
mod link;
mod listen;
mod masks;
mod memory_budget;
mod memory_limits;
mod namespace;
mod newcomers;
mod nvme_status;
mod observed;
mod orphans;
mod page_thread;
mod placement;
mod port;
mod port_changes;
mod present_port;
mod qos;
mod release;
mod scheduler;
mod shared;
#[cfg(test)]
mod simulation;
mod slab;
mod snapshot;
mod stall_times;
mod table_state;
mod target;
mod timeline;
mod unflushed;
mod work;

pub use apply::{TargetChange, TargetControl};
pub use auth::{AuthConfig, HostKeys, RequiredAuth};
pub use changes::{Changed, Closing, NamespaceChange, NamespaceControl, NamespaceState, NamespaceStatus};
pub use config::{OfflineVolume, Subsystem, TargetConfig};
pub use connection_status::{ConnectionPhase, ConnectionStatus};
pub use connections::Disconnected;
pub use counters::{Counters, NamespaceCounters, OperationCounters};
pub use error::{ApplyError, NamespaceError, PortError, PortsError, ShutdownReport, StartError};
pub use event::TargetEvent;
pub use fault::Fault;
pub use frozen::{FrozenState, FrozenStateError};
pub use limits::{ConnectionLimits, LimitKind, LimitScope, TargetLimits};
pub use listen::{DEFAULT_PORT, Listen, is_dual_stack, parse_address};
pub use observed::Turn;
pub use orphans::Orphan;
pub use placement::Placement;
pub use port::TargetPort;
pub use port_changes::{BoundPorts, PortChanges};
pub use qos::QosConfig;
pub use stall_times::StallTimes;
pub use target::{Frozen, Refused, SnapshotSource, Target};

pub use isolane_observe::stage::Operation;
pub use isolane_proto::auth::{Key, KeyPair, Policy};
pub use isolane_proto::subsystem::AssociationInfo;
pub use isolane_reactor::{IoChoice, Mode, SocketOptionError, SocketOptions};
