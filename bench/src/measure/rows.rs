//! The rows of Isolane beside the floor and its peers.

use super::entrant::{
    Entrant, FLOOR, ISOLANE, NBDKIT, QEMU_NBD, SPDK, SPDK_HOST, SPDK_TARGET, SPDK_URING, TGT,
};
use super::figures::Figure;
use super::row::{Goal, Group, Limit, Load, Row, Rw};
use super::switches::SWITCHES;

/// The goals of a rate: to the floor, to SPDK, and of each pair of ours and SPDK's programs to SPDK's own
/// pair.
macro_rules! rate_goals {
    ($floor:literal, $spdk:literal) => {
        [
            goal(Figure::Rate, "isolane", &["floor"], Limit::AtLeast($floor)),
            goal(Figure::Rate, "isolane", ALL_SPDK, Limit::AtLeast($spdk)),
            goal(Figure::Rate, "spdk-host", ALL_SPDK, Limit::AtLeast(1.0)),
            goal(Figure::Rate, "spdk-target", ALL_SPDK, Limit::AtLeast(1.0)),
        ]
    };
}

/// All rows.
pub fn rows() -> Vec<Row> {
    CORE.iter().chain(SWITCHES).copied().collect()
}

const CORE: &[Row] = &[
    round_trip("r4k-qd1", "4 KiB random read, QD1", Rw::Read),
    round_trip("w4k-qd1", "4 KiB in-capsule write, QD1", Rw::Write),
    rate("r4k-qd8", "4 KiB random read, QD8", reads(8, 1), &rate_goals!(0.90, 1.35)),
    rate("r4k-qd32", "4 KiB random read, QD32", reads(32, 1), &rate_goals!(0.90, 1.35)),
    rate("r4k-qd128", "4 KiB random read, QD128", reads(128, 1), &rate_goals!(0.90, 1.35)),
    rate("w4k-qd32", "4 KiB random write, QD32", load(Rw::Write, 4 << 10, 32, 1), &rate_goals!(0.80, 1.6)),
    rate("r4k-4x8", "4 KiB random read, 4 connections x QD8", reads(8, 4), &rate_goals!(0.85, 1.85)),
    rate("r4k-16x1", "4 KiB random read, 16 connections x QD1", reads(1, 16), &rate_goals!(0.95, 1.25)),
    rate(
        "r128k-qd16",
        "128 KiB random read, QD16",
        load(Rw::Read, 128 << 10, 16, 1),
        &rate_goals!(0.97, 1.0),
    ),
    rate(
        "w128k-qd16",
        "128 KiB random write, QD16",
        load(Rw::Write, 128 << 10, 16, 1),
        &rate_goals!(0.97, 1.0),
    ),
];

const ENTRANTS: &[Entrant] =
    &[FLOOR, ISOLANE, SPDK, SPDK_URING, SPDK_HOST, SPDK_TARGET, NBDKIT, QEMU_NBD, TGT];

/// Both sockets of SPDK; the better one counts.
pub const ALL_SPDK: &[&str] = &["spdk", "spdk-uring"];

const fn rate(name: &'static str, title: &'static str, load: Load, goals: &'static [Goal]) -> Row {
    Row { name, title, group: Group::Core, load, figure: Figure::Rate, entrants: ENTRANTS, goals }
}

const fn round_trip(name: &'static str, title: &'static str, rw: Rw) -> Row {
    let load = load(rw, 4 << 10, 1, 1);
    Row {
        name,
        title,
        group: Group::Core,
        load,
        figure: Figure::Mean,
        entrants: ENTRANTS,
        goals: &ROUND_TRIP_GOALS,
    }
}

const ROUND_TRIP_GOALS: [Goal; 4] = [
    goal(Figure::Mean, "isolane", &["floor"], Limit::AtMost(1.08)),
    goal(Figure::Mean, "isolane", ALL_SPDK, Limit::AtMost(0.83)),
    goal(Figure::Mean, "spdk-host", ALL_SPDK, Limit::AtMost(1.0)),
    goal(Figure::Mean, "spdk-target", ALL_SPDK, Limit::AtMost(1.0)),
];

/// A goal.
pub const fn goal(figure: Figure, of: &'static str, to: &'static [&'static str], limit: Limit) -> Goal {
    Goal { figure, of, to, limit }
}

/// A load.
pub const fn load(rw: Rw, block_bytes: u32, depth: u16, connections: u16) -> Load {
    Load { rw, block_bytes, depth, connections }
}

/// Random reads of 4 KiB.
pub const fn reads(depth: u16, connections: u16) -> Load {
    load(Rw::Read, 4 << 10, depth, connections)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_goals_name_entrants_of_their_row() {
        let mut names = BTreeSet::new();
        for row in rows() {
            assert!(names.insert(row.name), "{} is there twice", row.name);
            let entrants: Vec<_> = row.entrants.iter().map(|entrant| entrant.name).collect();
            for goal in row.goals {
                assert!(entrants.contains(&goal.of), "{}: {}", row.name, goal.of);
                let is_known = |name: &&str| entrants.contains(name);
                assert!(goal.to.iter().any(is_known), "{}: {:?}", row.name, goal.to);
            }
        }
    }
}
