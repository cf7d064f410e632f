//! Classes of lanes: which requests share a byte stream, and which never wait for each other in one.
//!
//! A small read that follows a 1 MiB write on its connection waits for that MiB. On lanes of its own it does
//! not (H2). Lanes are numbered through: the default class first, then read, then poll. Not here: what a lane
//! is and how it moves bytes. Invariant: a request is on a lane of its class, or, if that class has none, on
//! one of the class that stands in for it.

use std::fmt;

use crate::request::Request;

/// A class of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Writes, and everything that no other class is for.
    #[default]
    Default,
    /// Reads, if it has lanes; else they go with the others.
    Read,
    /// Requests that ask for it: few, small and urgent ones. If it has no lanes they go where they would have
    /// gone.
    Poll,
}

/// How many lanes each class has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Of the default class; one at least.
    pub default: usize,
    /// Of the read class.
    pub read: usize,
    /// Of the poll class.
    pub poll: usize,
}

impl Classes {
    /// Lanes altogether.
    pub fn total(&self) -> usize {
        self.default.saturating_add(self.read).saturating_add(self.poll)
    }

    /// Lanes of one class.
    pub fn count(&self, class: Class) -> usize {
        match class {
            Class::Default => self.default,
            Class::Read => self.read,
            Class::Poll => self.poll,
        }
    }

    pub(crate) fn count_mut(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Default => &mut self.default,
            Class::Read => &mut self.read,
            Class::Poll => &mut self.poll,
        }
    }

    /// The class that serves requests that ask for `class`: itself, or what stands in for it.
    #[inline]
    pub fn serving(&self, class: Class, is_read: bool) -> Class {
        match class {
            Class::Poll if self.poll > 0 => Class::Poll,
            Class::Read | Class::Poll if is_read && self.read > 0 => Class::Read,
            _ => Class::Default,
        }
    }

    /// What each of several cores has of these lanes: every class is dealt out on its own, from the first
    /// core upward. Cores without any are left out.
    pub(crate) fn dealt(self, cores: usize) -> impl Iterator<Item = Classes> {
        let of = move |count: usize, core: usize| count / cores + usize::from(core < count % cores);
        let on = move |core| Classes {
            default: of(self.default, core),
            read: of(self.read, core),
            poll: of(self.poll, core),
        };
        (0..cores).map(on).take_while(|classes| classes.total() > 0)
    }

    /// What is left of a wish when the controller grants only `granted` lanes: the poll class shrinks first,
    /// then the read class. The default class does not: none, if it does not fit. Nor does anything where
    /// there is no default class to stand in.
    pub(crate) fn granted(self, granted: usize) -> Option<Classes> {
        if self.default == 0 && granted < self.total() {
            return None;
        }
        let rest = granted.checked_sub(self.default)?;
        let read = self.read.min(rest);
        Some(Classes { default: self.default, read, poll: self.poll.min(rest - read) })
    }

    /// The number of a class's first lane.
    fn first(&self, class: Class) -> usize {
        match class {
            Class::Default => 0,
            Class::Read => self.default,
            Class::Poll => self.default + self.read,
        }
    }

    /// The number of a class's lane `lane`; none if it has no such lane.
    #[inline]
    pub(crate) fn place(&self, class: Class, lane: usize) -> Option<usize> {
        (lane < self.count(class)).then(|| self.first(class) + lane)
    }

    /// Where the lane `lane` of `before` went: to the same class if that still has lanes, else to what stands
    /// in for it.
    pub(crate) fn moved(&self, before: &Classes, lane: usize, is_read: bool) -> usize {
        let class = before.class_of(lane);
        let serving = self.serving(class, is_read);
        self.first(serving) + (lane - before.first(class)) % self.count(serving)
    }

    /// The class of a lane and its number there.
    pub(crate) fn position(&self, lane: usize) -> (Class, usize) {
        let class = self.class_of(lane);
        (class, lane - self.first(class))
    }

    /// The class of a lane.
    pub fn class_of(&self, lane: usize) -> Class {
        match lane {
            lane if lane < self.default => Class::Default,
            lane if lane < self.default + self.read => Class::Read,
            _ => Class::Poll,
        }
    }
}

impl Class {
    /// The class that a request goes to without a wish of its own.
    #[inline]
    pub(crate) fn of(request: &Request) -> Class {
        if request.is_read() { Class::Read } else { Class::Default }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Class::Default => "default",
            Class::Read => "read",
            Class::Poll => "poll",
        })
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} default, {} read, {} poll", self.default, self.read, self.poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: Classes = Classes { default: 2, read: 3, poll: 1 };

    #[test]
    fn lanes_are_numbered_through() {
        let places = |class| (0..4).map(|lane| CLASSES.place(class, lane)).collect::<Vec<_>>();
        assert_eq!(places(Class::Default), [Some(0), Some(1), None, None]);
        assert_eq!(places(Class::Read), [Some(2), Some(3), Some(4), None]);
        assert_eq!(places(Class::Poll), [Some(5), None, None, None]);
        let classes: Vec<_> = (0..CLASSES.total()).map(|lane| CLASSES.class_of(lane)).collect();
        assert_eq!(classes[..3], [Class::Default, Class::Default, Class::Read]);
        assert_eq!(classes[3..], [Class::Read, Class::Read, Class::Poll]);
    }

    #[test]
    fn a_class_without_lanes_has_one_that_stands_in() {
        let no_poll = Classes { poll: 0, ..CLASSES };
        assert_eq!((no_poll.serving(Class::Poll, true), no_poll.serving(Class::Poll, false)), {
            (Class::Read, Class::Default)
        });
        let shared = Classes { default: 1, read: 0, poll: 0 };
        for class in [Class::Default, Class::Read, Class::Poll] {
            assert_eq!(shared.serving(class, true), Class::Default);
        }
        assert_eq!(CLASSES.serving(Class::Poll, false), Class::Poll);
    }

    #[test]
    fn what_is_not_granted_is_taken_from_poll_then_from_read_and_never_from_default() {
        let granted = |count| CLASSES.granted(count).map(|classes| (classes.read, classes.poll));
        assert_eq!([6, 5, 3, 2].map(granted), [Some((3, 1)), Some((3, 0)), Some((1, 0)), Some((0, 0))]);
        assert_eq!(granted(1), None);
    }

    #[test]
    fn every_class_is_dealt_out_from_the_first_core_upward() {
        let dealt = |classes: Classes, cores| {
            classes.dealt(cores).map(|classes| (classes.default, classes.read, classes.poll))
        };
        assert_eq!(dealt(CLASSES, 2).collect::<Vec<_>>(), [(1, 2, 1), (1, 1, 0)]);
        assert_eq!(dealt(CLASSES, 1).collect::<Vec<_>>(), [(2, 3, 1)]);
        assert_eq!(
            dealt(CLASSES, 8).collect::<Vec<_>>(),
            [(1, 1, 1), (1, 1, 0), (0, 1, 0)],
            "no core without a lane"
        );
    }

    #[test]
    fn without_a_default_class_nothing_shrinks() {
        let reads = Classes { default: 0, read: 2, poll: 1 };
        assert_eq!((reads.granted(2), reads.granted(3)), (None, Some(reads)));
    }

    #[test]
    fn a_lane_that_is_gone_is_followed_by_one_of_its_class_or_by_what_stands_in() {
        let shrunk = Classes { default: 2, read: 1, poll: 0 };
        let moved: Vec<_> = (0..6).map(|lane| shrunk.moved(&CLASSES, lane, lane >= 2)).collect();
        assert_eq!(moved, [0, 1, 2, 2, 2, 2]);
        assert_eq!(shrunk.moved(&CLASSES, 5, false), 0, "a write in the poll class");
    }
}
