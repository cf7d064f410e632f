//! Bytes of a message that have arrived, as ranges.
//!
//! Invariant: the ranges are in order, disjoint, and not adjacent.

use std::ops::Range;

use smallvec::SmallVec;

/// A set of bytes of a message.
#[derive(Debug, Default)]
pub(super) struct Ranges(SmallVec<[Range<u32>; 1]>);

impl Ranges {
    /// Whether no byte of a range is in the set.
    pub(super) fn is_free(&self, new: Range<u32>) -> bool {
        let at = self.0.partition_point(|range| range.end <= new.start);
        new.is_empty() || self.0.get(at).is_none_or(|range| new.end <= range.start)
    }

    /// Adds a range, no byte of which is in the set.
    #[inline]
    pub(super) fn insert(&mut self, new: Range<u32>) {
        if new.is_empty() {
            return;
        }
        let at = self.0.partition_point(|range| range.end <= new.start);
        let next = self.0.get(at).map_or(u32::MAX, |range| range.start);
        let extends = at > 0 && self.0[at - 1].end == new.start;
        match (extends, next == new.end && at < self.0.len()) {
            (true, true) => self.0[at - 1].end = self.0.remove(at).end,
            (true, false) => self.0[at - 1].end = new.end,
            (false, true) => self.0[at].start = new.start,
            (false, false) => self.0.insert(at, new),
        }
    }

    /// Removes a range, all of which is in the set.
    pub(super) fn remove(&mut self, old: Range<u32>) {
        if old.is_empty() {
            return;
        }
        let at = self.0.partition_point(|range| range.end <= old.start);
        let Some(found) = self.0.get_mut(at) else { return };
        let (front, tail) = (found.start..old.start, old.end..found.end);
        match (front.is_empty(), tail.is_empty()) {
            (true, true) => drop(self.0.remove(at)),
            (true, false) => *found = tail,
            (false, true) => *found = front,
            (false, false) => {
                *found = front;
                self.0.insert(at + 1, tail);
            }
        }
    }

    /// Number of ranges.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_bytes(
            steps in prop::collection::vec((0_u32..40, 0_u32..12, any::<bool>()), 1..60),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for (start, len, adds) in steps {
                let (range, places) = (start..start + len, start as usize..(start + len) as usize);
                if adds {
                    let is_free = bytes[places.clone()].iter().all(|byte| !byte);
                    prop_assert_eq!(ranges.is_free(range.clone()), is_free || range.is_empty());
                    if is_free {
                        ranges.insert(range);
                        bytes[places].fill(true);
                    }
                } else if bytes[places.clone()].iter().all(|byte| *byte) {
                    ranges.remove(range);
                    bytes[places].fill(false);
                }
                let starts = (0..64).filter(|at| bytes[*at] && (*at == 0 || !bytes[at - 1]));
                let expected: Vec<Range<u32>> = starts
                    .map(|start| start as u32..(start..64).find(|at| !bytes[*at]).unwrap() as u32)
                    .collect();
                prop_assert_eq!(&ranges.0[..], &expected[..]);
            }
        }
    }
}
