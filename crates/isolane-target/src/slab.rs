//! Slab with generations: keys of the lanes and commands of a core.
//!
//! Invariant: a [`SlabKey`] of a removed entry finds nothing, even if its slot is in use again. So a late
//! message or completion never reaches the wrong connection.

/// Key of an entry of a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlabKey {
    slot: u32,
    generation: u32,
}

impl SlabKey {
    /// Packs the key into a token for other crates.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Unpacks a token of [`SlabKey::to_u64`].
    pub(crate) fn from_u64(raw: u64) -> SlabKey {
        SlabKey { slot: raw as u32, generation: (raw >> 32) as u32 }
    }
}

/// Identifies a lane on all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneId {
    pub core: usize,
    pub lane: SlabKey,
}

/// Entries in reused slots.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, entry: T) -> SlabKey {
        self.insert_with(|_| entry)
    }

    /// Inserts an entry that contains its own key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(SlabKey) -> T) -> SlabKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        let key = SlabKey { slot, generation: place.generation };
        place.entry = Some(make(key));
        key
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let slot = self.slots.get(key.slot as usize)?;
        (slot.generation == key.generation).then_some(slot.entry.as_ref()).flatten()
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        (slot.generation == key.generation).then_some(slot.entry.as_mut()).flatten()
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let slot = self.slots.get_mut(key.slot as usize).filter(|slot| slot.generation == key.generation)?;
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(entry)
    }

    /// Iterates over the keys of all entries.
    pub(crate) fn keys(&self) -> impl Iterator<Item = SlabKey> + '_ {
        let occupied = self.slots.iter().enumerate().filter(|(_, slot)| slot.entry.is_some());
        occupied.map(|(index, slot)| SlabKey { slot: index as u32, generation: slot.generation })
    }

    /// Iterates over all entries, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> + '_ {
        self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut())
    }

    /// Iterates over all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + '_ {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing() {
        let mut table = Slab::default();
        let old = table.insert("old");
        assert_eq!(table.remove(old), Some("old"));
        let new = table.insert("new");
        assert!(table.get(old).is_none() && table.get_mut(old).is_none());
        assert_eq!(table.remove(old), None);
        assert_eq!((table.get(new), table.len()), (Some(&"new"), 1));
    }

    #[test]
    fn key_round_trips_through_token() {
        let mut table = Slab::default();
        let first = table.insert(0);
        table.remove(first);
        let key = table.insert(1);
        assert_eq!(SlabKey::from_u64(key.to_u64()), key);
        assert_eq!(table.keys().collect::<Vec<_>>(), [key]);
    }
}
