//! The objects of a core: which there are, and which are hot.
//!
//! Invariant: an object is in the list of hot ones at most once, and knows where, so that none is searched for;
//! and a key from the kernel that is older than the object in its slot finds nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::service::{Service, Turn};

/// An object and what its core knows about it.
pub(super) struct Slot {
    pub session: u32,
    pub id: u32,
    pub service: Box<dyn Service>,
    /// When there was last something to do.
    pub worked: Instant,
    /// Its application waits to be told that it is there.
    pub is_opening: bool,
    /// Where it is in the list of hot ones, if it is.
    hot_at: Option<usize>,
    generation: u32,
    alarm: Option<Instant>,
}

/// The objects of a session, by their names.
#[derive(Default)]
struct Named {
    indices: HashMap<u32, u32>,
    /// The names mean nothing any more.
    is_over: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Objects {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    generation: u32,
    sessions: HashMap<u32, Named>,
    hot: Vec<u32>,
    alarms: BTreeMap<(Instant, u32), ()>,
}

impl Objects {
    /// Takes an object in, hot. Returns its place.
    pub fn insert(&mut self, name: (u32, u32), service: Box<dyn Service>, now: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1) & GENERATION_MASK;
        let (session, id) = name;
        self.slots[index as usize] = Some(Slot {
            session,
            id,
            service,
            worked: now,
            is_opening: false,
            hot_at: None,
            generation: self.generation,
            alarm: None,
        });
        self.sessions.entry(session).or_default().indices.insert(id, index);
        self.heat(index, now);
        index
    }

    /// Lets an object go. If it was hot, the last hot one takes its place among them.
    pub fn remove(&mut self, index: u32) -> Option<Slot> {
        let slot = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if let Some(named) = self.sessions.get_mut(&slot.session)
            && named.indices.get(&slot.id) == Some(&index)
        {
            named.indices.remove(&slot.id);
            if named.indices.is_empty() {
                self.sessions.remove(&slot.session);
            }
        }
        if let Some(alarm) = slot.alarm {
            self.alarms.remove(&(alarm, index));
        }
        if let Some(at) = slot.hot_at {
            self.unlist(at);
        }
        Some(slot)
    }

    /// Takes the `at`th of the hot ones out of their list; the last one takes its place.
    fn unlist(&mut self, at: usize) -> u32 {
        let index = self.hot.swap_remove(at);
        if let Some(moved) = self.hot.get(at).and_then(|moved| self.slots[*moved as usize].as_mut()) {
            moved.hot_at = Some(at);
        }
        index
    }

    pub fn at(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub fn find(&self, session: u32, id: u32) -> Option<u32> {
        let named = self.sessions.get(&session).filter(|named| !named.is_over)?;
        named.indices.get(&id).copied()
    }

    /// The objects of a session. Its names mean nothing any more.
    pub fn forget_session(&mut self, session: u32) -> Vec<u32> {
        let Some(named) = self.sessions.get_mut(&session) else { return Vec::new() };
        named.is_over = true;
        named.indices.values().copied().collect()
    }

    /// Ends what only waits for somebody else, and has done so for long.
    pub fn relieve(&mut self, session: u32, now: Instant) {
        let named = self.sessions.get(&session);
        let indices: Vec<u32> = named.iter().flat_map(|named| named.indices.values().copied()).collect();
        for index in indices {
            if self.at(index).is_some_and(|slot| slot.service.relieve(&Turn { now })) {
                self.heat(index, now);
            }
        }
    }

    /// All objects.
    pub fn all(&self) -> Vec<u32> {
        let slots = self.slots.iter().zip(0..);
        slots.filter(|(slot, _)| slot.is_some()).map(|(_, index)| index).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Has it looked at every turn.
    pub fn heat(&mut self, index: u32, now: Instant) {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else { return };
        slot.worked = now;
        if slot.hot_at.is_none() {
            slot.hot_at = Some(self.hot.len());
            self.hot.push(index);
        }
        if let Some(alarm) = slot.alarm.take() {
            self.alarms.remove(&(alarm, index));
        }
    }

    /// Has it looked at no more: the `at`th of the hot ones.
    pub fn cool(&mut self, at: usize) {
        let index = self.unlist(at);
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        slot.hot_at = None;
        slot.alarm = slot.service.deadline();
        if let Some(alarm) = slot.alarm {
            self.alarms.insert((alarm, index), ());
        }
    }

    /// The `at`th of the hot ones.
    pub fn hot(&mut self, at: usize) -> Option<(u32, &mut Slot)> {
        let index = *self.hot.get(at)?;
        Some((index, self.slots[index as usize].as_mut()?))
    }

    pub fn has_hot(&self) -> bool {
        !self.hot.is_empty()
    }

    /// Heats those whose time has come.
    pub fn ring_alarms(&mut self, now: Instant) {
        while let Some((&(alarm, index), ())) = self.alarms.first_key_value()
            && alarm <= now
        {
            self.heat(index, now);
        }
    }

    /// When the next one's time comes.
    pub fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first_key_value().map(|((alarm, _), ())| *alarm)
    }

    /// What the kernel is to call it.
    pub fn key(&self, index: u32) -> u64 {
        let generation = self.slots[index as usize].as_ref().map_or(0, |slot| slot.generation);
        u64::from(generation) << 32 | u64::from(index)
    }

    /// Which one the kernel means, if it is still there.
    pub fn by_key(&mut self, key: u64) -> Option<(u32, &mut Slot)> {
        let index = key as u32;
        let slot = self.at(index)?;
        (u64::from(slot.generation) == key >> 32).then_some((index, slot))
    }
}

/// The upper bits of a key are its kind's.
const GENERATION_MASK: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use isolane_ring::Flag;
    use proptest::prelude::*;

    use super::*;
    use crate::service::{Ending, Hostile, Looked, Ready, Turn};

    struct Idle(Flag, Option<Instant>);

    impl Service for Idle {
        fn look(&mut self, _: &Turn) -> Result<Looked, Hostile> {
            Ok(Looked::Nothing)
        }
        fn on_ready(&mut self, _: Ready) {}
        fn on_end(&mut self, _: Ending) {}
        fn told(&self) -> &Flag {
            &self.0
        }
        fn deadline(&self) -> Option<Instant> {
            self.1
        }
    }

    fn idle(deadline: Option<Instant>) -> Box<dyn Service> {
        Box::new(Idle(Flag::new(), deadline))
    }

    #[test]
    fn a_key_of_an_object_that_is_gone_finds_nothing() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        let index = objects.insert((1, 7), idle(None), now);
        let key = objects.key(index);
        assert!(objects.by_key(key).is_some());
        objects.remove(index).unwrap();
        assert_eq!(objects.insert((1, 8), idle(None), now), index, "the slot is used again");
        assert!(objects.by_key(key).is_none());
        assert_eq!((objects.find(1, 7), objects.find(1, 8)), (None, Some(index)));
    }

    #[test]
    fn a_cold_object_becomes_hot_when_its_time_comes() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        objects.insert((1, 1), idle(Some(later)), now);
        objects.insert((1, 2), idle(None), now);
        objects.cool(0);
        objects.cool(0);
        assert_eq!((objects.has_hot(), objects.next_alarm()), (false, Some(later)));
        objects.ring_alarms(now);
        assert!(!objects.has_hot());
        objects.ring_alarms(later);
        assert_eq!((objects.hot(0).unwrap().1.id, objects.next_alarm()), (1, None));
    }

    proptest! {
        #[test]
        fn the_hot_are_those_that_were_heated_and_neither_cooled_nor_removed(
            steps in prop::collection::vec((0usize..3, 0usize..8), 0..200),
        ) {
            let (mut objects, now) = (Objects::default(), Instant::now());
            let all: Vec<u32> = (0..8).map(|id| objects.insert((1, id), idle(None), now)).collect();
            let mut hot: BTreeSet<u32> = all.iter().copied().collect();
            let mut gone = BTreeSet::new();
            for (what, which) in steps {
                match what {
                    0 if !gone.contains(&all[which]) => {
                        objects.heat(all[which], now);
                        hot.insert(all[which]);
                    }
                    1 => {
                        if let Some(index) = objects.hot(which).map(|(index, _)| index) {
                            objects.cool(which);
                            hot.remove(&index);
                        }
                    }
                    2 => {
                        prop_assert_eq!(objects.remove(all[which]).is_some(), gone.insert(all[which]));
                        hot.remove(&all[which]);
                    }
                    _ => {}
                }
                let mut listed = Vec::new();
                while let Some((index, _)) = objects.hot(listed.len()) {
                    listed.push(index);
                }
                listed.sort_unstable();
                prop_assert_eq!(listed, hot.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn hot_is_hot_once_and_forgotten_with_its_session() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        let index = objects.insert((1, 1), idle(None), now);
        objects.insert((2, 1), idle(None), now);
        objects.heat(index, now);
        assert_eq!(objects.forget_session(1), [index]);
        assert_eq!((objects.find(1, 1), objects.find(2, 1).is_some()), (None, true));
        objects.remove(index);
        assert_eq!(objects.hot(0).unwrap().1.session, 2);
        assert!(objects.hot(1).is_none());
    }
}
