//! The state of an investigation: the numbers, the losses that are not claimed, and the findings.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Cleared, Finding, Kind, NotSeen};
use super::ledger::{Ledger, Part};
use super::times::Measured;
use super::trend::{self, Point};
use super::window::Window;
use crate::snapshot::{Series, Snapshot};
use crate::stage::{Side, Stage};
use crate::topology::Topology;

/// Least share of the lost time of a finding.
pub(super) const MIN_SHARE: f64 = 0.1;
/// Least part of a loss that a named thing covers.
pub(super) const MIN_COVERAGE: f64 = 0.6;
/// Least ratio of that part to its part of all operations.
pub(super) const MIN_CONCENTRATION: f64 = 1.5;

/// An investigation.
pub(super) struct Case<'a> {
    pub snapshot: &'a Snapshot,
    pub window: Window<'a>,
    pub topology: Topology<'a>,
    pub ledger: Ledger,
    /// Times of trace events; empty without a measurement.
    pub measured: &'a Measured,
    /// Positions in [`Window::series`], by volume.
    by_volume: BTreeMap<u32, Vec<usize>>,
    /// Volumes that no other volume contains, with operations.
    pub tops: BTreeSet<u32>,
    /// Volumes that a finding names.
    pub named: BTreeSet<u32>,
    pub findings: Vec<Finding>,
    pub cleared: Vec<Cleared>,
    pub not_seen: Vec<NotSeen>,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        window: Window<'a>,
        quantile: f64,
        measured: &'a Measured,
    ) -> Case<'a> {
        let topology = Topology::new(snapshot);
        let ledger = Ledger::new(window.series.iter().filter(|at| topology.is_top(at.volume)), quantile);
        let mut by_volume: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, series) in window.series.iter().enumerate() {
            by_volume.entry(series.volume).or_default().push(at);
        }
        let volumes = ledger.parts.iter().filter(|part| !matches!(part.side, Side::Stream | Side::Verbs));
        let tops = volumes.map(|part| part.volume).collect();
        let (named, findings, cleared, not_seen) = Default::default();
        Case {
            snapshot,
            window,
            topology,
            ledger,
            measured,
            by_volume,
            tops,
            named,
            findings,
            cleared,
            not_seen,
        }
    }

    /// Returns the numbers of a volume in the window.
    pub(super) fn series(&self, volume: u32) -> impl Iterator<Item = &Series> {
        self.by_volume.get(&volume).into_iter().flatten().map(|at| &self.window.series[*at])
    }

    /// Claims a fraction of a loss for a finding, and returns its share, if that is large enough.
    pub(super) fn claim(&mut self, fraction: f64, chosen: impl Fn(&Part, Stage) -> bool) -> Option<f64> {
        let share = self.ledger.share(self.ledger.lost(&chosen) * fraction.clamp(0.0, 1.0));
        (share >= MIN_SHARE).then(|| self.ledger.claim(fraction, chosen))
    }

    /// Returns the loss of chosen series in each step.
    pub(super) fn points(&self, chosen: impl Fn(&Series) -> bool) -> Vec<Point> {
        trend::points(&self.window.steps, &self.ledger.thresholds, chosen)
    }

    /// Returns the start of a problem, as text.
    pub(super) fn since(&self, points: &[Point]) -> Option<String> {
        trend::start_of(points, self.window.first).map(trend::to_rfc3339)
    }

    /// Returns `true` if there is a finding of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    pub(super) fn clear(&mut self, kind: Kind, text: String) {
        self.cleared.push(Cleared { kind, text });
    }

    pub(super) fn miss(&mut self, what: &str, needs: &str) {
        self.not_seen.push(NotSeen { what: what.to_owned(), needs: needs.to_owned() });
    }
}

/// Returns `true` if a thing covers enough of a loss, and more than its part of all operations.
pub(super) fn stands_out(part_of_loss: f64, part_of_operations: f64) -> bool {
    part_of_loss >= MIN_COVERAGE && part_of_loss >= part_of_operations * MIN_CONCENTRATION
}
