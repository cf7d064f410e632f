//! File volumes on a simulated disk: what they acknowledge survives, what they show is whole.

use isolane_sim::{Config, Faults, World};

fn config(seed: u64) -> Config {
    Config {
        seed,
        block_size: 512,
        sector: 512,
        blocks: 160,
        depth: 12,
        cores: 1,
        is_direct: seed.is_multiple_of(2),
        is_write_through: seed.is_multiple_of(5),
        faults: Faults::default(),
    }
}

#[test]
fn what_was_flushed_or_written_with_fua_survives_every_power_cut() {
    for seed in 0..40 {
        let mut world = World::new(config(seed));
        for _ in 0..5 {
            world.run(400);
            assert!(world.acknowledged() > 10, "seed {seed}: hardly anything was acknowledged");
            world = world.cut_power();
        }
    }
}

#[test]
fn short_transfers_and_missing_features_change_nothing_of_that() {
    for seed in 0..40 {
        let faults = Faults { short: 300, is_plain: seed % 3 == 0, ..Faults::default() };
        let mut world = World::new(Config { faults, ..config(seed) });
        for _ in 0..5 {
            world.run(400);
            world = world.cut_power();
        }
    }
}

#[test]
fn errors_lose_nothing_that_was_acknowledged() {
    for seed in 0..40 {
        let faults = Faults { short: 100, read: 50, write: 50, space: 50, ..Faults::default() };
        let mut world = World::new(Config { faults, ..config(seed) });
        for _ in 0..5 {
            world.run(400);
            world = world.cut_power();
        }
    }
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    let mut failures = 0;
    for seed in 0..100 {
        let faults = Faults { sync: 60, ..Faults::default() };
        let mut world = World::new(Config { faults, ..config(seed) });
        for _ in 0..3 {
            world.run(600);
            failures += usize::from(world.has_sync_failed());
            world = world.cut_power();
        }
    }
    assert!(failures > 50, "only {failures} worlds met a failed sync");
}

#[test]
fn a_block_of_eight_sectors_is_never_seen_half_written() {
    for seed in 0..40 {
        let mut world = World::new(Config { block_size: 4096, blocks: 40, ..config(seed) });
        world.run(3000);
        assert!(world.acknowledged() > 50);
    }
}

#[test]
fn a_block_of_4096_survives_whole_on_a_disk_that_writes_4096_as_one() {
    for seed in 0..40 {
        let mut world = World::new(Config { block_size: 4096, sector: 4096, blocks: 40, ..config(seed) });
        for _ in 0..5 {
            world.run(400);
            world = world.cut_power();
        }
    }
}

/// Several cores learn of results late and out of order, while syncs and durable writes fail.
#[test]
fn no_promise_overtakes_a_failed_sync_of_another_core() {
    let mut failures = 0;
    for seed in 0..60 {
        let faults = Faults { sync: 60, ..Faults::default() };
        let mut world = World::new(Config { cores: 2, depth: 24, blocks: 480, faults, ..config(seed) });
        for _ in 0..3 {
            world.run(600);
            failures += usize::from(world.has_sync_failed());
            world = world.cut_power();
        }
    }
    assert!(failures > 30, "only {failures} worlds met a failed sync");
}

/// ENOSPC of a durable write loses what others left in the cache if it came from the half that syncs.
#[test]
fn no_space_for_a_sync_is_a_failed_sync() {
    let mut failures = 0;
    for seed in 0..60 {
        let faults = Faults { space: 60, sync_space: 60, ..Faults::default() };
        let mut world = World::new(Config { cores: 1 + seed as usize % 2, faults, ..config(seed) });
        for _ in 0..3 {
            world.run(600);
            failures += usize::from(world.has_sync_failed());
            world = world.cut_power();
        }
    }
    assert!(failures > 20, "only {failures} worlds met a failed sync");
}
