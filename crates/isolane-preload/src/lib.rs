//! Preload library that moves the TCP connections of unmodified programs to an isolated engine.
//!
//! It has functions of the C library's names, which programs call instead. Each looks up its descriptor in a table
//! ([`table`]); all but the program's own TCP connections continue in the C library.
//!
//! * **Adoption.** A socket that this process has connected or accepted is a candidate. When a transfer on it is due
//!   ([`policy`]), `isolane_attach::Stream` takes its descriptor, which stays the kernel's socket under its number.
//!   Transfers then read and write the rings ([`adopted`]).
//! * **Return.** Before a call that the engine cannot serve, [`table::release`] takes the connection back, sends the tail
//!   of its ring, and calls the kernel. The tail fits in the kernel's send buffer, because TCP_NOTSENT_LOWAT reserves
//!   space for it while the socket is adopted. The end of an engine is such a case as well.
//! * **Waits.** A blocking transfer sleeps on the stream's flag in shared memory, without any lock, and a signal ends it
//!   as it ends a call. `poll` and `select` replace adopted descriptors by two others ([`calls::poll`]). An epoll set has
//!   two members for all its adopted ones, whose events the library keeps ([`epoll`]).
//! * **Other processes.** A socket that another process may hold is never adopted: after a `fork`, those that existed;
//!   and those that were duplicated, sent, or inherited. A child closes the descriptors of its parent's session.
//! * **Recursion.** `isolane-attach` makes system calls itself, or through functions of this library, on descriptors that
//!   the table does not have. It starts threads with all signals blocked.
//!
//! Invariant: while a socket is adopted, no call of the program reaches its descriptor in the kernel, and in no epoll set
//! of the kernel is it a member.

#![allow(clippy::missing_safety_doc)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod adopted;
mod before;
mod buffers;
mod calls;
mod engine;
mod epoll;
mod forks;
mod gate;
mod numbers;
mod own;
mod policy;
mod process;
mod real;
mod rings;
mod sockets;
mod stats;
mod table;
mod trampoline;

/// Runs when the library is loaded.
extern "C" fn start() {
    engine::read_environment();
    policy::read_environment();
    stats::read_environment();
    gate::read_environment();
    process::watch_forks();
}

extern "C" fn finish() {
    stats::report();
}

#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;

#[unsafe(link_section = ".fini_array")]
#[used]
static FINISH: extern "C" fn() = finish;
