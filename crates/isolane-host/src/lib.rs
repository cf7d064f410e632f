//! The NVMe/TCP host: volumes of any target, in user space, over plain TCP.
//!
//! * [`Uri`] says where a volume is, [`Options`] how to talk to it, [`discover`] and [`inspect`] what there
//!   is.
//! * [`Volume`] is asynchronous and runs under any executor; [`BlockingVolume`] waits and may borrow.
//! * [`Client`] is the core of both: single-threaded, driven in the caller's thread, for programs that live
//!   for speed.
//! * [`Error`] is any of its errors, for `?`.
//! * With `?via=engine` or [`Options::via`] all of them go through an isolated engine ([`attached`]).
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
//! Not here: kernel block devices, multipath, authentication, encryption. The invariants of the room: the
//! buffer of a request comes back with its result; payload is copied at most once between the socket and that
//! buffer; a request succeeds exactly if the target said so; a write is repeated only when [`fence`] allows
//! it.

#![deny(unsafe_code)]

pub mod attached;
mod blocking;
mod classes;
mod client;
mod cores;
mod difference;
mod discovery;
mod driven;
mod error;
mod expiry;
pub mod fence;
mod identity;
mod info;
mod lent;
#[cfg(test)]
mod mock;
mod oneshot;
mod options;
mod predecessor;
mod request;
mod service;
mod setup;
mod submitter;
mod unflushed;
mod uri;
mod volume;

pub use attached::EngineStatus;
pub use blocking::BlockingVolume;
pub use classes::{Class, Classes};
pub use client::{ConnectionStatus, Wait};
pub use cores::{Cores, CoresError};
pub use difference::Difference;
pub use discovery::{DiscoveredSubsystem, discover};
pub use driven::Client;
pub use error::{ConnectError, Error, LossCause, RequestError, Step};
pub use identity::{host_id, host_nqn, machine_id};
pub use info::{ControllerInfo, Generation, Info, NamespaceInfo, Negotiated};
pub use isolane_memory::Buffer;
pub use isolane_wire::Nqn;
pub use isolane_wire::log::RestartLoss;
pub use isolane_wire::registers::Vs as Version;
pub use options::{FlushAfterLoss, Hold, IoChoice, Mode, Options, Reconnect, SocketOptions, WriteReplay};
pub use predecessor::{Predecessor, Witness};
pub use request::{BlockRange, Completion, Request};
pub use setup::inspect;
pub use submitter::Submitter;
pub use unflushed::Era;
pub use uri::{PORT_DEFAULT, Uri, UriError, Via};
pub use volume::{Action, Failed, Transfer, Volume};
