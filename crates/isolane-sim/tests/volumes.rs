//! File volumes on a simulated disk: acknowledged data survives, and blocks are never torn.

use isolane_sim::{Faults, SimConfig, Simulation};

fn config(seed: u64) -> SimConfig {
    SimConfig {
        seed,
        block_size: 512,
        sector: 512,
        blocks: 160,
        depth: 12,
        cores: 1,
        direct: seed.is_multiple_of(2),
        write_through: seed.is_multiple_of(5),
        faults: Faults::default(),
    }
}

#[test]
fn durable_data_survives_power_cuts() {
    for seed in 0..40 {
        let mut sim = Simulation::new(config(seed));
        for _ in 0..5 {
            sim.run(400);
            assert!(sim.acknowledged() > 10, "seed {seed}: too few acknowledged requests");
            sim = sim.cut_power();
        }
    }
}

#[test]
fn durable_data_survives_short_transfers() {
    for seed in 0..40 {
        let faults = Faults { short_io: 300, no_range_ops: seed % 3 == 0, ..Faults::default() };
        let mut sim = Simulation::new(SimConfig { faults, ..config(seed) });
        for _ in 0..5 {
            sim.run(400);
            sim = sim.cut_power();
        }
    }
}

#[test]
fn durable_data_survives_errors() {
    for seed in 0..40 {
        let faults = Faults { short_io: 100, read: 50, write: 50, enospc: 50, ..Faults::default() };
        let mut sim = Simulation::new(SimConfig { faults, ..config(seed) });
        for _ in 0..5 {
            sim.run(400);
            sim = sim.cut_power();
        }
    }
}

#[test]
fn nothing_is_durable_after_failed_sync() {
    let mut failures = 0;
    for seed in 0..100 {
        let faults = Faults { sync: 60, ..Faults::default() };
        let mut sim = Simulation::new(SimConfig { faults, ..config(seed) });
        for _ in 0..3 {
            sim.run(600);
            failures += usize::from(sim.has_sync_failed());
            sim = sim.cut_power();
        }
    }
    assert!(failures > 50, "only {failures} simulations saw a failed sync");
}

#[test]
fn reads_never_see_torn_blocks() {
    for seed in 0..40 {
        let mut sim = Simulation::new(SimConfig { block_size: 4096, blocks: 40, ..config(seed) });
        sim.run(3000);
        assert!(sim.acknowledged() > 50);
    }
}

#[test]
fn blocks_of_sector_size_survive_whole() {
    for seed in 0..40 {
        let mut sim =
            Simulation::new(SimConfig { block_size: 4096, sector: 4096, blocks: 40, ..config(seed) });
        for _ in 0..5 {
            sim.run(400);
            sim = sim.cut_power();
        }
    }
}

/// Several cores see results late and out of order, while syncs and durable writes fail.
#[test]
fn failed_sync_of_another_core_is_seen() {
    let mut failures = 0;
    for seed in 0..60 {
        let faults = Faults { sync: 60, ..Faults::default() };
        let mut sim = Simulation::new(SimConfig { cores: 2, depth: 24, blocks: 480, faults, ..config(seed) });
        for _ in 0..3 {
            sim.run(600);
            failures += usize::from(sim.has_sync_failed());
            sim = sim.cut_power();
        }
    }
    assert!(failures > 30, "only {failures} simulations saw a failed sync");
}

/// ENOSPC in the sync of a durable write loses other cached data.
#[test]
fn enospc_in_sync_counts_as_failed_sync() {
    let mut failures = 0;
    for seed in 0..60 {
        let faults = Faults { enospc: 60, sync_enospc: 60, ..Faults::default() };
        let mut sim = Simulation::new(SimConfig { cores: 1 + seed as usize % 2, faults, ..config(seed) });
        for _ in 0..3 {
            sim.run(600);
            failures += usize::from(sim.has_sync_failed());
            sim = sim.cut_power();
        }
    }
    assert!(failures > 20, "only {failures} simulations saw a failed sync");
}
