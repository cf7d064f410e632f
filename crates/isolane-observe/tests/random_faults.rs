//! Verdicts about many simulated targets with up to two random faults: how many findings are right, and how many
//! faults are found.
//!
//! `ISOLANE_TEST_VERDICTS` is the number of targets. `ISOLANE_TEST_SEED` prints the verdict about one of them.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "each test uses a part of the simulation")]
mod simulated;

use std::collections::BTreeMap;

use fastrand::Rng;
use isolane_observe::verdict::{Finding, Kind, Options, Verdict, explain, to_text};
use simulated::faults::{Fault, What};
use simulated::{Io, World};

/// Least part of the time above the median that a fault adds to the tail, for a fault that must be found.
const CLEAR_PART: f64 = 0.2;

/// Numbers of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    right: u32,
    wrong: u32,
    found: u32,
    missed: u32,
}

fn random_world(rng: &mut Rng) -> World {
    let mut world = World {
        volumes: rng.u32(6..13),
        cores: rng.u32(1..4),
        hosts: 0,
        rate: rng.u32(150..400),
        seconds: rng.u64(34..48),
        faults: Vec::new(),
    };
    // No core has one host only.
    world.hosts = u64::from(world.cores) * rng.u64(2..4);
    let count = rng.u32(0..3);
    for part in 0..count {
        let what = What::random(rng.u32(0..17), &world, part, rng);
        let fault = Fault { what, start: rng.u64(3..world.seconds - 15) };
        let is_new = |other: &Fault| (other.kind(), other.name()) != (fault.kind(), fault.name());
        if world.faults.iter().all(is_new) {
            world.faults.push(fault);
        }
    }
    world
}

/// Returns the part of the time above the median of a healthy target, in the tail, that each fault adds.
fn parts(last: &[Io], quantile: f64) -> [f64; 2] {
    let mut classes: BTreeMap<_, Vec<&Io>> = BTreeMap::new();
    last.iter().for_each(|io| classes.entry((io.operation, io.size)).or_default().push(io));
    let (mut added, mut all) = ([0.0; 2], 0.0);
    for ios in classes.values_mut() {
        let natural = |io: &Io| io.total_ns() - io.added_ns.iter().sum::<u64>();
        ios.sort_by_key(|io| natural(io));
        let median = natural(ios[ios.len() / 2]);
        ios.sort_by_key(|io| std::cmp::Reverse(io.total_ns()));
        let tail = (ios.len() as f64 * (1.0 - quantile)).round() as usize;
        for io in &ios[..tail] {
            all += natural(io).saturating_sub(median) as f64;
            added.iter_mut().zip(io.added_ns).for_each(|(sum, ns)| *sum += ns as f64);
        }
    }
    all += added[0] + added[1];
    added.map(|ns| ns / f64::max(all, 1.0))
}

fn names(finding: &Finding, fault: &Fault) -> bool {
    finding.kind == fault.kind() && finding.name.contains(&fault.name())
}

fn score(world: &World, last: &[Io], verdict: &Verdict, scores: &mut BTreeMap<Kind, Score>) -> bool {
    let mut is_perfect = true;
    for finding in &verdict.findings {
        let score = scores.entry(finding.kind).or_default();
        if world.faults.iter().any(|fault| names(finding, fault)) {
            score.right += 1;
        } else {
            score.wrong += 1;
            is_perfect = false;
        }
    }
    let parts = parts(last, verdict.tail.quantile);
    for (fault, _) in world.faults.iter().zip(parts).filter(|(_, part)| *part >= CLEAR_PART) {
        let score = scores.entry(fault.kind()).or_default();
        if verdict.findings.iter().any(|finding| names(finding, fault)) {
            score.found += 1;
        } else {
            score.missed += 1;
            is_perfect = false;
        }
    }
    is_perfect
}

fn verdict_of(seed: u64) -> (World, Vec<Io>, Verdict) {
    let world = random_world(&mut Rng::with_seed(seed));
    let outcome = world.run(seed);
    let verdict = explain(&outcome.snapshot, Options::default());
    (world, outcome.last, verdict)
}

#[test]
fn findings_name_random_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = number("ISOLANE_TEST_VERDICTS").unwrap_or(30);
    let first = number("ISOLANE_TEST_SEED").unwrap_or(0);
    let mut scores = BTreeMap::new();
    for seed in first..first + seeds {
        let (world, last, verdict) = verdict_of(seed);
        if !score(&world, &last, &verdict, &mut scores) {
            let parts = parts(&last, verdict.tail.quantile);
            println!("seed {seed}: {world:?}, parts {parts:.2?}\n{}", to_text(&verdict));
        }
    }
    let mut all = Score::default();
    for (kind, Score { right, wrong, found, missed }) in &scores {
        println!("{:14} {right} right, {wrong} wrong; {found} found, {missed} missed", kind.name());
        all.right += right;
        all.wrong += wrong;
        all.found += found;
        all.missed += missed;
    }
    println!("all: {all:?} of {seeds} targets");
    assert!(all.right * 100 >= (all.right + all.wrong) * 98, "precision: {all:?}");
    assert!(all.found * 100 >= (all.found + all.missed) * 95, "recall: {all:?}");
}
