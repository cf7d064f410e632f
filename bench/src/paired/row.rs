//! The named workloads of the tables.

use crate::floor::Work;

/// One line of the tables: the same traffic for the floor and for Isolane.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Short name.
    pub name: &'static str,
    /// What it carries.
    pub work: Work,
    /// Operations under way on each connection.
    pub depth: u16,
    /// Connections, all driven by one core on each side.
    pub connections: u16,
}

impl Row {
    /// Looks a row up by its name.
    pub fn named(name: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.name == name)
    }

    /// Whether the round trip, not the rate, is what this row is about.
    pub fn is_latency(&self) -> bool {
        self.depth == 1 && self.connections == 1
    }

    /// The arguments of `isolane bench` for the same traffic.
    pub fn bench_arguments(&self) -> [String; 8] {
        let (rw, bs) = match self.work {
            Work::Read4k => ("randread", "4k"),
            Work::Write4k => ("randwrite", "4k"),
            Work::Read128k => ("randread", "128k"),
            Work::Write128k => ("randwrite", "128k"),
        };
        let (depth, lanes) = (self.depth.to_string(), self.connections.to_string());
        ["--rw", rw, "--bs", bs, "--depth", &depth, "--lanes", &lanes].map(str::to_owned)
    }
}

/// All rows.
pub const ROWS: &[Row] = &[
    row("r4k-qd1", Work::Read4k, 1, 1),
    row("w4k-qd1", Work::Write4k, 1, 1),
    row("r4k-qd8", Work::Read4k, 8, 1),
    row("r4k-qd32", Work::Read4k, 32, 1),
    row("r4k-qd128", Work::Read4k, 128, 1),
    row("w4k-qd32", Work::Write4k, 32, 1),
    row("r4k-4x8", Work::Read4k, 8, 4),
    row("r4k-16x1", Work::Read4k, 1, 16),
    row("r128k-qd16", Work::Read128k, 16, 1),
    row("w128k-qd16", Work::Write128k, 16, 1),
];

const fn row(name: &'static str, work: Work, depth: u16, connections: u16) -> Row {
    Row { name, work, depth, connections }
}
