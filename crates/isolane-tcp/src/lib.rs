//! System calls on TCP sockets.
//!
//! [`socket`] and [`SocketOptions`] serve sockets of one process: transfers to and from lists of slices, and the options
//! that a user may set.
//!
//! All other functions, except for the lengths in [`iovec`], serve a socket that another process also holds. The
//! engine moves bytes between such a socket and a ring ([`peek_into`], [`send_from`]); engine and application read its
//! counters ([`counters`]). The file flags of the socket belong to every process that holds it. None of these calls
//! waits for the peer, whatever `O_NONBLOCK` is set to ([`peek_into`] and [`send_from`] pass `MSG_DONTWAIT`), and none
//! raises SIGPIPE. Calls do wait for the socket's lock while another process is inside a call. Peeked data stays in
//! the kernel until [`discard`]. The caller decides about the order of calls and about publishing.
//!
//! Invariant: the bytes of a ring are passed to the kernel by address, never by reference.

pub mod iovec;
mod options;
pub mod socket;
mod state;
#[cfg(test)]
mod tests;
mod transfer;

pub use options::{OptionSyntaxError, SocketOptionError, SocketOptions};
pub use state::{
    TcpCounters, TcpState, all_acked, counters, has_error_queue, has_ulp, receive_low_water, unread_bytes,
};
pub use transfer::{PeekResult, SendResult, discard, peek_into, peek_offset, send_from, set_peek_offset};
