//! What a run yields, and what several runs of it come to.

use std::collections::BTreeMap;

use serde_json::Value;

/// A kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations a second.
    Rate,
    /// Mean round trip.
    Mean,
    /// 99.99th percentile of round trips.
    Tail,
    /// MiB a second of what goes on beside the measured operations.
    Bulk,
    /// Processor time of the target.
    Processor,
    /// Resident memory of the target for each connection.
    Memory,
}

/// The figures of one run, by [`Figure::key`].
pub type Sample = BTreeMap<String, f64>;

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 6] =
        [Figure::Rate, Figure::Mean, Figure::Tail, Figure::Bulk, Figure::Processor, Figure::Memory];

    /// Its name in reports.
    pub fn key(self) -> &'static str {
        match self {
            Figure::Rate => "iops",
            Figure::Mean => "mean_us",
            Figure::Tail => "p99_99_us",
            Figure::Bulk => "bulk_mib_per_s",
            Figure::Processor => "processor_percent",
            Figure::Memory => "memory_kib",
        }
    }

    /// Its name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Rate => "rate",
            Figure::Mean => "mean",
            Figure::Tail => "p99.99",
            Figure::Bulk => "bulk",
            Figure::Processor => "processor",
            Figure::Memory => "memory per connection",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Figure::Rate | Figure::Bulk)
    }

    /// A value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Figure::Rate => format!("{} k/s", digits(value / 1e3)),
            Figure::Mean | Figure::Tail => format!("{} µs", digits(value)),
            Figure::Bulk => format!("{value:.0} MiB/s"),
            Figure::Processor => format!("{value:.2} % of a core"),
            Figure::Memory => format!("{value:.1} KiB"),
        }
    }
}

/// Three or four digits are more than a measurement holds.
fn digits(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 20.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The figures of a JSON report with `iops` and `latency_us`, as `floor` and `isolane bench` write it.
pub fn of_report(report: &Value) -> Option<Sample> {
    let latency = &report["latency_us"];
    let beside = &report["beside"]["mib_per_s"];
    let mut sample = Sample::new();
    sample.insert(Figure::Rate.key().into(), report["iops"].as_f64()?);
    sample.insert(Figure::Mean.key().into(), latency["mean"].as_f64()?);
    for (key, value) in [(Figure::Tail.key(), &latency["p99_99"]), (Figure::Bulk.key(), beside)] {
        sample.extend(value.as_f64().map(|value| (key.to_owned(), value)));
    }
    Some(sample)
}

/// The middle of several figures and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Sums up one figure of several samples; none if no sample has it.
    pub fn of(samples: &[Sample], figure: Figure) -> Option<Spread> {
        Spread::among(samples.iter().filter_map(|sample| sample.get(figure.key()).copied()).collect())
    }

    /// Sums up values; none if there is none.
    pub fn among(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        Some(Spread { median: (values[low] + values[high]) / 2.0, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().map(|value| Sample::from([("iops".to_owned(), *value)])).collect()
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let spread = Spread::of(&samples(&[4.0, 1.0, 2.0, 9.0]), Figure::Rate);
        assert_eq!(spread, Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        let spread = Spread::of(&samples(&[4.0, 1.0, 9.0]), Figure::Rate);
        assert_eq!(spread, Some(Spread { median: 4.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&samples(&[4.0]), Figure::Tail), None);
    }

    #[test]
    fn a_report_without_figures_is_none() {
        let parse = |text| of_report(&serde_json::from_str(text).unwrap());
        assert!(parse(r#"{"iops": 10.5, "latency_us": {"mean": 95}}"#).is_some());
        assert!(parse(r#"{"iops": 10.5}"#).is_none());
    }
}
