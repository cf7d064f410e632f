//! Shared-memory rings, wakeups, and payload memory for two processes that do not trust each other.
//!
//! `isolane-attach` (the application side) and `isolane-engine` communicate through this crate.
//!
//! * [`SharedMemory`]: a sealed, mapped memfd, addressed by offset.
//! * [`index`]: the protocol of a ring's two indices.
//! * [`bytes`]: byte rings.
//! * [`entries`]: rings of 64-byte entries, copied out before they are decoded.
//! * [`WakeFlag`], [`Bell`]: wakeups across processes, sent only to a side that is about to sleep.
//! * [`PeerCred`], [`PeerProcess`]: the process at the other end of a Unix socket.
//! * [`process_id`]: an identity of this process that a fork does not inherit.
//! * [`is_privileged`]: whether another user may have chosen the environment.
//! * [`sockopt`]: socket options that rustix does not wrap.
//! * [`start_with_default_signals`]: the signal state of programs that this process starts.
//! * [`with_signals_blocked`]: starts threads that handle no signal.
//! * [`Arena`]: the page allocator of the memory's owner.
//!
//! Invariants:
//! * Each side uses its own index, capacity, and mask. An out-of-range index from the peer is the error
//!   [`InvalidIndex`], after which the peer is abandoned.
//! * No reference to the bytes of shared memory is ever formed, because they may change at any time.

mod arena;
mod bell;
pub mod bytes;
pub mod entries;
pub mod index;
mod memory;
mod peer;
mod process;
mod seccomp;
mod signals;
pub mod sockopt;
mod sync;
pub mod testing;

pub use arena::{Arena, Span};
pub use bell::{Bell, SCM_MAX_FD, WakeFlag, forbid_fd_passing, received_fds, timespec};
pub use index::InvalidIndex;
pub use memory::{MemoryError, RawSlice, SharedMemory, ShmRef};
pub use peer::{PeerCred, PeerProcess};
pub use process::{is_privileged, process_id};
pub use seccomp::{deny_io_uring, seccomp_filters};
pub use signals::{start_with_default_signals, with_only_faults_unblocked, with_signals_blocked};

/// Size of a page in bytes; offsets and lengths of rings are multiples of it.
pub const PAGE_SIZE: usize = 4096;
