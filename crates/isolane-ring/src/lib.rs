//! The room that two processes share: rings of bytes and of entries, bells that wake, memory for payload.
//!
//! * [`Memory`]: a sealed memfd, mapped; everything in it is named by its offset.
//! * [`index`]: who may write and who may read how much of a ring: the protocol of its two indices.
//! * [`bytes`]: streams of bytes.
//! * [`entries`]: commands and completions of 64 bytes, copied out before anybody looks at them.
//! * [`Bell`]: spin, arm, look again, sleep; who publishes rings only if somebody has armed it.
//! * [`adopted`]: bytes between a ring and a kernel's socket that somebody else has, too.
//! * [`Peer`]: who is at the other end of a Unix socket.
//! * [`process_id`]: an identity of this process that a fork does not inherit.
//! * [`start_with_default_signals`]: the signal state of a program that this process starts.
//! * [`Arena`]: which pages of the memory its owner has given to what.
//!
//! It knows no protocol; of the network only what `adopted` needs, because bytes go between pieces of a ring and
//! the kernel there, and nowhere else may anybody have their addresses. Its invariants: **the other side is not trusted**, so that each
//! side works with its own index, capacity and mask, and an index of the other that cannot be is an error,
//! [`Impossible`], after which the other side is left; and **no reference to the bytes of shared memory is
//! ever formed**, because they may change at any time.

pub mod adopted;
mod arena;
mod bell;
pub mod bytes;
pub mod entries;
pub mod index;
mod memory;
pub mod mock;
mod peer;
mod process;
mod signals;
mod sync;

pub use arena::{Arena, Span};
pub use bell::{Bell, Flag, refuse_gifts, timespec};
pub use index::Impossible;
pub use memory::{Memory, MemoryError, Piece, Shared};
pub use peer::{Peer, Process};
pub use process::process_id;
pub use signals::start_with_default_signals;

/// Bytes of a page: what offsets and lengths of rings are multiples of.
pub const PAGE_SIZE: usize = 4096;
