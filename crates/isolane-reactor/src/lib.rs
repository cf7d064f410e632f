//! One event loop per core: sockets, files, timers, and a mailbox.
//!
//! A [`Reactor`] owns the sockets of one core, reports to its driver which of them are readable or writable,
//! submits file operations to the kernel, and sleeps when there is nothing to do. It uses io_uring, or epoll
//! and a few threads where io_uring is unavailable. The driver reads and writes with plain non-blocking
//! `readv` and `sendmsg`, so that bytes land in their destination: [`Reactor::receive`] and
//! [`Reactor::send`].
//!
//! ```no_run
//! use isolane_reactor::{Event, Reactor, ReactorConfig, Received};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reactor = Reactor::new(ReactorConfig::default())?;
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
//!                     Received::WouldBlock => {}
//!                     Received::Eof => drop(reactor.remove(token)),
//!                 }
//!             }
//!             Event::Writable(_) | Event::File(_) | Event::Woken => {}
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! The reactor is not a runtime: it has no tasks, futures, or protocols.
//!
//! Invariants:
//! * One turn does a bounded amount of work.
//! * A socket with unread bytes is reported again until a receive finds it empty.
//! * Memory that was given to the kernel stays untouched until the kernel is done with it, even if the reactor
//!   is dropped.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod backend;
pub mod clock;
mod config;
pub mod cpu;
mod epoll;
mod errqueue;
mod event;
mod eventfd;
pub mod file;
pub mod frequency;
pub mod inherited;
mod key;
mod listeners;
pub mod mailbox;
mod parker;
mod reactor;
pub mod retry;
mod sleep_times;
mod socket_table;
pub mod spin;
mod sys;
pub mod topology;
pub mod unix_listener;
mod uring;
pub mod waker;
mod workers;
mod zerocopy_tracker;

pub use config::{IoChoice, Mode, ReactorConfig, ReactorError};
pub use isolane_tcp::{OptionSyntaxError, SocketOptionError, SocketOptions, socket};

pub use event::{Event, Received, Token};
pub use eventfd::EventfdSignals;
pub use listeners::accept_waiting;
pub use parker::Parker;
pub use reactor::{Detached, Reactor, Sent};
pub use sleep_times::SleepTimes;
pub use waker::Waker;
pub use workers::ExternalOp;
