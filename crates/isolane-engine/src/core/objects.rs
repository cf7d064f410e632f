//! Objects of a core, and the list of active ones.
//!
//! Invariant: an active object is listed once and knows its position, so that nothing is searched; the epoll key
//! of a removed object matches no later object in its slot.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::object::{MAX_SOURCES, PolledObject, Turn};

/// Object, with its state on the core.
pub(super) struct Slot {
    pub session: u32,
    pub id: u32,
    pub object: Box<dyn PolledObject>,
    /// Time of the last work.
    pub worked: Instant,
    /// The application waits until the object is open.
    pub opening: bool,
    /// Position in the list of active objects.
    active_at: Option<usize>,
    generation: u32,
    timer: Option<Instant>,
}

/// Objects of a session, by ID.
#[derive(Default)]
struct SessionObjects {
    indices: HashMap<u32, u32>,
    /// The session has ended, and its IDs are void.
    ended: bool,
}

/// Objects of a core.
#[derive(Default)]
pub(super) struct ObjectTable {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    generation: u32,
    sessions: HashMap<u32, SessionObjects>,
    active: Vec<u32>,
    timers: BTreeMap<(Instant, u32), ()>,
}

impl ObjectTable {
    /// Adds an active object with the name (session, ID). Returns its index.
    pub fn insert(&mut self, (session, id): (u32, u32), object: Box<dyn PolledObject>, now: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1) & GENERATION_MASK;
        self.slots[index as usize] = Some(Slot {
            session,
            id,
            object,
            worked: now,
            opening: false,
            active_at: None,
            generation: self.generation,
            timer: None,
        });
        self.sessions.entry(session).or_default().indices.insert(id, index);
        self.activate(index, now);
        index
    }

    /// Removes an object. If it was active, the last active object takes its position.
    pub fn remove(&mut self, index: u32) -> Option<Slot> {
        let slot = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if let Some(objects) = self.sessions.get_mut(&slot.session)
            && objects.indices.get(&slot.id) == Some(&index)
        {
            objects.indices.remove(&slot.id);
            if objects.indices.is_empty() {
                self.sessions.remove(&slot.session);
            }
        }
        if let Some(timer) = slot.timer {
            self.timers.remove(&(timer, index));
        }
        if let Some(at) = slot.active_at {
            self.swap_remove_active(at);
        }
        Some(slot)
    }

    fn swap_remove_active(&mut self, at: usize) -> u32 {
        let index = self.active.swap_remove(at);
        if let Some(moved) = self.active.get(at).and_then(|moved| self.slots[*moved as usize].as_mut()) {
            moved.active_at = Some(at);
        }
        index
    }

    pub fn at(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub fn find(&self, session: u32, id: u32) -> Option<u32> {
        let objects = self.sessions.get(&session).filter(|objects| !objects.ended)?;
        objects.indices.get(&id).copied()
    }

    /// Marks a session as ended. Returns its objects.
    pub fn remove_session(&mut self, session: u32) -> Vec<u32> {
        let Some(objects) = self.sessions.get_mut(&session) else { return Vec::new() };
        objects.ended = true;
        objects.indices.values().copied().collect()
    }

    /// Abandons stalled closed objects of a session.
    pub fn relieve(&mut self, session: u32, now: Instant) {
        let objects = self.sessions.get(&session);
        let indices: Vec<u32> = objects.iter().flat_map(|it| it.indices.values().copied()).collect();
        for index in indices {
            if self.at(index).is_some_and(|slot| slot.object.relieve(&Turn { now })) {
                self.activate(index, now);
            }
        }
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<u32> {
        let slots = self.slots.iter().zip(0..);
        slots.filter(|(slot, _)| slot.is_some()).map(|(_, index)| index).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Makes an object active.
    pub fn activate(&mut self, index: u32, now: Instant) {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else { return };
        slot.worked = now;
        if slot.active_at.is_none() {
            slot.active_at = Some(self.active.len());
            self.active.push(index);
        }
        if let Some(timer) = slot.timer.take() {
            self.timers.remove(&(timer, index));
        }
    }

    /// Makes the active object at a position idle.
    pub fn deactivate(&mut self, at: usize) {
        let index = self.swap_remove_active(at);
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        slot.active_at = None;
        slot.timer = slot.object.deadline();
        if let Some(timer) = slot.timer {
            self.timers.insert((timer, index), ());
        }
    }

    /// Returns the active object at a position.
    pub fn active(&mut self, at: usize) -> Option<(u32, &mut Slot)> {
        let index = *self.active.get(at)?;
        Some((index, self.slots[index as usize].as_mut()?))
    }

    pub fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Activates objects whose deadline has passed.
    pub fn fire_timers(&mut self, now: Instant) {
        while let Some((&(timer, index), ())) = self.timers.first_key_value()
            && timer <= now
        {
            self.activate(index, now);
        }
    }

    /// Returns the earliest deadline of an idle object.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((timer, _), ())| *timer)
    }

    /// Returns the object with an epoll key, if it still exists, and the index of the source.
    pub fn by_key(&mut self, key: u64) -> Option<(u32, usize, &mut Slot)> {
        let (index, source) = (key as u32, (key >> SOURCE_SHIFT) as usize);
        let slot = self.at(index)?;
        (slot.generation == (key >> 32) as u32 & GENERATION_MASK).then_some((index, source, slot))
    }
}

impl Slot {
    /// Epoll key of a source of the object, which is at `index`.
    pub fn key(&self, index: u32, source: usize) -> u64 {
        (source as u64) << SOURCE_SHIFT | u64::from(self.generation) << 32 | u64::from(index)
    }

    /// Sources of the object, with their epoll keys.
    pub fn sources(&self, index: u32) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let source = move |source| Some((self.key(index, source), self.object.source(source)?));
        (0..MAX_SOURCES).map_while(source)
    }
}

/// A key has 32 bits of the slot, 24 of the generation, and 5 of the source; the others are for other owners.
const GENERATION_MASK: u32 = (1 << 24) - 1;
const SOURCE_SHIFT: u32 = 56;
const _: () = assert!(MAX_SOURCES == 1 << 5);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use isolane_shm::WakeFlag;
    use proptest::prelude::*;

    use super::*;
    use crate::object::{CloseReason, PollStatus, ProtocolViolation, Ready, Turn};

    struct Idle(WakeFlag, Option<Instant>);

    impl PolledObject for Idle {
        fn poll(&mut self, _: &Turn) -> Result<PollStatus, ProtocolViolation> {
            Ok(PollStatus::Idle)
        }
        fn on_ready(&mut self, _: usize, _: Ready) {}
        fn on_close(&mut self, _: CloseReason) {}
        fn need_wakeup(&self) -> &WakeFlag {
            &self.0
        }
        fn deadline(&self) -> Option<Instant> {
            self.1
        }
    }

    fn idle(deadline: Option<Instant>) -> Box<dyn PolledObject> {
        Box::new(Idle(WakeFlag::new(), deadline))
    }

    #[test]
    fn key_of_removed_object_finds_nothing() {
        let (mut objects, now) = (ObjectTable::default(), Instant::now());
        let index = objects.insert((1, 7), idle(None), now);
        let key = objects.at(index).unwrap().key(index, MAX_SOURCES - 1);
        assert!(objects.by_key(key).is_some_and(|(_, source, _)| source == MAX_SOURCES - 1));
        objects.remove(index).unwrap();
        assert_eq!(objects.insert((1, 8), idle(None), now), index, "the slot is reused");
        assert!(objects.by_key(key).is_none());
        assert_eq!((objects.find(1, 7), objects.find(1, 8)), (None, Some(index)));
    }

    #[test]
    fn activates_idle_object_at_its_deadline() {
        let (mut objects, now) = (ObjectTable::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        objects.insert((1, 1), idle(Some(later)), now);
        objects.insert((1, 2), idle(None), now);
        objects.deactivate(0);
        objects.deactivate(0);
        assert_eq!((objects.has_active(), objects.next_timer()), (false, Some(later)));
        objects.fire_timers(now);
        assert!(!objects.has_active());
        objects.fire_timers(later);
        assert_eq!((objects.active(0).unwrap().1.id, objects.next_timer()), (1, None));
    }

    proptest! {
        #[test]
        fn active_list_matches_model(
            steps in prop::collection::vec((0usize..3, 0usize..8), 0..200),
        ) {
            let (mut objects, now) = (ObjectTable::default(), Instant::now());
            let all: Vec<u32> = (0..8).map(|id| objects.insert((1, id), idle(None), now)).collect();
            let mut active: BTreeSet<u32> = all.iter().copied().collect();
            let mut removed = BTreeSet::new();
            for (what, which) in steps {
                match what {
                    0 if !removed.contains(&all[which]) => {
                        objects.activate(all[which], now);
                        active.insert(all[which]);
                    }
                    1 => {
                        if let Some(index) = objects.active(which).map(|(index, _)| index) {
                            objects.deactivate(which);
                            active.remove(&index);
                        }
                    }
                    2 => {
                        prop_assert_eq!(objects.remove(all[which]).is_some(), removed.insert(all[which]));
                        active.remove(&all[which]);
                    }
                    _ => {}
                }
                let mut listed = Vec::new();
                while let Some((index, _)) = objects.active(listed.len()) {
                    listed.push(index);
                }
                listed.sort_unstable();
                prop_assert_eq!(listed, active.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn activates_once_and_ends_with_session() {
        let (mut objects, now) = (ObjectTable::default(), Instant::now());
        let index = objects.insert((1, 1), idle(None), now);
        objects.insert((2, 1), idle(None), now);
        objects.activate(index, now);
        assert_eq!(objects.remove_session(1), [index]);
        assert_eq!((objects.find(1, 1), objects.find(2, 1).is_some()), (None, true));
        objects.remove(index);
        assert_eq!(objects.active(0).unwrap().1.session, 2);
        assert!(objects.active(1).is_none());
    }
}
