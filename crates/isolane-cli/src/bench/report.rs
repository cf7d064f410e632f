//! What a run of `bench` is summed up to: rates and the distribution of latencies, as JSON and as text.
//!
//! Latencies are shown in microseconds. The JSON's top level is a contract: `iops`, `mib_per_s` and
//! `latency_us` stay as they are.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::place::Placement;
use super::workload::Workload;

/// What a run is summed up to.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Completed operations a second.
    pub iops: f64,
    /// Payload, in units of 1,048,576 bytes a second.
    pub mib_per_s: f64,
    /// Latencies in microseconds.
    pub latency_us: LatencyUs,
    /// Operations that ended with an error.
    pub errors: u64,
    /// Blocks that were read and judged, with `--verify`.
    pub verified_blocks: u64,
    /// Blocks that read back wrong, with `--verify`.
    pub verify_errors: u64,
    /// Completed operations.
    pub operations: u64,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// How it was asked for.
    pub workload: Workload,
    /// Reads alone, if there are writes as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<StreamReport>,
    /// Writes alone, if there are reads as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<StreamReport>,
    /// What went on beside it, with `--beside`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<StreamReport>,
    /// Where it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// The result of some of the operations: reads, writes, or those of `--beside`.
#[derive(Debug, Clone, Serialize)]
pub struct StreamReport {
    /// Completed operations a second.
    pub iops: f64,
    /// Payload, in units of 1,048,576 bytes a second.
    pub mib_per_s: f64,
    /// Latencies in microseconds.
    pub latency_us: LatencyUs,
    /// Operations that ended with an error.
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
    /// Largest seen.
    pub max: f64,
}

impl LatencyUs {
    /// That of latencies in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        LatencyUs {
            mean: histogram.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: histogram.max() as f64 / 1000.0,
        }
    }

    fn to_text(self) -> String {
        let LatencyUs { mean, p50, p90, p99, p99_9, p99_99, max } = self;
        format!(
            "latency us    mean {mean:.1}   p50 {p50:.1}   p90 {p90:.1}   p99 {p99:.1}   p99.9 {p99_9:.1}   \
             p99.99 {p99_99:.1}   max {max:.1}\n"
        )
    }
}

impl Report {
    /// The table that a person reads.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}, {:.1} s\n{}\nIOPS       {:>12.0}\nMiB/s      {:>12.1}\n{}",
            self.workload.shape(),
            self.seconds,
            self.workload.choices(),
            self.iops,
            self.mib_per_s,
            self.latency_us.to_text(),
        );
        for (name, part) in [("reads", &self.read), ("writes", &self.write), ("beside it", &self.beside)] {
            text += &part.as_ref().map_or(String::new(), |part| part.to_text(name));
        }
        if self.verified_blocks > 0 {
            text.push_str(&format!(
                "verified   {:>12} blocks, {} wrong\n",
                self.verified_blocks, self.verify_errors
            ));
        }
        if self.errors > 0 {
            text.push_str(&format!("errors     {:>12}\n", self.errors));
        }
        text
    }
}

impl StreamReport {
    fn to_text(&self, name: &str) -> String {
        let StreamReport { iops, mib_per_s, latency_us, errors } = self;
        let latency = latency_us.to_text();
        let text = format!("{name}\nIOPS       {iops:>12.0}\nMiB/s      {mib_per_s:>12.1}\n{latency}");
        if *errors > 0 { format!("{text}errors     {errors:>12}\n") } else { text }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::Direction;
    use super::super::tally::Tallies;
    use super::super::verifier::Verdict;
    use super::*;

    fn report() -> Report {
        let mut tallies = Tallies::new().unwrap();
        for us in 1..=100 {
            tallies.of(Direction::Read).completed(us * 1000, 4096);
        }
        let workload = crate::bench::workload::tests::workload();
        tallies.report(Duration::from_secs(2), &Verdict::default(), workload).unwrap()
    }

    #[test]
    fn rates_are_counts_over_time() {
        assert_eq!(report().iops, 50.0);
        assert_eq!(report().mib_per_s, 100.0 * 4096.0 / 1048576.0 / 2.0);
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let latency = report().latency_us;
        assert!((latency.p50 / 50.0 - 1.0).abs() < 0.002, "{latency:?}");
        assert!((latency.max / 100.0 - 1.0).abs() < 0.002, "{latency:?}");
    }

    #[test]
    fn the_json_has_the_promised_top_level() {
        let json = serde_json::to_value(report()).unwrap();
        assert!(json["iops"].is_number() && json["mib_per_s"].is_number());
        for name in ["mean", "p50", "p90", "p99", "p99_9", "p99_99", "max"] {
            assert!(json["latency_us"][name].is_number(), "{name}");
        }
    }
}
