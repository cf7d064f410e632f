//! Classes of lanes, which separate requests that must not wait for each other (H2).
//!
//! A small read that follows a 1 MiB write on its connection waits for that MiB; on a separate lane it does
//! not. Lanes are indexed over all classes: default, then read, then poll.
//!
//! Invariant: a request is on a lane of its class or, if that class has no lanes, of the class that replaces
//! it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A class of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LaneClass {
    /// Writes, and all requests that no other class serves.
    #[default]
    Default,
    /// Reads. Without lanes, the default class serves them.
    Read,
    /// Requests that name it: few, small, and urgent ones. Without lanes, they go to the read or default
    /// class.
    Poll,
}

/// Number of lanes of each class.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LaneCounts {
    /// Lanes of the default class, at least one.
    pub default: usize,
    /// Lanes of the read class.
    pub read: usize,
    /// Lanes of the poll class.
    pub poll: usize,
}

impl LaneCounts {
    /// Total number of lanes.
    pub fn total(&self) -> usize {
        self.default.saturating_add(self.read).saturating_add(self.poll)
    }

    /// Number of lanes of a class.
    pub fn count(&self, class: LaneClass) -> usize {
        match class {
            LaneClass::Default => self.default,
            LaneClass::Read => self.read,
            LaneClass::Poll => self.poll,
        }
    }

    pub(crate) fn count_mut(&mut self, class: LaneClass) -> &mut usize {
        match class {
            LaneClass::Default => &mut self.default,
            LaneClass::Read => &mut self.read,
            LaneClass::Poll => &mut self.poll,
        }
    }

    /// Returns the class that serves requests of `class`: the class itself, or the one that replaces it.
    #[inline]
    pub fn serving(&self, class: LaneClass, is_read: bool) -> LaneClass {
        match class {
            LaneClass::Poll if self.poll > 0 => LaneClass::Poll,
            LaneClass::Read | LaneClass::Poll if is_read && self.read > 0 => LaneClass::Read,
            _ => LaneClass::Default,
        }
    }

    /// Distributes the lanes of each class over several cores, from the first core upward. Cores without
    /// lanes are omitted.
    pub(crate) fn split_across(self, cores: usize) -> impl Iterator<Item = LaneCounts> {
        let of = move |count: usize, core: usize| count / cores + usize::from(core < count % cores);
        let on = move |core| LaneCounts {
            default: of(self.default, core),
            read: of(self.read, core),
            poll: of(self.poll, core),
        };
        (0..cores).map(on).take_while(|classes| classes.total() > 0)
    }

    /// Reduces the lanes to `shrink_to` of them: the poll class shrinks first, then the read class. Returns
    /// `None` if the default class does not fit, or if there is no default class and any class would shrink.
    pub(crate) fn shrink_to(self, granted: usize) -> Option<LaneCounts> {
        if self.default == 0 && granted < self.total() {
            return None;
        }
        let remaining = granted.checked_sub(self.default)?;
        let read = self.read.min(remaining);
        Some(LaneCounts { default: self.default, read, poll: self.poll.min(remaining - read) })
    }

    /// Returns the index of a class's first lane.
    fn first(&self, class: LaneClass) -> usize {
        match class {
            LaneClass::Default => 0,
            LaneClass::Read => self.default,
            LaneClass::Poll => self.default + self.read,
        }
    }

    /// Returns the index of lane `lane` of a class.
    #[inline]
    pub(crate) fn place(&self, class: LaneClass, lane: usize) -> Option<usize> {
        (lane < self.count(class)).then(|| self.first(class) + lane)
    }

    /// Returns the lane that replaces lane `lane` of `before`: of the same class if it still has lanes,
    /// otherwise of the class that replaces it.
    pub(crate) fn remap(&self, before: &LaneCounts, lane: usize, is_read: bool) -> usize {
        let class = before.class_of(lane);
        let serving = self.serving(class, is_read);
        self.first(serving) + (lane - before.first(class)) % self.count(serving)
    }

    /// Returns the class of a lane and its locate there.
    pub(crate) fn locate(&self, lane: usize) -> (LaneClass, usize) {
        let class = self.class_of(lane);
        (class, lane - self.first(class))
    }

    /// Returns the class of a lane.
    pub fn class_of(&self, lane: usize) -> LaneClass {
        match lane {
            lane if lane < self.default => LaneClass::Default,
            lane if lane < self.default + self.read => LaneClass::Read,
            _ => LaneClass::Poll,
        }
    }
}

impl fmt::Display for LaneClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            LaneClass::Default => "default",
            LaneClass::Read => "read",
            LaneClass::Poll => "poll",
        })
    }
}

impl fmt::Display for LaneCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} default, {} read, {} poll", self.default, self.read, self.poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: LaneCounts = LaneCounts { default: 2, read: 3, poll: 1 };

    #[test]
    fn indexes_lanes_over_all_classes() {
        let places = |class| (0..4).map(|lane| CLASSES.place(class, lane)).collect::<Vec<_>>();
        assert_eq!(places(LaneClass::Default), [Some(0), Some(1), None, None]);
        assert_eq!(places(LaneClass::Read), [Some(2), Some(3), Some(4), None]);
        assert_eq!(places(LaneClass::Poll), [Some(5), None, None, None]);
        let classes: Vec<_> = (0..CLASSES.total()).map(|lane| CLASSES.class_of(lane)).collect();
        assert_eq!(classes[..3], [LaneClass::Default, LaneClass::Default, LaneClass::Read]);
        assert_eq!(classes[3..], [LaneClass::Read, LaneClass::Read, LaneClass::Poll]);
    }

    #[test]
    fn default_class_replaces_missing_class() {
        let no_poll = LaneCounts { poll: 0, ..CLASSES };
        assert_eq!((no_poll.serving(LaneClass::Poll, true), no_poll.serving(LaneClass::Poll, false)), {
            (LaneClass::Read, LaneClass::Default)
        });
        let shared = LaneCounts { default: 1, read: 0, poll: 0 };
        for class in [LaneClass::Default, LaneClass::Read, LaneClass::Poll] {
            assert_eq!(shared.serving(class, true), LaneClass::Default);
        }
        assert_eq!(CLASSES.serving(LaneClass::Poll, false), LaneClass::Poll);
    }

    #[test]
    fn poll_shrinks_first_and_default_never() {
        let shrink_to = |count| CLASSES.shrink_to(count).map(|classes| (classes.read, classes.poll));
        assert_eq!([6, 5, 3, 2].map(shrink_to), [Some((3, 1)), Some((3, 0)), Some((1, 0)), Some((0, 0))]);
        assert_eq!(shrink_to(1), None);
    }

    #[test]
    fn splits_each_class_from_first_core() {
        let split_across = |classes: LaneCounts, cores| {
            classes.split_across(cores).map(|classes| (classes.default, classes.read, classes.poll))
        };
        assert_eq!(split_across(CLASSES, 2).collect::<Vec<_>>(), [(1, 2, 1), (1, 1, 0)]);
        assert_eq!(split_across(CLASSES, 1).collect::<Vec<_>>(), [(2, 3, 1)]);
        assert_eq!(
            split_across(CLASSES, 8).collect::<Vec<_>>(),
            [(1, 1, 1), (1, 1, 0), (0, 1, 0)],
            "no core without a lane"
        );
    }

    #[test]
    fn without_a_default_class_nothing_shrinks() {
        let reads = LaneCounts { default: 0, read: 2, poll: 1 };
        assert_eq!((reads.shrink_to(2), reads.shrink_to(3)), (None, Some(reads)));
    }

    #[test]
    fn remaps_missing_lane_within_its_class() {
        let shrunk = LaneCounts { default: 2, read: 1, poll: 0 };
        let remap: Vec<_> = (0..6).map(|lane| shrunk.remap(&CLASSES, lane, lane >= 2)).collect();
        assert_eq!(remap, [0, 1, 2, 2, 2, 2]);
        assert_eq!(shrunk.remap(&CLASSES, 5, false), 0, "a write in the poll class");
    }
}
