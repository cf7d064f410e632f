//! Interface of the formats in which metrics are written.

use std::fmt::{self, Display};

use isolane_observe::histogram::Histogram;

/// Writer of families, one after the other.
pub trait Format {
    /// Starts a family. The name lacks `_total` of a counter, and `_info` of an information.
    fn family(&mut self, name: &'static str, kind: Kind, help: &'static str);

    /// Adds a number to the family.
    fn sample(&mut self, labels: Labels<'_>, value: Value);

    /// Adds a histogram to the family.
    fn histogram(&mut self, labels: Labels<'_>, times: &Histogram);
}

/// Labels of a sample, in their order.
pub type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

/// Kind of a family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl Kind {
    /// Returns the end of the names of samples.
    pub fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }
}

/// A number. It is shown without rounding.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    /// Number of things.
    Count(u64),
    /// Nanoseconds, shown in seconds.
    Seconds(u64),
    /// A ratio.
    Ratio(f64),
}

impl Value {
    /// Returns the nearest floating-point number.
    pub fn to_f64(self) -> f64 {
        match self {
            Value::Count(count) => count as f64,
            Value::Seconds(ns) => ns as f64 / 1e9,
            Value::Ratio(ratio) => ratio,
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = match self {
            Value::Count(count) => return write!(f, "{count}"),
            Value::Ratio(ratio) => return write!(f, "{ratio}"),
            Value::Seconds(ns) => ns,
        };
        let (seconds, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
        let digits = format!("{ns:09}");
        let digits = digits.trim_end_matches('0');
        write!(f, "{seconds}.{}", if digits.is_empty() { "0" } else { digits })
    }
}

/// Binary logarithm of the first and the last border of buckets, in nanoseconds: 1.024 us and 68.7 s.
const BORDERS: std::ops::RangeInclusive<u32> = 10..=36;

/// Returns the borders of classic buckets in nanoseconds, and the number of operations below each. They are exact.
pub fn buckets(times: &Histogram) -> impl Iterator<Item = (u64, u64)> {
    let resolution = times.resolution();
    let mut cells = times.cells().peekable();
    let mut count = 0_u64;
    BORDERS.map(move |border| {
        let border = 1_u64 << border;
        while let Some((_, more)) = cells.next_if(|(cell, _)| resolution.start_of(cell + 1) <= border) {
            count = count.saturating_add(more);
        }
        (border, count)
    })
}
