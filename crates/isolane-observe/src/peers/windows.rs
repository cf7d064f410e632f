//! Windows of seconds that are long enough for a comparison.

use super::compare::{Criterion, MIN_MEMBERS};
use super::detector::{Detector, MemberWindow, Status};
use crate::histogram::{Histogram, Resolution};

/// Longest window, in seconds.
const MAX_SECONDS: u32 = 64;
/// Length of a window for rare stalls, in seconds.
const STALL_SECONDS: u32 = 10;

/// One member in one second.
#[derive(Clone, Debug)]
pub struct MemberSecond {
    /// Latencies of one operation and size class in this second. All have one resolution.
    pub times: Histogram,
    /// Work in this second: see [`super::compare::work_of`].
    pub work: f64,
}

/// Detects slow members of one group from the latencies of each second.
///
/// A window has 1, 2, 4, … 64 s, until enough members have enough operations.
#[derive(Clone, Debug)]
pub struct GroupDetector {
    detector: Detector,
    seconds: Sums,
    stalls: Sums,
}

/// Sums of some seconds.
#[derive(Clone, Debug, Default)]
struct Sums {
    seconds: u32,
    /// A member that was left out in a second is left out of the window.
    members: Vec<Option<MemberSecond>>,
}

impl GroupDetector {
    /// Returns a detector for a number of members.
    pub fn new(members: usize) -> GroupDetector {
        GroupDetector { detector: Detector::new(members), seconds: Sums::default(), stalls: Sums::default() }
    }

    /// Adds a second. A member that copies or resyncs has none.
    ///
    /// # Panics
    ///
    /// If the number of members differs from the detector's, or if resolutions differ.
    pub fn push(&mut self, members: &[Option<MemberSecond>]) {
        self.seconds.add(members);
        self.stalls.add(members);
        if self.seconds.is_complete() {
            let window = self.seconds.take([Criterion::MEDIAN, Criterion::TAIL]);
            self.detector.push(&window);
        }
        if self.stalls.seconds == STALL_SECONDS {
            let window = self.stalls.take([Criterion::STALLS, Criterion::STALLS]);
            self.detector.push_stalls(&window);
        }
    }

    /// Returns the state of all members.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = Status> {
        self.detector.statuses()
    }
}

impl Sums {
    fn add(&mut self, members: &[Option<MemberSecond>]) {
        if self.seconds == 0 {
            let empty = || MemberSecond { times: Histogram::new(Resolution::Eight), work: 0.0 };
            let empty = |member: &Option<MemberSecond>| {
                let times = member.as_ref().map(|at| Histogram::new(at.times.resolution()));
                times.map_or_else(empty, |times| MemberSecond { times, work: 0.0 })
            };
            self.members = members.iter().map(|member| Some(empty(member))).collect();
        }
        self.seconds += 1;
        for (sum, member) in self.members.iter_mut().zip(members) {
            match (sum.as_mut(), member) {
                (Some(sum), Some(member)) => {
                    sum.times.merge(&member.times);
                    sum.work += member.work;
                }
                _ => *sum = None,
            }
        }
    }

    /// Returns `true` if a window of this length has enough operations, or is the longest.
    fn is_complete(&self) -> bool {
        let has_enough = |member: &&MemberSecond| member.times.count() >= Criterion::MEDIAN.min_operations;
        let enough = self.members.iter().flatten().filter(has_enough).count();
        let wanted = MIN_MEMBERS.min(self.members.len());
        self.seconds >= MAX_SECONDS || self.seconds.is_power_of_two() && enough >= wanted
    }

    fn take(&mut self, criteria: [Criterion; 2]) -> Vec<Option<MemberWindow>> {
        let seconds = f64::from(std::mem::take(&mut self.seconds).max(1));
        let member = |member: MemberSecond| MemberWindow {
            quantiles_ns: criteria.map(|criterion| criterion.quantile_of(&member.times)),
            work: member.work / seconds,
        };
        std::mem::take(&mut self.members).into_iter().map(|at| at.map(member)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::detector::Level;
    use super::*;

    fn second(medians_us: &[u64], operations: u64) -> Vec<Option<MemberSecond>> {
        let member = |us: &u64| {
            let mut times = Histogram::new(Resolution::Eight);
            times.record(us * 1000, operations);
            Some(MemberSecond { times, work: operations as f64 })
        };
        medians_us.iter().map(member).collect()
    }

    fn seconds_until_slow(operations: u64) -> Option<usize> {
        let mut detector = GroupDetector::new(3);
        (1..2000).find(|_| {
            detector.push(&second(&[200, 200, 900], operations));
            detector.statuses().nth(2).expect("three members").level == Level::Slow
        })
    }

    #[test]
    fn few_operations_make_longer_windows() {
        assert_eq!(seconds_until_slow(200), Some(12));
        assert_eq!(seconds_until_slow(60), Some(12 * 4));
        assert_eq!(seconds_until_slow(1), None);
    }

    #[test]
    fn leaves_out_member_that_copies() {
        let mut detector = GroupDetector::new(4);
        let mut members = second(&[200, 200, 900, 200], 500);
        members[2] = None;
        (0..100).for_each(|_| detector.push(&members));
        assert!(detector.statuses().all(|status| status.level == Level::Fine));
    }
}
