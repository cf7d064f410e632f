//! Which lane an operation goes to.
//!
//! Either each operation has a lane of its own in each class that may serve it, or, with `--spread`, each
//! goes to the next lane of its class.

use isolane_host::{Class, Classes, Client, Request};

use super::plan::{Direction, Kind};

/// The way of a stream's operations onto the lanes.
pub struct Lanes {
    class: Option<Class>,
    /// Lanes that serve reads and lanes that serve writes.
    counts: [usize; 2],
    /// With `--spread`: the next of each.
    next: Option<[usize; 2]>,
}

impl Lanes {
    /// `class` is what all operations ask for; none: reads go to the read class, writes to the default class.
    pub fn new(classes: &Classes, class: Option<Class>, is_spread: bool) -> Lanes {
        let serving = |is_read, usual| classes.count(classes.serving(class.unwrap_or(usual), is_read));
        let counts = [serving(true, Class::Read), serving(false, Class::Default)];
        Lanes { class, counts, next: is_spread.then_some([0; 2]) }
    }

    /// Operations of a kind that are in flight for a depth: on each lane, or, if they are spread, on all
    /// together.
    pub fn operations(&self, kind: Kind, depth: u32) -> usize {
        let [reads, writes] = self.counts;
        let lanes = match kind.reads_percent {
            _ if self.next.is_some() => 1,
            100 => reads,
            0 => writes,
            _ => reads.max(writes),
        };
        lanes * depth as usize
    }

    /// The own lanes of operation number `index`.
    pub fn own(&self, index: usize) -> [usize; 2] {
        self.counts.map(|count| index % count)
    }

    /// Hands a request to the client.
    #[inline]
    pub fn submit(
        &mut self,
        client: &mut Client,
        own: [usize; 2],
        direction: Direction,
        request: Request,
        tag: u64,
    ) {
        let at = usize::from(direction == Direction::Write);
        let lane = match &mut self.next {
            None => own[at],
            Some(next) => {
                next[at] = if next[at] + 1 < self.counts[at] { next[at] + 1 } else { 0 };
                next[at]
            }
        };
        match self.class {
            None => client.submit(lane, request, tag),
            Some(class) => client.submit_to(class, lane, request, tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: Kind = Kind { random: true, reads_percent: 100 };
    const WRITES: Kind = Kind { random: false, reads_percent: 0 };
    const MIXED: Kind = Kind { random: false, reads_percent: 70 };

    #[test]
    fn a_depth_counts_on_each_lane_of_the_class_or_on_all_together() {
        let classes = Classes { default: 2, read: 3, poll: 1 };
        let count = |class, is_spread, kind| Lanes::new(&classes, class, is_spread).operations(kind, 4);
        assert_eq!([READS, WRITES, MIXED].map(|kind| count(None, false, kind)), [12, 8, 12]);
        assert_eq!([READS, WRITES, MIXED].map(|kind| count(Some(Class::Poll), false, kind)), [4, 4, 4]);
        assert_eq!(count(None, true, READS), 4);
    }

    #[test]
    fn an_operation_has_a_lane_of_its_own_in_each_class() {
        let lanes = Lanes::new(&Classes { default: 2, read: 3, poll: 0 }, None, false);
        assert_eq!(
            (0..4).map(|index| lanes.own(index)).collect::<Vec<_>>(),
            [[0, 0], [1, 1], [2, 0], [0, 1]]
        );
    }
}
