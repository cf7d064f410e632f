//! Choice of the lane for each operation.
//!
//! Each operation has its own lane in each class that may serve it, or, with `--share-depth`, takes the next lane of
//! its class.

use isolane_host::{Client, LaneClass, LaneCounts, Request};

use super::access_pattern::{Direction, Kind};

/// Lanes of one stream of operations.
pub struct LaneSelector {
    class: Option<LaneClass>,
    /// Lanes for reads and lanes for writes.
    counts: [usize; 2],
    /// With `--share-depth`: the latest lane of each direction.
    latest: Option<[usize; 2]>,
}

impl LaneSelector {
    /// Returns the lanes of a class; without one, of the read class for reads and the default class for writes.
    pub fn new(classes: &LaneCounts, class: Option<LaneClass>, share_depth: bool) -> LaneSelector {
        let serving = |read, usual| classes.count(classes.serving(class.unwrap_or(usual), read));
        let counts = [serving(true, LaneClass::Read), serving(false, LaneClass::Default)];
        LaneSelector { class, counts, latest: share_depth.then_some([0; 2]) }
    }

    /// Returns the only lane of a thread's submitter.
    pub fn single() -> LaneSelector {
        LaneSelector { class: None, counts: [1; 2], latest: None }
    }

    /// Returns the operations in flight for a depth, which counts per lane, or for all lanes if it is shared.
    pub fn operations(&self, kind: Kind, depth: u32) -> usize {
        let [reads, writes] = self.counts;
        let lanes = match kind.reads_percent {
            _ if self.latest.is_some() => 1,
            100 => reads,
            0 => writes,
            _ => reads.max(writes),
        };
        lanes * depth as usize
    }

    /// Returns the own lanes of operation `index`, for reads and for writes.
    pub fn own(&self, index: usize) -> [usize; 2] {
        self.counts.map(|count| index % count)
    }

    /// Submits a request to one of its `own` lanes or to the next one.
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
        let lane = match &mut self.latest {
            None => own[at],
            Some(latest) => {
                latest[at] = if latest[at] + 1 < self.counts[at] { latest[at] + 1 } else { 0 };
                latest[at]
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
    fn depth_counts_per_lane_or_is_shared() {
        let classes = LaneCounts { default: 2, read: 3, poll: 1 };
        let count = |class, shared, kind| LaneSelector::new(&classes, class, shared).operations(kind, 4);
        assert_eq!([READS, WRITES, MIXED].map(|kind| count(None, false, kind)), [12, 8, 12]);
        assert_eq!([READS, WRITES, MIXED].map(|kind| count(Some(LaneClass::Poll), false, kind)), [4, 4, 4]);
        assert_eq!(count(None, true, READS), 4);
    }

    #[test]
    fn operations_have_own_lanes_in_each_class() {
        let lanes = LaneSelector::new(&LaneCounts { default: 2, read: 3, poll: 0 }, None, false);
        assert_eq!(
            (0..4).map(|index| lanes.own(index)).collect::<Vec<_>>(),
            [[0, 0], [1, 1], [2, 0], [0, 1]]
        );
    }
}
