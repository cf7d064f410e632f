//! One loop per core: sockets, files, timers and a mailbox.
//!
//! A [`Reactor`] owns the sockets (lanes) of one core, tells its driver which of them have something
//! to receive, carries file operations to the kernel and back, and sleeps when there is nothing to do.
//! The driver reads and writes with plain non-blocking `readv` and `sendmsg`, so that bytes land in their
//! destination: [`Reactor::receive`] and [`Reactor::send`].
//!
//! ```no_run
//! use isolane_reactor::{Config, Event, Reactor, Received};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reactor = Reactor::new(Config::default())?;
//! reactor.listen(std::net::TcpListener::bind("127.0.0.1:0")?)?;
//! let mut events = Vec::new();
//! loop {
//!     reactor.turn(None, &mut events)?;
//!     for event in events.drain(..) {
//!         match event {
//!             Event::Accepted { socket, .. } => drop(reactor.add(socket)?),
//!             Event::Readable(token) => {
//!                 let mut bytes = [0; 4096];
//!                 let mut plan = [std::io::IoSliceMut::new(&mut bytes)];
//!                 match reactor.receive(token, &mut plan)? {
//!                     Received::Bytes(count) => println!("{count} bytes"),
//!                     Received::Nothing => {}
//!                     Received::End => drop(reactor.remove(token)),
//!                 }
//!             }
//!             Event::Writable(_) | Event::File(_) | Event::Woken => {}
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! It is not a runtime: no tasks, no futures, no protocol. It keeps three promises: one turn does a bounded
//! amount of work; a lane with unread bytes is reported again until a receive found it empty; memory that was
//! given to the kernel stays untouched until the kernel is done with it, even when the reactor is dropped.

#![deny(unsafe_code)]

mod config;
pub mod core;
pub mod dead;
mod epoll;
mod event;
pub mod file;
pub mod frequency;
mod kernel;
mod key;
mod lanes;
mod ledger;
mod listeners;
pub mod mailbox;
mod notices;
mod options;
mod poller;
mod reactor;
mod ring;
pub mod socket;
pub mod spin;
pub mod topology;
mod vectors;
pub mod waker;
mod workers;

pub use config::{Config, IoChoice, Mode, ReactorError};
pub use event::{Event, ListenerToken, Received, Token};
pub use options::{OptionSyntaxError, SocketOptionError, SocketOptions};
pub use reactor::{Detached, Reactor, Rest, Sent};
pub use waker::Waker;
