use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::world::{Statistics, World};

/// Runs these seeds, each in another world.
fn run_all(seeds: Range<u64>) -> Statistics {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut sum = Statistics::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            sum.add(&World::new(seed).run(STEPS));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = Statistics::default();
        threads.into_iter().for_each(|thread| sum.add(&thread.join().expect("no seed fails")));
        sum
    })
}

/// `ISOLANE_TEST_SEEDS` has the number of seeds, and `ISOLANE_TEST_SEED` a single one.
#[test]
fn late_writes_never_pass_later_commands() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = variable("ISOLANE_TEST_SEED") {
        println!("{:?}", World::new(seed).run(STEPS));
        return;
    }
    let seeds = variable("ISOLANE_TEST_SEEDS").unwrap_or(100);
    let sum = run_all(0..seeds);
    println!("{sum:?}");
    // Each kind of event occurs often.
    let Statistics {
        reads,
        writes,
        not_ready,
        unknown,
        failed,
        orphans,
        changes,
        closed_volumes,
        lost_connections,
        upgrades,
        refused_upgrades,
    } = sum;
    let counts =
        [reads, writes, not_ready, orphans, changes, closed_volumes, lost_connections, refused_upgrades];
    assert!(
        seeds < 100 || counts.iter().all(|count| *count as u64 > seeds) && unknown + failed + upgrades > 0
    );
}

#[test]
fn same_seed_gives_same_run() {
    for seed in 0..10 {
        assert_eq!(World::new(seed).trace(STEPS), World::new(seed).trace(STEPS), "seed {seed}");
    }
}

/// Steps of one run.
const STEPS: usize = 600;
