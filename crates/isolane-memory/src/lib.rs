//! Memory that payload lives in: counted pages, bounded pools, what is received into and what is sent.
//!
//! * [`Page`]: 4 KiB, aligned, counted. Written only while one owner holds it, shared afterwards.
//! * [`PageTable`]: a large array of optional pages, read and swapped by any core.
//! * [`PageGuard`]: a page of a table that one core looks at for the rest of its turn.
//! * [`Buffer`]: exclusive memory of a given length that bytes are received into.
//! * [`Payload`]: a gather list of counted references that bytes are sent from.
//! * [`Pool`]: the bounded supply of pages of one core.
//!
//! This room knows no protocol, no file and no socket. Its invariant: **memory that anybody else can see is
//! never written**, so a send always finishes with the bytes it started with. Only *foreign* memory, which
//! another process maps ([`Buffer::foreign`]), may change at any time; no reference to its bytes is ever formed.

mod arena;
mod block;
mod buffer;
mod cache;
mod foreign;
mod grace;
mod guard;
mod lent;
mod meter;
mod page;
mod payload;
mod pool;
#[cfg(not(miri))]
mod region;
#[cfg(miri)]
#[path = "region_miri.rs"]
mod region;
mod run;
mod sync;
mod table;

pub use buffer::{Buffer, IoSlices, IoSlicesMut, RawParts, Slices, SlicesMut};
pub use cache::prefetch;
pub use guard::PageGuard;
pub use lent::Lent;
pub use page::{Page, PageBytes, PageList};
pub use payload::Payload;
pub use pool::{Pool, pages_for};
pub use table::PageTable;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
