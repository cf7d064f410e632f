//! The rule for slow devices, and two simpler rules, on the same traces.
//!
//! `ISOLANE_TEST_GROUP_DAYS` is the number of days of each size of a group, `ISOLANE_TEST_SEED` chooses other drives.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

mod traces;

use std::collections::VecDeque;

use isolane_observe::peers::{Detector, Level, MemberWindow, Reason};
use traces::{Fault, Second, Trace};

const SIZES: [usize; 3] = [3, 8, 24];
const DAY: u64 = 86_400;
/// Seconds before a fault, and after it in which a rule must find it.
const BEFORE: usize = 120;
const LIMIT: usize = 60;

/// A rule under test.
trait Rule {
    /// Returns the members that are slow after this second.
    fn push(&mut self, seconds: &[Second]) -> Vec<usize>;
}

/// Our rule. The windows have one second, so that each member has enough operations.
struct Ours {
    detector: Detector,
    stalls: Vec<Vec<Second>>,
}

impl Ours {
    fn new(members: usize) -> Ours {
        Ours { detector: Detector::new(members), stalls: Vec::new() }
    }
}

impl Rule for Ours {
    fn push(&mut self, seconds: &[Second]) -> Vec<usize> {
        let window = |at: &Second| {
            let quantiles_ns = [Some(at.p50), Some(at.p99)];
            Some(MemberWindow { quantiles_ns, work: at.operations * (1.0 + 4096.0 / 65536.0) })
        };
        self.detector.push(&seconds.iter().map(window).collect::<Vec<_>>());
        self.stalls.push(seconds.to_vec());
        if self.stalls.len() == 10 {
            let window = |member: usize| {
                let mut values: Vec<f64> = self.stalls.iter().map(|at| at[member].p999).collect();
                values.sort_by(f64::total_cmp);
                // A stall of one second moves the quantile of ten seconds little.
                Some(MemberWindow { quantiles_ns: [Some(values[values.len() / 2]), None], work: 1.0 })
            };
            self.detector.push_stalls(&(0..seconds.len()).map(window).collect::<Vec<_>>());
            self.stalls.clear();
        }
        let slow = self.detector.statuses().enumerate();
        let slow = slow.filter(|(_, at)| at.level == Level::Slow && at.reason == Reason::Slow);
        slow.map(|(member, _)| member).collect()
    }
}

/// The mean of a member is at least twice the median of the means of all members, in 12 of 15 seconds.
struct Means(Vec<VecDeque<bool>>);

impl Rule for Means {
    fn push(&mut self, seconds: &[Second]) -> Vec<usize> {
        let mut means: Vec<f64> = seconds.iter().map(|at| at.mean).collect();
        means.sort_by(f64::total_cmp);
        let median = means[means.len() / 2];
        let mut slow = Vec::new();
        for (member, (history, second)) in self.0.iter_mut().zip(seconds).enumerate() {
            history.push_back(second.mean >= 2.0 * median);
            if history.len() > 15 {
                history.pop_front();
            }
            if history.iter().filter(|is_slow| **is_slow).count() >= 12 {
                slow.push(member);
            }
        }
        slow
    }
}

/// The rule of OpenZFS in words: of five or more members, one whose mean is above the third quartile by 50 times the
/// distance of the quartiles (at least a quarter of the first one) is an outlier; more than 20 in a row make it slow.
struct Quartiles(Vec<u32>);

impl Rule for Quartiles {
    fn push(&mut self, seconds: &[Second]) -> Vec<usize> {
        if seconds.len() < 5 {
            return Vec::new();
        }
        let mut means: Vec<f64> = seconds.iter().map(|at| at.mean).collect();
        means.sort_by(f64::total_cmp);
        let (first, third) = (means[means.len() / 4], means[means.len() * 3 / 4]);
        let fence = third + 50.0 * (third - first).max(first / 4.0);
        for (count, second) in self.0.iter_mut().zip(seconds) {
            *count = if second.mean > fence { *count + 1 } else { 0 };
        }
        (0..seconds.len()).filter(|member| self.0[*member] > 20).collect()
    }
}

fn rules(members: usize) -> [(&'static str, Box<dyn Rule>); 3] {
    [
        ("ours", Box::new(Ours::new(members))),
        ("means", Box::new(Means(vec![VecDeque::new(); members]))),
        ("quartiles", Box::new(Quartiles(vec![0; members]))),
    ]
}

/// Counts how often each rule names the faulty member within the limit.
fn found(members: usize, fault: Fault, runs: u64) -> [u64; 3] {
    let mut found = [0; 3];
    for run in 0..runs {
        let mut trace = Trace::new(members, run * 7919 + members as u64);
        let mut rules = rules(members);
        let faulty = run as usize % members;
        let mut named = [false; 3];
        for second in 0..BEFORE + run as usize % 10 + LIMIT {
            let is_faulty = second >= BEFORE + run as usize % 10;
            let seconds = trace.next(if is_faulty { fault } else { Fault::None }, faulty);
            for ((_, rule), named) in rules.iter_mut().zip(&mut named) {
                *named |= rule.push(&seconds).contains(&faulty) && is_faulty;
            }
        }
        found.iter_mut().zip(named).for_each(|(count, named)| *count += u64::from(named));
    }
    found
}

#[test]
fn finds_faults_within_a_minute() {
    let runs = group_days(0.0).map_or(40, |_| 1000);
    for members in SIZES {
        for fault in [Fault::TwiceMedian, Fault::FiveTimesTail, Fault::Stalls] {
            let [ours, means, quartiles] = found(members, fault, runs);
            println!(
                "{members} members, {fault:?}: found in {ours} of {runs}, means {means}, quartiles {quartiles}"
            );
            assert!(ours * 100 >= runs * 99, "{members} members, {fault:?}: {ours} of {runs}");
        }
    }
}

/// Returns the days of each size that the environment requests.
fn group_days(least: f64) -> Option<f64> {
    std::env::var("ISOLANE_TEST_GROUP_DAYS").ok()?.parse().ok().filter(|days| *days > least)
}

/// Returns the new alarms of each rule.
fn alarms(members: usize, seconds: u64, seed: u64) -> [u64; 3] {
    let mut trace = Trace::new(members, seed);
    let mut rules = rules(members);
    let mut before = [const { Vec::new() }; 3];
    let mut alarms = [0; 3];
    for _ in 0..seconds {
        let seconds = trace.next(Fault::None, 0);
        for (at, (_, rule)) in rules.iter_mut().enumerate() {
            let slow = rule.push(&seconds);
            alarms[at] += slow.iter().filter(|member| !before[at].contains(*member)).count() as u64;
            before[at] = slow;
        }
    }
    alarms
}

fn expect_no_alarm(members: usize) {
    let days = group_days(0.0).unwrap_or(0.15);
    let first = std::env::var("ISOLANE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut sum, mut done) = ([0; 3], 0.0);
    // Each day begins with other drives.
    for day in 0..days.ceil() as u64 {
        let part = (days - done).min(1.0);
        let alarms = alarms(members, (part * DAY as f64) as u64, first + day * 1000 + members as u64);
        sum.iter_mut().zip(alarms).for_each(|(sum, more)| *sum += more);
        done += part;
        if day % 50 == 49 || done >= days {
            let [ours, means, quartiles] = sum;
            println!("{members} members, {done} days: {ours} alarms, means {means}, quartiles {quartiles}");
        }
    }
    assert!(sum[0] as f64 <= days / 1000.0, "{members} members: {} false alarms", sum[0]);
}

#[test]
fn healthy_group_of_3_has_no_alarm() {
    expect_no_alarm(3);
}

#[test]
fn healthy_group_of_8_has_no_alarm() {
    expect_no_alarm(8);
}

#[test]
fn healthy_group_of_24_has_no_alarm() {
    expect_no_alarm(24);
}
