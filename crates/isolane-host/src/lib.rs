//! The NVMe/TCP host: volumes of any target, in user space, over plain TCP.
//!
//! * [`Uri`] names a volume, [`Options`] configures access to it, [`discover`] and [`inspect`] list what a
//!   target offers.
//! * [`Volume`] is asynchronous and runs under any executor. [`BlockingVolume`] waits and can borrow buffers.
//! * [`Client`] is their single-threaded core, driven in the caller's thread, for the lowest latency.
//! * [`Error`] combines all errors of the crate, for `?`.
//! * With `?via=engine` or [`Options::via`], all of them work through an isolated engine.
//!
//! ```no_run
//! use isolane_host::{Buffer, Options, Volume};
//!
//! # async fn example() -> Result<(), isolane_host::Error> {
//! let uri = "nvme+tcp://[::1]:4420/nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse()?;
//! let volume = Volume::connect(&uri, Options::default()).await?;
//! let buffer = volume.read(0, Buffer::contiguous(4096)).await?;
//! let buffer = volume.write(8192, buffer).await?;
//! let zeroes = Buffer::from(vec![0; 512]);
//! volume.write_durable(0, zeroes).await?;
//! volume.flush().await?;
//! println!("copied {} bytes", buffer.len());
//! volume.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Not included: kernel block devices, multipath, authentication, and encryption.
//!
//! Invariants:
//! * The buffer of a request is returned with its result.
//! * Payload is copied at most once between the socket and that buffer.
//! * A request succeeds exactly if the target reported success.
//! * A write is repeated only when [`fence`] allows it.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod any_error;
mod blocking;
mod caller_queue;
mod client;
mod client_state;
mod codec;
mod connect;
mod cores;
mod difference;
mod direct;
mod error;
mod identity;
mod info;
mod io_limits;
mod lane_class;
#[cfg(test)]
mod mock;
mod observed;
mod observer;
mod operation;
mod options;
mod reply;
mod request;
mod request_table;
mod service;
mod submitter;
mod unflushed;
mod uri;
pub mod via_engine;
mod volume;

pub use any_error::Error;
pub use blocking::BlockingVolume;
pub use client::Client;
pub use connect::discovery::{DiscoveredSubsystem, discover};
pub use connect::fence;
pub use connect::host_page::{HostPage, MalformedPage, TargetPage, read_host_page};
pub use connect::inspect;
pub use connect::journal::{AssociationJournal, StaleAssociation};
pub use cores::{Cores, CoresError};
pub use difference::Difference;
pub use error::{ConnectError, LossCause, RequestError, Step};
pub use identity::{host_id, host_nqn, machine_id};
pub use info::{ConnectionStatus, ControllerInfo, EngineStatus, Generation, Info, NamespaceInfo, Negotiated};
pub use isolane_memory::Buffer;
pub use isolane_wire::Nqn;
pub use isolane_wire::log::RestartLoss;
pub use isolane_wire::registers::Vs as Version;
pub use lane_class::{LaneClass, LaneCounts};
pub use observer::RequestTimes;
pub use options::{
    Coalesce, FlushAfterLoss, IoChoice, Mode, Options, Reconnect, SocketOptions, Via, WriteReplay,
};
pub use request::{BlockRange, Completion, Request, Wait};
pub use submitter::Submitter;
pub use unflushed::Era;
pub use uri::{DEFAULT_PORT, Uri, UriError};
pub use volume::{Action, Transfer, TransferError, Volume};
