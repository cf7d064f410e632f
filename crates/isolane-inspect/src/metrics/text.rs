//! Text of OpenMetrics 1.0.

use std::fmt::{Display, Write};

use isolane_observe::histogram::Histogram;

/// Binary logarithm of the first and the last border of buckets, in nanoseconds: 1.024 us and 68.7 s.
const BORDERS: std::ops::RangeInclusive<u32> = 10..=36;

/// Kind of a family.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// Text that families are added to.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    /// The family of the next samples.
    name: &'static str,
}

/// Labels of a sample, in their order.
pub type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

impl Text {
    /// Starts a family. The name of a counter is without `_total`.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        self.name = name;
        self.add(format_args!("# TYPE {name} {kind}\n"));
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            self.add(format_args!("# UNIT {name} {unit}\n"));
        }
        self.add(format_args!("# HELP {name} {help}\n"));
    }

    /// Adds a sample whose name is that of the family with a suffix.
    pub fn sample(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let name = self.name;
        self.add(format_args!("{name}{suffix}"));
        self.labels(labels);
        self.add(format_args!(" {value}\n"));
    }

    /// Adds the samples of a histogram. Counts up to a power of two are exact.
    pub fn histogram(&mut self, labels: Labels<'_>, times: &Histogram) {
        let resolution = times.resolution();
        let mut cells = times.cells().peekable();
        let mut count = 0_u64;
        for border in BORDERS {
            let border = 1_u64 << border;
            while let Some((_, more)) = cells.next_if(|(cell, _)| resolution.start_of(cell + 1) <= border) {
                count = count.saturating_add(more);
            }
            self.bucket(labels, &Seconds(border), count);
        }
        self.bucket(labels, &"+Inf", times.count());
        self.sample("_count", labels, times.count());
        self.sample("_sum", labels, Seconds(times.sum_ns()));
    }

    /// Returns the complete text.
    pub fn finish(mut self) -> String {
        self.text += "# EOF\n";
        self.text
    }

    fn bucket(&mut self, labels: Labels<'_>, border: &dyn Display, count: u64) {
        let le = ("le", border);
        let labels: Vec<(&str, &dyn Display)> = labels.iter().copied().chain([le]).collect();
        self.sample("_bucket", &labels, count);
    }

    fn labels(&mut self, labels: Labels<'_>) {
        for (at, (name, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.add(format_args!("{name}=\""));
            let value = value.to_string();
            value.chars().for_each(|char| match char {
                '\\' => self.text += "\\\\",
                '"' => self.text += "\\\"",
                '\n' => self.text += "\\n",
                char => self.text.push(char),
            });
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // A string accepts all text.
        let _ = self.text.write_fmt(text);
    }
}

/// Nanoseconds, shown in seconds without rounding.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, ns) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let digits = format!("{ns:09}");
        let digits = digits.trim_end_matches('0');
        write!(f, "{seconds}.{}", if digits.is_empty() { "0" } else { digits })
    }
}

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::Resolution;

    use super::*;

    #[test]
    fn escapes_labels() {
        let mut text = Text::default();
        text.family("isolane_x", Kind::Counter, "Help.");
        text.sample("_total", &[("a", &"q\"\\\n}"), ("b", &7)], 3);
        text.sample("_total", &[], 4);
        assert_eq!(
            text.finish(),
            "# TYPE isolane_x counter\n# HELP isolane_x Help.\nisolane_x_total{a=\"q\\\"\\\\\\n}\",b=\"7\"} \
             3\nisolane_x_total 4\n# EOF\n"
        );
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut times = Histogram::new(Resolution::Eight);
        times.record(500, 1);
        times.record(1500, 2);
        times.record(100_000_000_000, 3);
        let mut text = Text::default();
        text.family("isolane_io_seconds", Kind::Histogram, "Help.");
        text.histogram(&[("op", &"read")], &times);
        let text = text.finish();
        assert!(text.contains("# UNIT isolane_io_seconds seconds\n"), "{text}");
        for line in [
            "isolane_io_seconds_bucket{op=\"read\",le=\"0.000001024\"} 1",
            "isolane_io_seconds_bucket{op=\"read\",le=\"0.000002048\"} 3",
            "isolane_io_seconds_bucket{op=\"read\",le=\"68.719476736\"} 3",
            "isolane_io_seconds_bucket{op=\"read\",le=\"+Inf\"} 6",
            "isolane_io_seconds_count{op=\"read\"} 6",
            "isolane_io_seconds_sum{op=\"read\"} 300.0000035",
        ] {
            assert!(text.lines().any(|at| at == line), "{line} in {text}");
        }
        assert_eq!(text.matches("_bucket").count(), 28);
    }
}
