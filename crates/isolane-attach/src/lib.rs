//! Client library for attaching to an isolated engine.
//!
//! An engine (`isolane engine`) does the network processing of other programs on dedicated cores. A program that
//! links this crate shares memory with the engine and uses TCP streams through it.
//!
//! * [`Session`]: the connection to an engine, and the memory that is shared with it.
//! * [`stream`]: TCP connections whose bytes pass through the engine.
//!
//! `isolane-engine-api` has the protocol between both.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use isolane_attach::stream::{Listener, Stream};
//! use isolane_attach::{Session, default_path};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Starts an engine if none is running.
//! let session = Session::connect(&default_path())?;
//! let listener = Listener::bind(&session, "127.0.0.1:0")?;
//! let mut client = Stream::connect(&session, listener.local_addr()?)?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut bytes = [0; 5];
//! server.read_exact(&mut bytes)?;
//!
//! // At any time, under traffic: back to the plain socket, and to the engine again.
//! let socket = client.into_std()?;
//! let client = Stream::adopt(&session, socket)?;
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! In tasks of any executor: `listener.accept_async().await?`, `stream.read_async(&mut bytes).await?`,
//! `stream.write_all_async(&bytes).await?`. One thread for many streams: [`stream::Poller`].
//!
//! Invariant: every operation ends with a result or an error, whatever another process writes to the shared
//! memory.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod error;
mod session;
pub mod stream;

pub use error::AttachError;
pub use isolane_engine_api::default_path;
pub use session::{Allocation, Doorbells, NotificationQueue, Session, SessionOptions, Watcher};
