//! File volumes on a simulated disk: what they acknowledge survives, what they show is whole.

use isolane_sim::{Config, Faults, World};

fn config(seed: u64) -> Config {
    Config {
        seed,
        block_size: 512,
        sector: 512,
        blocks: 160,
        depth: 12,
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
