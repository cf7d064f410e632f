//! Levels of the members of a group, from one window to the next.

use super::compare::{Criterion, MIN_DIFFERENCE_NS, Outlier, compare, ratios};

/// Windows of the last ones in which an outlier is suspect, and slow.
const SUSPECT: (u32, u32) = (4, 5);
const SLOW: (u32, u32) = (12, 15);
/// Windows of ten seconds of the last ones in which a member with rare stalls is slow.
const STALLING: (u32, u32) = (4, 5);
/// Windows without a difference, after which a member is fine again.
const CLEAR: u32 = 30;
const CLEAR_STALLS: u32 = 6;
/// Ratios that count as a difference, at the median, the tail, and rare stalls.
const DIFFERENCES: [f64; 3] = [1.5, 2.0, 2.0];
/// Most work, in relation to the other members, of a member that counts as slow.
const MAX_EQUAL_WORK: f64 = 1.25;
/// Windows over which work is averaged.
const WORK_WINDOWS: f64 = 15.0;
/// Windows of the past that a comparison with it needs, and windows over which it is averaged: an hour of seconds.
const MIN_PAST: u32 = 300;
const PAST_WINDOWS: f64 = 3600.0;

/// One member in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemberWindow {
    /// Median and 99th percentile in nanoseconds, if there are enough operations; in a window for stalls, the
    /// quantile of [`Criterion::STALLS`] comes first.
    pub quantiles_ns: [Option<f64>; 2],
    /// Work per second: see [`super::compare::work_of`].
    pub work: f64,
}

/// Level of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Like the others.
    #[default]
    Fine,
    /// Slower than the others in most of the last windows.
    Suspect,
    /// Slower than the others for a longer time.
    Slow,
}

/// Reason for a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// Slower than the others at no more work.
    #[default]
    Slow,
    /// Gets more work than the others.
    Hot,
    /// All members are slower than in their past.
    Common,
}

/// State of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// The level.
    pub level: Level,
    /// Reason for a level above [`Level::Fine`].
    pub reason: Reason,
    /// Last difference that counted.
    pub ratio: f64,
    /// Work in relation to the other members.
    pub work: f64,
    /// Median, 99th percentile, and quantile of [`Criterion::STALLS`] in relation to the other members, in the last window
    /// of each, if it had enough operations.
    pub ratios: [Option<f64>; 3],
}

/// Detects slow members of one group, for one operation and size class.
///
/// Two members have no majority: each is compared with its own past.
#[derive(Clone, Debug)]
pub struct Detector {
    members: Vec<Member>,
}

#[derive(Clone, Debug, Default)]
struct Member {
    status: Status,
    /// The last windows, the newest in bit 0: outlier, and different.
    outlier: u32,
    different: u32,
    stalls: u32,
    stall_differences: u32,
    /// Windows in which it was slower than its past.
    changed: u32,
    work: f64,
    past: Past,
}

/// Logarithms of the quantiles, averaged.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// Windows that had each quantile.
    windows: [u32; 2],
    quantiles: [f64; 2],
}

impl Detector {
    /// Returns a detector for a number of members.
    pub fn new(members: usize) -> Detector {
        Detector { members: vec![Member::default(); members] }
    }

    /// Adds a window of seconds. A member that copies or resyncs has none.
    ///
    /// # Panics
    ///
    /// If the number of members differs from the detector's.
    pub fn push(&mut self, window: &[Option<MemberWindow>]) {
        assert_eq!(window.len(), self.members.len(), "one entry for each member");
        let past_ratios = self.compare_with_past(window);
        let ratios = [0, 1].map(|quantile| ratios(&quantiles(window, quantile)));
        let outliers = if window.len() == 2 { pair(&past_ratios) } else { outliers(window) };
        let differences = if window.len() == 2 { past_ratios } else { differences(&ratios) };
        for (at, member) in self.members.iter_mut().enumerate() {
            member.status.ratios[..2].copy_from_slice(&[ratios[0][at], ratios[1][at]]);
            let Some(own) = window[at] else { continue };
            let outlier = outliers.iter().find(|outlier| outlier.0 == at);
            member.outlier = member.outlier << 1 | u32::from(outlier.is_some());
            member.different = member.different << 1 | u32::from(differences[at].is_some());
            member.status.ratio = outlier.map_or(member.status.ratio, |outlier| outlier.1);
            member.work += (own.work - member.work) / WORK_WINDOWS;
        }
        self.update_work();
        self.members.iter_mut().for_each(Member::update);
        self.update_past(window);
    }

    /// Adds a window of ten seconds, in which the first quantile is of rare stalls.
    ///
    /// # Panics
    ///
    /// If the number of members differs from the detector's.
    pub fn push_stalls(&mut self, window: &[Option<MemberWindow>]) {
        assert_eq!(window.len(), self.members.len(), "one entry for each member");
        let values = quantiles(window, 0);
        let outliers = compare(&values, Criterion::STALLS.ratio);
        let ratios = ratios(&values);
        for (at, member) in self.members.iter_mut().enumerate() {
            member.status.ratios[2] = ratios[at];
            if window[at].is_none() {
                continue;
            }
            let outlier = outliers.iter().find(|outlier| outlier.member == at);
            let is_different = ratios[at].is_some_and(|ratio| ratio >= DIFFERENCES[2]);
            member.stalls = member.stalls << 1 | u32::from(outlier.is_some());
            member.stall_differences = member.stall_differences << 1 | u32::from(is_different);
            member.status.ratio = outlier.map_or(member.status.ratio, |outlier| outlier.ratio);
            member.update();
        }
    }

    /// Returns the state of all members.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = Status> {
        self.members.iter().map(|member| member.status)
    }

    /// Returns the ratio of each member to its past, if it counts, and marks members that became slower.
    fn compare_with_past(&mut self, window: &[Option<MemberWindow>]) -> Vec<Option<f64>> {
        let ratios = self.members.iter_mut().zip(window).map(|(member, own)| {
            let ratio = own.and_then(|own| member.past.ratio(&own));
            if own.is_some() {
                member.changed = member.changed << 1 | u32::from(ratio.is_some());
            }
            ratio
        });
        ratios.collect()
    }

    fn update_work(&mut self) {
        let ratios = ratios(&self.members.iter().map(|member| Some(member.work)).collect::<Vec<_>>());
        let is_common = self.members.len() > 1 && self.members.iter().all(|member| has(member.changed, SLOW));
        for (member, ratio) in self.members.iter_mut().zip(ratios) {
            member.status.work = ratio.unwrap_or(1.0);
            member.status.reason = match member.status.work {
                _ if is_common => Reason::Common,
                work if work > MAX_EQUAL_WORK => Reason::Hot,
                _ => Reason::Slow,
            };
        }
    }

    /// Adds a window to the past of members that are fine.
    fn update_past(&mut self, window: &[Option<MemberWindow>]) {
        for (member, own) in self.members.iter_mut().zip(window) {
            if let Some(own) =
                own.filter(|_| member.status.level == Level::Fine && !has(member.changed, SUSPECT))
            {
                member.past.add(&own);
            }
        }
    }
}

impl Member {
    fn update(&mut self) {
        let is_common = self.status.reason == Reason::Common;
        let level = if is_common || has(self.outlier, SLOW) || has(self.stalls, STALLING) {
            Level::Slow
        } else if has(self.outlier, SUSPECT) {
            Level::Suspect
        } else {
            Level::Fine
        };
        let is_clear = self.different & ones(CLEAR) == 0 && self.stall_differences & ones(CLEAR_STALLS) == 0;
        self.status.level = if is_clear { level } else { level.max(self.status.level) };
    }
}

impl Past {
    fn add(&mut self, own: &MemberWindow) {
        for ((past, windows), now) in self.quantiles.iter_mut().zip(&mut self.windows).zip(own.quantiles_ns) {
            let Some(now) = now else { continue };
            *windows = windows.saturating_add(1);
            *past += (now.max(1.0).ln() - *past) / f64::from(*windows).min(PAST_WINDOWS);
        }
    }

    /// Returns the ratio to the past of the quantile that became slower.
    fn ratio(&self, own: &MemberWindow) -> Option<f64> {
        let criteria = [Criterion::MEDIAN, Criterion::TAIL];
        let known = self.quantiles.iter().zip(self.windows).zip(own.quantiles_ns).zip(criteria);
        let slower = known.filter_map(|(((past, windows), now), criterion)| {
            let (now, past) = (now.filter(|_| windows >= MIN_PAST)?, past.exp());
            (now >= past * criterion.ratio && now - past >= MIN_DIFFERENCE_NS).then_some(now / past)
        });
        slower.reduce(f64::max)
    }
}

fn quantiles(window: &[Option<MemberWindow>], at: usize) -> Vec<Option<f64>> {
    window.iter().map(|own| own.and_then(|own| own.quantiles_ns[at])).collect()
}

/// Returns the members that are outliers at either quantile, and their ratios.
fn outliers(window: &[Option<MemberWindow>]) -> Vec<(usize, f64)> {
    let criteria = [Criterion::MEDIAN, Criterion::TAIL];
    let found = criteria.iter().enumerate();
    let found = found.flat_map(|(at, criterion)| compare(&quantiles(window, at), criterion.ratio));
    found.map(|Outlier { member, ratio, .. }| (member, ratio)).collect()
}

/// Returns the ratios that count as a difference at either quantile.
fn differences([medians, tails]: &[Vec<Option<f64>>; 2]) -> Vec<Option<f64>> {
    let counts = |ratio: &Option<f64>, limit: f64| ratio.filter(|ratio| *ratio >= limit);
    let either = |(median, tail)| counts(median, DIFFERENCES[0]).or(counts(tail, DIFFERENCES[1]));
    medians.iter().zip(tails).map(either).collect()
}

/// Returns the one of two members that is slower than its past, if the other one is not.
fn pair(ratios: &[Option<f64>]) -> Vec<(usize, f64)> {
    match ratios {
        [Some(ratio), None] => vec![(0, *ratio)],
        [None, Some(ratio)] => vec![(1, *ratio)],
        _ => Vec::new(),
    }
}

/// Returns `true` if enough of the last windows are marked.
fn has(history: u32, (wanted, windows): (u32, u32)) -> bool {
    (history & ones(windows)).count_ones() >= wanted
}

fn ones(count: u32) -> u32 {
    (1 << count) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(medians_us: &[f64]) -> Vec<Option<MemberWindow>> {
        medians_us.iter().map(|us| Some(member(*us, 1000.0))).collect()
    }

    fn member(median_us: f64, work: f64) -> MemberWindow {
        MemberWindow { quantiles_ns: [Some(median_us * 1e3), Some(median_us * 2e3)], work }
    }

    fn levels(detector: &Detector) -> Vec<Level> {
        detector.statuses().map(|status| status.level).collect()
    }

    fn push(detector: &mut Detector, windows: usize, medians_us: &[f64]) {
        (0..windows).for_each(|_| detector.push(&window(medians_us)));
    }

    #[test]
    fn raises_level_with_persistence() {
        use Level::*;
        let mut detector = Detector::new(3);
        push(&mut detector, 3, &[200.0, 200.0, 900.0]);
        assert_eq!(levels(&detector), [Fine, Fine, Fine]);
        push(&mut detector, 1, &[200.0, 200.0, 900.0]);
        assert_eq!(levels(&detector), [Fine, Fine, Suspect]);
        push(&mut detector, 8, &[200.0, 200.0, 900.0]);
        assert_eq!(levels(&detector), [Fine, Fine, Slow]);
        push(&mut detector, 29, &[200.0; 3]);
        assert_eq!(levels(&detector), [Fine, Fine, Slow], "29 windows without a difference");
        push(&mut detector, 1, &[200.0; 3]);
        assert_eq!(levels(&detector), [Fine, Fine, Fine]);
    }

    #[test]
    fn small_difference_keeps_the_level() {
        let mut detector = Detector::new(3);
        push(&mut detector, 15, &[200.0, 200.0, 900.0]);
        push(&mut detector, 100, &[200.0, 200.0, 320.0]);
        assert_eq!(levels(&detector)[2], Level::Slow);
    }

    #[test]
    fn names_more_work_as_the_reason() {
        let mut detector = Detector::new(3);
        for _ in 0..15 {
            detector.push(&[member(200.0, 100.0), member(200.0, 100.0), member(900.0, 900.0)].map(Some));
        }
        let status = detector.statuses().nth(2).expect("three members");
        assert_eq!((status.level, status.reason), (Level::Slow, Reason::Hot));
    }

    #[test]
    fn compares_two_members_with_their_past() {
        let mut detector = Detector::new(2);
        push(&mut detector, 15, &[200.0, 900.0]);
        assert_eq!(levels(&detector), [Level::Fine; 2], "no past");
        push(&mut detector, 400, &[200.0, 900.0]);
        push(&mut detector, 15, &[800.0, 900.0]);
        assert_eq!(levels(&detector), [Level::Slow, Level::Fine]);
        push(&mut detector, 400, &[200.0, 900.0]);
        assert_eq!(levels(&detector), [Level::Fine; 2]);
    }

    #[test]
    fn windows_without_tail_have_a_past() {
        let mut detector = Detector::new(2);
        let mut push = |windows: usize, medians_us: [f64; 2]| {
            let member = |us: f64| MemberWindow { quantiles_ns: [Some(us * 1e3), None], work: 1000.0 };
            (0..windows).for_each(|_| detector.push(&medians_us.map(|us| Some(member(us)))));
            levels(&detector)
        };
        assert_eq!(push(400, [200.0, 200.0]), [Level::Fine; 2]);
        assert_eq!(push(15, [200.0, 900.0]), [Level::Fine, Level::Slow]);
    }

    #[test]
    fn names_change_of_all_members() {
        for members in [2, 5] {
            let mut detector = Detector::new(members);
            push(&mut detector, 400, &vec![200.0; members]);
            push(&mut detector, 15, &vec![900.0; members]);
            let all = detector.statuses().all(|at| (at.level, at.reason) == (Level::Slow, Reason::Common));
            assert!(all, "{:?}", detector.statuses().collect::<Vec<_>>());
        }
    }

    #[test]
    fn shows_ratios_of_last_window() {
        let mut detector = Detector::new(3);
        push(&mut detector, 1, &[200.0, 200.0, 300.0]);
        let ratios = |detector: &Detector| detector.statuses().nth(2).expect("three members").ratios;
        assert_eq!(ratios(&detector), [Some(1.5), Some(1.5), None]);
        let stalls = |ms: f64| Some(MemberWindow { quantiles_ns: [Some(ms * 1e6), None], work: 1.0 });
        detector.push_stalls(&[stalls(1.0), stalls(1.0), stalls(4.0)]);
        assert_eq!(ratios(&detector), [Some(1.5), Some(1.5), Some(4.0)]);
        detector.push(&[Some(member(200.0, 1.0)), Some(member(200.0, 1.0)), None]);
        assert_eq!(ratios(&detector), [None, None, Some(4.0)], "it copies");
    }

    #[test]
    fn finds_rare_stalls() {
        let stalls = |ms: f64| Some(MemberWindow { quantiles_ns: [Some(ms * 1e6), None], work: 1.0 });
        let mut detector = Detector::new(3);
        for at in 0..4 {
            assert_eq!(levels(&detector)[1], Level::Fine, "after {at} windows");
            detector.push_stalls(&[stalls(1.0), stalls(20.0), stalls(1.0)]);
        }
        assert_eq!(levels(&detector)[1], Level::Slow);
        (0..6).for_each(|_| detector.push_stalls(&[stalls(1.0), stalls(1.2), stalls(1.0)]));
        assert_eq!(levels(&detector)[1], Level::Fine);
    }
}
