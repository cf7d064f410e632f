//! Figures of one run, and of several.

use std::io;

use serde::Serialize;
use serde_json::Value;

/// What one run reports.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Operations a second.
    pub iops: f64,
    /// Mean round trip in microseconds.
    pub mean_us: f64,
}

impl Sample {
    /// Reads the report of `floor --json` or of `isolane bench --json`.
    pub fn parse(report: &[u8]) -> io::Result<Sample> {
        let report: Value = serde_json::from_slice(report)?;
        let number = |value: &Value| value.as_f64().ok_or(io::ErrorKind::InvalidData);
        Ok(Sample { iops: number(&report["iops"])?, mean_us: number(&report["latency_us"]["mean"])? })
    }
}

/// Several runs of one side.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Operations a second.
    pub iops: Spread,
    /// Mean round trip in microseconds.
    pub mean_us: Spread,
    /// The runs themselves, in their order.
    pub samples: Vec<Sample>,
}

impl Measured {
    /// Sums samples up; there must be one at least.
    pub fn of(samples: Vec<Sample>) -> Measured {
        let iops = Spread::of(samples.iter().map(|sample| sample.iops).collect());
        let mean_us = Spread::of(samples.iter().map(|sample| sample.mean_us).collect());
        Measured { iops, mean_us, samples }
    }
}

/// The middle of several figures and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Spread {
        figures.sort_by(f64::total_cmp);
        let (middle, last) = (figures.len() / 2, figures.len() - 1);
        let median =
            if last % 2 == 0 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 };
        Spread { median, min: figures[0], max: figures[last] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 9.0]), Spread { median: 3.0, min: 1.0, max: 9.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 9.0]), Spread { median: 4.0, min: 1.0, max: 9.0 });
    }

    #[test]
    fn a_report_without_figures_is_an_error() {
        assert!(Sample::parse(br#"{"iops": 10.5, "latency_us": {"mean": 95}}"#).is_ok());
        assert!(Sample::parse(br#"{"iops": 10.5}"#).is_err());
        assert!(Sample::parse(b"no report").is_err());
    }
}
