//! `--explain`: the stages of the operations at both ends, and one verdict.
//!
//! The host measures its own stages. An Isolane target shows its part, before and after the measurement, to the
//! host with the same identity.

use std::collections::BTreeSet;
use std::time::Duration;

use isolane_host::{ConnectionStatus, Options, Uri};
use isolane_inspect::window;
use isolane_observe::snapshot::{Connection, Numbers, Series, Snapshot};
use isolane_observe::stage::Stage;
use isolane_observe::verdict::{self, BothEnds, NotSeen, join};
use serde::Serialize;

use crate::remote::{Page, RemoteTarget, difference, not_isolane};

/// Time after which both ends have listed the slow operations of the measurement: the end of their second, and a tick.
pub const PUBLISHED_AFTER: Duration = Duration::from_millis(1500);

/// A measurement in progress, as both ends see it.
#[derive(Debug)]
pub struct Observation {
    target: RemoteTarget,
    host: Snapshot,
    /// The target's numbers, or the reason why they are missing.
    page: Result<Box<Snapshot>, String>,
}

impl Observation {
    /// Begins before the measurement; `host` returns the numbers of the host.
    pub fn begin(uri: &Uri, options: Options, host: impl FnOnce() -> Snapshot) -> Observation {
        let target = RemoteTarget::new(uri.clone(), options);
        let page = read(&target);
        Observation { target, host: host(), page }
    }

    /// Returns the numbers of the host since the beginning.
    pub fn numbers(&self, later: &Snapshot) -> Numbers {
        later.numbers.since(&self.host.numbers)
    }

    /// Ends at least [`PUBLISHED_AFTER`] after the measurement, with the numbers and connections of the host.
    pub fn end(self, mut host: Snapshot, own: &[ConnectionStatus]) -> BothEnds {
        host.steps = vec![difference(&self.host, &host)];
        let earlier = if own.is_empty() { Err(String::from(NO_CONNECTIONS)) } else { self.page };
        let target = earlier.and_then(|earlier| {
            let mut later = read(&self.target)?;
            later.steps = vec![difference(&earlier, &later)];
            let own: BTreeSet<_> = own.iter().map(|at| (at.cntlid, at.qid)).collect();
            let is_own = |at: &Connection| own.contains(&(at.controller, at.queue));
            later.numbers.connections.retain(is_own);
            later.steps.iter_mut().for_each(|step| step.numbers.connections.retain(is_own));
            Ok(later)
        });
        let window_s = host.steps[0].length_ms as f64 / 1000.0;
        let longer = "a longer --time";
        let options = verdict::Options { window_s, longer, ..verdict::Options::default() };
        match target {
            Ok(target) => join(&host, &target, options),
            Err(reason) => {
                let mut ends = join(&host, &Snapshot::default(), options);
                let needs = String::from("an Isolane target that this host reaches without an engine");
                ends.verdict.not_seen.push(NotSeen { what: format!("the target: {reason}"), needs });
                ends
            }
        }
    }
}

const NO_CONNECTIONS: &str = "this program has no connections to the target";

fn read(target: &RemoteTarget) -> Result<Box<Snapshot>, String> {
    match target.read() {
        Ok(Page::Isolane { snapshot, .. }) => Ok(snapshot),
        Ok(Page::Other { address, model }) => Err(not_isolane(address, &model)),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Returns the text about both ends.
pub fn to_text(ends: &BothEnds) -> String {
    let BothEnds { operations, host_us, network_us, target_us, target_stages_us, slow, matched, verdict } =
        ends;
    let mut text = String::new();
    if *operations > 0 {
        text += &format!(
            "target stages of {operations} operations, us\n{:<10} {:>9} {:>6}\n",
            "", "mean", "share"
        );
        for (stage, us) in target_stages_us {
            text += &format!("{:<10} {us:>9.1} {:>4.0} %\n", stage.name(), us / target_us.max(0.001) * 100.0);
        }
        text += &format!("mean us    host {host_us:.1} + network {network_us:.1} + target {target_us:.1}\n");
        text += &format!(
            "both ends  {matched} of {slow} slow operations of this host are listed by the target\n"
        );
    }
    text + &verdict::to_text(verdict)
}

/// Stages of all operations of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct OperationStages {
    /// Kind of operation.
    pub operation: &'static str,
    /// Number of operations.
    pub operations: u64,
    /// Stages in their order; stages that took no time are left out.
    pub stages: Vec<StageUs>,
}

/// Times of one stage, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct StageUs {
    /// The stage.
    pub stage: &'static str,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Share of the stage in the time of all operations.
    pub share: f64,
}

impl OperationStages {
    /// Returns the stages of each kind of operation.
    pub fn list(numbers: &Numbers) -> Vec<OperationStages> {
        let sums = window::by_operation(numbers);
        sums.iter().map(|((_, operation), sum)| OperationStages::new(operation.name(), sum)).collect()
    }

    fn new(operation: &'static str, sum: &Series) -> OperationStages {
        let used = |stage: &&Stage| sum.stage(**stage).is_some();
        let stages = sum.side.stages().iter().filter(used).map(|stage| {
            let us = |quantile| sum.stage_quantile(*stage, quantile) as f64 / 1000.0;
            let share = sum.stage_sum_ns(*stage) as f64 / sum.total.sum_ns().max(1) as f64;
            StageUs { stage: stage.name(), p50: us(0.5), p99: us(0.99), p99_9: us(0.999), share }
        });
        OperationStages { operation, operations: sum.total.count(), stages: stages.collect() }
    }

    /// Returns the text for people.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} stages of {} operations, us\n{:<10} {:>9} {:>9} {:>9} {:>6}\n",
            self.operation, self.operations, "", "p50", "p99", "p99.9", "share"
        );
        for StageUs { stage, p50, p99, p99_9, share } in &self.stages {
            text += &format!("{stage:<10} {p50:>9.1} {p99:>9.1} {p99_9:>9.1} {:>4.0} %\n", share * 100.0);
        }
        text
    }
}
