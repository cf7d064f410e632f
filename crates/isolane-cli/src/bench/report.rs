//! Rates and the distribution of latencies, as JSON and as text.
//!
//! Invariant: the keys `iops`, `mib_per_s`, and `latency_us` (in microseconds) at the top of the JSON are stable.

use std::time::Duration;

use isolane_observe::verdict::BothEnds;
use serde::Serialize;

use super::explain::{self, OperationStages};
use super::placement::Placement;
use super::stats::{DirectionStats, Stats};
use super::verifier::VerifyReport;
use super::workload::Workload;

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Reads and writes together.
    #[serde(flatten)]
    pub total: Summary,
    /// Blocks that were read and checked, with `--verify`.
    pub verified_blocks: u64,
    /// Blocks with wrong contents, with `--verify`.
    pub verify_errors: u64,
    /// Successful operations.
    pub operations: u64,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Settings of the run.
    pub workload: Workload,
    /// Reads, if there are also writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Summary>,
    /// Writes, if there are also reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Summary>,
    /// The background load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<Summary>,
    /// Cores of threads and connections.
    pub placement: Placement,
    /// Stages of the operations, with `--explain`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<OperationStages>,
    /// Both ends, with `--explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both_ends: Option<BothEnds>,
}

/// The result of some operations.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Successful operations per second.
    pub iops: f64,
    /// Payload, in units of 1,048,576 bytes per second.
    pub mib_per_s: f64,
    /// Latencies in microseconds.
    pub latency_us: LatencyUs,
    /// Failed operations.
    pub errors: u64,
}

/// The distribution of latencies, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LatencyUs {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Maximum.
    pub max: f64,
}

impl Summary {
    fn new(stats: &DirectionStats, seconds: f64) -> Summary {
        let latencies = stats.latencies();
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        Summary {
            iops: stats.operations() as f64 / seconds,
            mib_per_s: stats.bytes as f64 / f64::from(1 << 20) / seconds,
            latency_us: LatencyUs {
                mean: latencies.mean() / 1000.0,
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p99_9: at(0.999),
                p99_99: at(0.9999),
                max: latencies.max() as f64 / 1000.0,
            },
            errors: stats.errors,
        }
    }

    fn to_text(&self) -> String {
        let LatencyUs { mean, p50, p90, p99, p99_9, p99_99, max } = self.latency_us;
        format!(
            "IOPS       {:>12.0}\nMiB/s      {:>12.1}\nlatency us    mean {mean:.1}   p50 {p50:.1}   p90 {p90:.1}   \
             p99 {p99:.1}   p99.9 {p99_9:.1}   p99.99 {p99_99:.1}   max {max:.1}\n",
            self.iops, self.mib_per_s
        )
    }
}

impl Report {
    /// Summarizes counters, with reads and writes also separate if there are both.
    pub fn new(
        stats: &Stats,
        background: Option<&Stats>,
        elapsed: Duration,
        verify: &VerifyReport,
        workload: Workload,
        placement: Placement,
    ) -> Report {
        let seconds = elapsed.as_secs_f64().max(f64::EPSILON);
        let total = stats.total();
        let mixed = stats.0.iter().all(|stats| stats.operations() + stats.errors > 0);
        let [read, write] = stats.0.each_ref().map(|stats| mixed.then(|| Summary::new(stats, seconds)));
        Report {
            total: Summary::new(&total, seconds),
            verified_blocks: verify.blocks_checked,
            verify_errors: verify.errors,
            operations: total.operations(),
            seconds,
            workload,
            read,
            write,
            background: background.map(|stats| Summary::new(&stats.total(), seconds)),
            placement,
            stages: Vec::new(),
            both_ends: None,
        }
    }

    /// Returns the text for people.
    pub fn to_text(&self) -> String {
        let (shape, choices) = (self.workload.shape(), self.workload.choices());
        let mut text = format!("{shape}, {:.1} s\n{choices}\n{}", self.seconds, self.total.to_text());
        for (name, part) in [("reads", &self.read), ("writes", &self.write), ("background", &self.background)]
        {
            if let Some(part) = part {
                text += &format!("{name}\n{}{}", part.to_text(), errors(part.errors));
            }
        }
        if self.verified_blocks > 0 {
            text +=
                &format!("verified   {:>12} blocks, {} wrong\n", self.verified_blocks, self.verify_errors);
        }
        text += &errors(self.total.errors);
        text += &self.stages.iter().map(OperationStages::to_text).collect::<String>();
        text + &self.both_ends.as_ref().map(explain::to_text).unwrap_or_default()
    }
}

fn errors(count: u64) -> String {
    if count > 0 { format!("errors     {count:>12}\n") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::access_pattern::Direction;
    use super::*;

    fn report() -> Report {
        let mut stats = Stats::new();
        for us in 1..=100 {
            stats.direction(Direction::Read).on_success(us * 1000, 4096);
        }
        let (workload, placement) =
            (crate::bench::workload::tests::workload(), Placement::new(Vec::new(), &[], None));
        Report::new(&stats, None, Duration::from_secs(2), &VerifyReport::default(), workload, placement)
    }

    #[test]
    fn rates_are_counts_per_second() {
        assert_eq!(report().total.iops, 50.0);
        assert_eq!(report().total.mib_per_s, 100.0 * 4096.0 / 1048576.0 / 2.0);
    }

    #[test]
    fn percentiles_have_three_digits() {
        let latency = report().total.latency_us;
        assert!((latency.p50 / 50.0 - 1.0).abs() < 0.002, "{latency:?}");
        assert!((latency.max / 100.0 - 1.0).abs() < 0.002, "{latency:?}");
    }

    #[test]
    fn json_has_stable_keys() {
        let json = serde_json::to_value(report()).unwrap();
        assert!(json["iops"].is_number() && json["mib_per_s"].is_number());
        for name in ["mean", "p50", "p90", "p99", "p99_9", "p99_99", "max"] {
            assert!(json["latency_us"][name].is_number(), "{name}");
        }
    }
}
