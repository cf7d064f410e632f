//! A line of the tables: a load, its entrants, and what is asked of them.

use super::entrant::Entrant;
use super::figures::Figure;
use crate::floor::Work;

/// One line of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Short name, as on the command line.
    pub name: &'static str,
    /// What a reader sees.
    pub title: &'static str,
    /// The table it belongs to.
    pub group: Group,
    /// What every entrant carries.
    pub load: Load,
    /// What the row is about.
    pub figure: Figure,
    /// Who carries it, in the order in which samples are taken.
    pub entrants: &'static [Entrant],
    /// Ratios that are asked for.
    pub goals: &'static [Goal],
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Isolane beside the floor and its peers.
    Core,
    /// One thing changed about Isolane, or about its surroundings.
    Switch,
}

/// Traffic.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Direction.
    pub rw: Rw,
    /// Bytes of one operation.
    pub block_bytes: u32,
    /// Operations under way on each connection.
    pub depth: u16,
    /// Connections, all driven by one core on each side.
    pub connections: u16,
}

/// Direction of random operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rw {
    /// From the target.
    Read,
    /// To the target.
    Write,
}

/// A ratio that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Of which figure.
    pub figure: Figure,
    /// The entrant that is judged.
    pub of: &'static str,
    /// What it is divided by: the best of these that were measured.
    pub to: &'static [&'static str],
    /// Where the ratio should be.
    pub limit: Limit,
}

/// Where a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// At this or above.
    AtLeast(f64),
    /// At this or below.
    AtMost(f64),
}

impl Limit {
    /// Whether a ratio is where it should be.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Limit::AtLeast(least) => ratio >= least,
            Limit::AtMost(most) => ratio <= most,
        }
    }
}

impl Load {
    /// The shape of the floor's traffic for this load, if it has one.
    pub fn floor_work(&self) -> Option<Work> {
        match (self.rw, self.block_bytes) {
            (Rw::Read, 4096) => Some(Work::Read4k),
            (Rw::Write, 4096) => Some(Work::Write4k),
            (Rw::Read, 131_072) => Some(Work::Read128k),
            (Rw::Write, 131_072) => Some(Work::Write128k),
            _ => None,
        }
    }

    /// The word of `isolane bench`, fio and SPDK's perf for random operations in this direction.
    pub fn pattern(&self) -> &'static str {
        match self.rw {
            Rw::Read => "randread",
            Rw::Write => "randwrite",
        }
    }

    /// Operations under way on all connections together.
    pub fn under_way(&self) -> u32 {
        u32::from(self.depth) * u32::from(self.connections)
    }
}
