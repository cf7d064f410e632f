//! Payload memory: reference-counted pages, bounded pools, receive buffers, and send payloads.
//!
//! Payload crosses every other crate: a connection receives into it, a volume keeps it, a socket sends from it,
//! and the reactor lends it to the kernel. The rules and the `unsafe` code for that are in this crate.
//!
//! * [`Page`]: 4 KiB, aligned, reference-counted. Written only while it has one owner, shared afterwards.
//! * [`PageTable`]: a large array of optional pages, read and swapped by any core.
//! * [`Buffer`]: exclusive memory of a given length to receive into.
//! * [`Payload`]: a gather list of reference-counted segments to send.
//! * [`Pool`]: the bounded page supply of one core.
//! * [`MemoryRegion`]: registered memory of verbs, which anyone can write at any time.
//!
//! Invariant: memory that anyone else can see is never written, so a send finishes with the bytes that it
//! started with. Shared memory, which another process maps ([`Buffer::in_shared_memory`]), may change at any time; no
//! reference to its bytes is ever formed.

mod arena;
mod block;
mod buffer;
mod device;
mod entry;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod guarded_copy;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[path = "unguarded_copy.rs"]
mod guarded_copy;
mod kernel_copy;
mod memory_region;
mod page;
mod payload;
mod pool;
mod pool_account;
mod prefetch;
#[cfg(not(miri))]
mod region;
#[cfg(miri)]
#[path = "region_miri.rs"]
mod region;
mod run;
mod shared;
mod sync;
mod table;
pub mod testing;

pub use buffer::Buffer;
pub use device::{DeviceMemory, DeviceStream};
pub use guarded_copy::guard_copies;
pub use memory_region::MemoryRegion;
pub use page::{Page, PageBytes, PageList};
pub use payload::{Payload, ZeroCopySend};
pub use pool::Pool;
pub use prefetch::prefetch;
pub use table::PageTable;

/// Size of a page in bytes.
pub const PAGE_SIZE: usize = 4096;

/// Number of pages for `len` bytes.
pub const fn pages_for(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE)
}
