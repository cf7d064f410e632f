//! Messages of Prometheus (`io.prometheus.client`), each after its length, with native histograms.
//!
//! A native histogram of schema 3 has 8 buckets for each doubling of seconds, with equal ratios. The cells of a histogram
//! are equally long within a doubling of nanoseconds. The count of a cell is in the bucket of its middle, so a quantile
//! can be 9 % from the quantile of the histogram.

use isolane_observe::histogram::Histogram;
use prost::Message;

use super::format::{Format, Kind, Labels, Value, buckets};

/// Binary logarithm of the number of buckets for each doubling.
const SCHEMA: i32 = 3;
/// Durations up to here are in the bucket for zero: the first cell of a histogram.
const ZERO_SECONDS: f64 = 64e-9;

/// Messages of families.
#[derive(Debug, Default)]
pub struct Protobuf {
    bytes: Vec<u8>,
    kind: Kind,
    family: Family,
}

impl Format for Protobuf {
    fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.end_family();
        self.kind = kind;
        self.family.name = format!("{name}{}", kind.suffix());
        self.family.help = help.to_owned();
        self.family.kind = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge | Kind::Info => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
        .into();
    }

    fn sample(&mut self, labels: Labels<'_>, value: Value) {
        let value = Some(Number { value: value.to_f64() });
        let is_counter = self.kind == Kind::Counter;
        let (counter, gauge) = if is_counter { (value, None) } else { (None, value) };
        self.add(labels, Metric { counter, gauge, ..Metric::default() });
    }

    fn histogram(&mut self, labels: Labels<'_>, times: &Histogram) {
        let histogram = Some(NativeHistogram::from(times));
        self.add(labels, Metric { histogram, ..Metric::default() });
    }
}

impl Protobuf {
    /// Returns all messages.
    pub fn finish(mut self) -> Vec<u8> {
        self.end_family();
        self.bytes
    }

    fn add(&mut self, labels: Labels<'_>, metric: Metric) {
        let pair = |(name, value): &(&str, &dyn std::fmt::Display)| LabelPair {
            name: (*name).to_owned(),
            value: value.to_string(),
        };
        self.family.metrics.push(Metric { labels: labels.iter().map(pair).collect(), ..metric });
    }

    fn end_family(&mut self) {
        let family = std::mem::take(&mut self.family);
        if !family.metrics.is_empty() {
            self.bytes.extend(family.encode_length_delimited_to_vec());
        }
    }
}

impl From<&Histogram> for NativeHistogram {
    fn from(times: &Histogram) -> NativeHistogram {
        let mut native = NativeHistogram {
            count: times.count(),
            sum: Value::Seconds(times.sum_ns()).to_f64(),
            schema: SCHEMA,
            zero_threshold: ZERO_SECONDS,
            ..NativeHistogram::default()
        };
        native.classic.extend(
            buckets(times).map(|(border, cumulative)| Bucket {
                cumulative,
                upper_bound: Value::Seconds(border).to_f64(),
            }),
        );
        let (mut next, mut last) = (0, 0);
        for (index, count) in native_counts(times, &mut native.zero_count) {
            match native.spans.last_mut().filter(|_| index == next) {
                Some(span) => span.length += 1,
                None => native.spans.push(Span { offset: index - next, length: 1 }),
            }
            native.deltas.push(count.wrapping_sub(last));
            (next, last) = (index + 1, count);
        }
        native
    }
}

/// Returns the buckets that are not empty, with their counts, and adds the first cell to the bucket for zero.
fn native_counts(times: &Histogram, zero: &mut u64) -> Vec<(i32, i64)> {
    let mut counts: Vec<(i32, i64)> = Vec::new();
    for (cell, count) in times.cells() {
        if cell == 0 {
            *zero = count;
            continue;
        }
        let middle = Value::Seconds(times.resolution().middle_of(cell)).to_f64();
        let index = (middle.log2() * f64::from(1 << SCHEMA)).ceil() as i32;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match counts.last_mut().filter(|(last, _)| *last == index) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => counts.push((index, count)),
        }
    }
    counts
}

#[derive(Clone, PartialEq, Message)]
struct Family {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<Metric>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<NativeHistogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// A counter or a gauge.
#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, tag = "1")]
    value: f64,
}

/// A histogram with classic and native buckets.
#[derive(Clone, PartialEq, Message)]
struct NativeHistogram {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(double, tag = "2")]
    sum: f64,
    #[prost(message, repeated, tag = "3")]
    classic: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<Span>,
    /// Difference of each count to the one before.
    #[prost(sint64, repeated, tag = "13")]
    deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
}

/// Consecutive native buckets.
#[derive(Clone, PartialEq, Message)]
struct Span {
    /// Buckets between the end of the last span, or bucket 0, and this one.
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::Resolution;

    use super::*;

    fn decoded(mut bytes: &[u8]) -> Vec<Family> {
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(Family::decode_length_delimited(&mut bytes).unwrap());
        }
        families
    }

    /// Returns the upper borders of native buckets in seconds, and their counts.
    fn borders(native: &NativeHistogram) -> Vec<(f64, i64)> {
        let (mut index, mut count, mut deltas) = (0, 0, native.deltas.iter());
        let mut borders = Vec::new();
        for span in &native.spans {
            index += span.offset;
            for _ in 0..span.length {
                count += deltas.next().unwrap();
                borders.push((2_f64.powf(f64::from(index) / 8.0), count));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        borders
    }

    #[test]
    fn families_have_names_of_their_samples() {
        let mut protobuf = Protobuf::default();
        protobuf.family("isolane_x", Kind::Counter, "Help.");
        protobuf.sample(&[("a", &"q\"\n")], Value::Count(3));
        protobuf.sample(&[], Value::Seconds(1_500_000_000));
        protobuf.family("isolane_none", Kind::Gauge, "Without samples.");
        protobuf.family("isolane_build", Kind::Info, "Help.");
        protobuf.sample(&[], Value::Count(1));
        let families = decoded(&protobuf.finish());
        let [counter, info] = &families[..] else { panic!("{families:?}") };
        assert_eq!((counter.name.as_str(), counter.kind()), ("isolane_x_total", MetricType::Counter));
        assert_eq!((info.name.as_str(), info.kind()), ("isolane_build_info", MetricType::Gauge));
        assert_eq!(counter.metrics[0].labels[0].value, "q\"\n");
        assert_eq!(counter.metrics[1].counter, Some(Number { value: 1.5 }));
        assert_eq!(info.metrics[0].gauge, Some(Number { value: 1.0 }));
    }

    #[test]
    fn each_cell_is_in_the_bucket_of_its_middle() {
        for resolution in [Resolution::Four, Resolution::Eight] {
            for cell in 1..resolution.cells() {
                let mut times = Histogram::new(resolution);
                times.record(resolution.start_of(cell), 5);
                let native = NativeHistogram::from(&times);
                let [(border, 5)] = borders(&native)[..] else { panic!("{native:?}") };
                let middle = resolution.middle_of(cell) as f64 / 1e9;
                assert!(middle <= border * 1.0001 && border < middle * 1.0906, "{border} for {middle}");
            }
        }
    }

    #[test]
    fn buckets_have_all_operations() {
        let mut times = Histogram::new(Resolution::Eight);
        for (ns, count) in [(3, 2), (64, 7), (70, 1), (1000, 5), (1100, 3), (5_000_000, 4), (u64::MAX, 1)] {
            times.record(ns, count);
        }
        let native = NativeHistogram::from(&times);
        assert_eq!((native.count, native.zero_count, native.schema), (23, 2, SCHEMA));
        assert_eq!(borders(&native).iter().map(|(_, count)| count).sum::<i64>(), 21);
        assert_eq!(native.classic[1], Bucket { cumulative: 18, upper_bound: 2.048e-6 });
        let empty = NativeHistogram::from(&Histogram::new(Resolution::Eight));
        assert!(empty.spans.is_empty() && empty.zero_threshold > 0.0, "it is a native one");
    }
}
