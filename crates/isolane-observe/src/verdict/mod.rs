//! The verdict: which stage, volume, core, connection, or host causes the slow operations.
//!
//! [`explain`] takes a snapshot, and returns findings with evidence. The operations beyond a quantile are the tail; the
//! time above the median of each stage is their loss (`ledger`). Rules claim parts of the loss, the most specific
//! rules first, and a finding needs a tenth of it.
//!
//! | rules | findings |
//! |---|---|
//! | `devices`, `disks`, `common` | device, hot, shared-device, common |
//! | `cores` | core, turn |
//! | `hosts` | network, host, connection |
//! | `limits` | memory, conflict, flush, file-threads, caller |
//! | `queue_pairs` | host, path, hot: of queue pairs of verbs |
//!
//! A snapshot that has only connections and slow operations, as a target shows them to a host on another machine, has
//! separate rules (`slow_list`).
//!
//! Invariant: a snapshot of any content gives a verdict, in a time that depends on its length only.

mod both_ends;
mod case;
mod common;
mod cores;
mod devices;
mod disks;
mod document;
mod hosts;
mod ledger;
mod limits;
mod measured;
mod queue_pairs;
mod slow_list;
mod text;
mod times;
mod trend;
mod units;
mod window;

use std::collections::BTreeSet;

use crate::snapshot::Snapshot;
use crate::stage::Side;

use self::case::Case;
use self::document::finite;
use self::window::Window;

pub use self::both_ends::{BothEnds, join};
pub use self::document::{
    Cleared, Evidence, Finding, Grade, Kind, Neighbor, NotSeen, PeerTimes, Tail, VERSION, Verdict,
};
pub use self::text::to_text;
pub use self::times::{HANDLERS, Handler, Issuer, Measured, REQUESTS, RanTask, Requests, TASKS, Times};

/// Window and quantile of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Length of the window, in seconds.
    pub window_s: f64,
    /// Quantile at which the tail begins, from 0.5 to 1.
    pub quantile: f64,
    /// Way to get more operations, for people.
    pub longer: &'static str,
}

impl Default for Options {
    fn default() -> Options {
        Options { window_s: 10.0, quantile: 0.999, longer: "a longer --window" }
    }
}

/// Least loss of an operation of the tail, in nanoseconds, that needs a cause.
const MIN_LOSS_NS: f64 = 50_000.0;
/// Operations that a verdict needs.
const MIN_OPERATIONS: u64 = 200;

/// Returns the causes of the slow operations of the last seconds of a snapshot.
pub fn explain(snapshot: &Snapshot, options: Options) -> Verdict {
    explain_measured(snapshot, options, None)
}

/// Returns the causes as [`explain`] does, with the times that trace events measured during the window.
pub fn explain_measured(snapshot: &Snapshot, options: Options, measured: Option<&Measured>) -> Verdict {
    let seconds = if options.window_s.is_finite() { options.window_s.clamp(0.001, 1e9) } else { 10.0 };
    let quantile = if options.quantile.is_finite() { options.quantile.clamp(0.5, 1.0) } else { 0.999 };
    let window = Window::new(snapshot, seconds);
    if slow_list::is_all(&window) {
        return slow_list::explain(snapshot, &window, Options { quantile, ..options });
    }
    let without = Measured::default();
    let mut case = Case::new(snapshot, window, quantile, measured.unwrap_or(&without));
    let lost_us = case.ledger.lost_ns / 1000.0;
    let tail = Tail {
        quantile: case.ledger.quantile,
        requested_quantile: quantile,
        operations: case.ledger.tail as u64,
        us: case.ledger.tail_ns as f64 / 1000.0,
        median_us: case.ledger.median_ns as f64 / 1000.0,
        lost_us: finite(lost_us),
    };
    investigate(&mut case);
    clear(&mut case);
    report_missing(&mut case, options.longer);
    match measured {
        Some(_) => measured::report_missing(&mut case),
        None if case.ledger.operations > 0 => case
            .miss("time inside interrupt handlers", "root: sudo isolane explain --deep measures it for 2 s"),
        None => {}
    }
    let count_of = |side| {
        let parts = case.ledger.parts.iter().filter(|part| part.side == side);
        parts.map(|part| part.volume).collect::<BTreeSet<u32>>().len() as u64
    };
    let (streams, queue_pairs) = (count_of(Side::Stream), count_of(Side::Verbs));
    let mut findings = case.findings;
    findings.sort_by(|left, right| right.share.total_cmp(&left.share));
    Verdict {
        version: VERSION,
        window_s: case.window.seconds,
        operations: case.ledger.operations,
        volumes: case.tops.len() as u64,
        streams,
        queue_pairs,
        tail,
        findings,
        cleared: case.cleared,
        not_seen: case.not_seen,
        peers: hosts::peer_times(&case.window.connections),
        measured: measured.filter(|measured| measured.seconds > 0.0).cloned(),
    }
}

/// Applies the rules, the most specific ones first.
fn investigate(case: &mut Case<'_>) {
    if case.ledger.operations >= MIN_OPERATIONS {
        queue_pairs::find_slow_lanes(case);
    }
    if case.ledger.operations >= MIN_OPERATIONS && case.ledger.mean_loss_ns() >= MIN_LOSS_NS {
        queue_pairs::find_not_ready(case);
        devices::find(case);
        limits::find_waits(case);
        cores::find(case);
        hosts::find(case);
        disks::find(case);
        devices::find_others(case);
        limits::find_others(case);
        queue_pairs::find_others(case);
    } else {
        devices::report_background(case);
    }
    if case.ledger.operations >= MIN_OPERATIONS {
        hosts::find_late_answers(case);
        common::find(case);
    }
}

fn clear(case: &mut Case<'_>) {
    if case.ledger.operations == 0 {
        return;
    }
    hosts::clear(case);
    cores::clear(case);
    limits::clear(case);
}

/// Lists data that a better verdict needs.
fn report_missing(case: &mut Case<'_>, longer: &str) {
    if case.window.steps.is_empty() {
        case.miss("the last minutes in steps, start times, and correlations", "a program with a recorder");
    }
    if case.ledger.operations < MIN_OPERATIONS {
        case.miss("enough operations for a verdict", &format!("more load, or {longer}"));
    }
    if case.window.malformed > 0 {
        let what = format!("{} malformed series", case.window.malformed);
        case.miss(&what, "a snapshot of this version");
    }
    for (what, needs) in case.window.system.not_seen.clone() {
        case.miss(&what, &needs);
    }
}
