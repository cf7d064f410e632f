//! Keys of the lanes, operations, and flushes of a core.
//!
//! Invariant: a [`SlabKey`] of a removed entry finds nothing, even if its slot is in use again. So a late
//! message or completion never reaches the wrong connection.

pub(crate) use slotmap::DefaultKey as SlabKey;

/// Entries in reused slots.
pub(crate) type Slab<T> = slotmap::SlotMap<SlabKey, T>;

/// Identifies a lane on all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneId {
    pub core: usize,
    pub lane: SlabKey,
}
