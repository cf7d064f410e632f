//! `--explain`: the stages of the operations, as this host has measured them.

use isolane_inspect::window;
use isolane_observe::snapshot::{Numbers, Series};
use isolane_observe::stage::Stage;
use serde::Serialize;

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
