//! Text of OpenMetrics 1.0.

use std::fmt::{Display, Write};

use isolane_observe::histogram::Histogram;

use super::format::{Format, Kind, Labels, Value, buckets};

/// Text that families are added to.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    /// The family of the next samples.
    family: (&'static str, Kind),
}

impl Format for Text {
    fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.family = (name, kind);
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        self.add(format_args!("# TYPE {name} {kind}\n"));
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            self.add(format_args!("# UNIT {name} {unit}\n"));
        }
        self.add(format_args!("# HELP {name} {help}\n"));
    }

    fn sample(&mut self, labels: Labels<'_>, value: Value) {
        self.line(self.family.1.suffix(), labels, value);
    }

    fn histogram(&mut self, labels: Labels<'_>, times: &Histogram) {
        for (border, count) in buckets(times) {
            self.bucket(labels, &Value::Seconds(border), count);
        }
        self.bucket(labels, &"+Inf", times.count());
        self.line("_count", labels, Value::Count(times.count()));
        self.line("_sum", labels, Value::Seconds(times.sum_ns()));
    }
}

impl Text {
    /// Returns the complete text.
    pub fn finish(mut self) -> String {
        self.text += "# EOF\n";
        self.text
    }

    fn bucket(&mut self, labels: Labels<'_>, border: &dyn Display, count: u64) {
        let le = ("le", border);
        let labels: Vec<(&str, &dyn Display)> = labels.iter().copied().chain([le]).collect();
        self.line("_bucket", &labels, Value::Count(count));
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: Value) {
        let name = self.family.0;
        self.add(format_args!("{name}{suffix}"));
        self.labels(labels);
        self.add(format_args!(" {value}\n"));
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

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::Resolution;

    use super::*;

    #[test]
    fn escapes_labels() {
        let mut text = Text::default();
        text.family("isolane_x", Kind::Counter, "Help.");
        text.sample(&[("a", &"q\"\\\n}"), ("b", &7)], Value::Count(3));
        text.sample(&[], Value::Count(4));
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
