//! What an application links to have its network processing done by an isolated engine.
//!
//! * [`Session`]: the connection to an engine, and the memory that is shared with it.
//! * [`stream`]: connections whose bytes go through the engine.
//! * [`control`]: what both say to each other over the Unix socket between them; the engine uses it, too.
//! * [`layout`]: where what is in the shared memory; as well.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use isolane_attach::stream::{Listener, Stream};
//! use isolane_attach::{Session, default_path};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Starts an engine if there is none.
//! let session = Session::connect(&default_path())?;
//! let listener = Listener::bind(&session, "127.0.0.1:0")?;
//! let mut client = Stream::connect(&session, listener.local_addr()?)?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut bytes = [0; 5];
//! server.read_exact(&mut bytes)?;
//!
//! // At any moment, under traffic: the real socket, without the engine, and back.
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
//! Invariant: whatever the engine or another process does to the memory that is shared, an operation ends with
//! a result or an error.

#![forbid(unsafe_code)]

pub mod control;
mod error;
pub mod layout;
mod session;
pub mod stream;

pub use error::AttachError;
pub use session::{Options, Port, Queue, Room, Session, Watcher, default_path};
