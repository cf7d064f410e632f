//! Text for people: names of peers and volumes, durations, rates, and times.
//!
//! Invariant: a shown name has no control character and no character that changes the direction of text.

use std::fmt::Write;

use isolane_observe::names::is_unprintable;

/// Returns a name with control characters and marks of the direction of text escaped, cut to `max` characters.
pub fn shown_name(name: &str, max: usize) -> String {
    let mut shown = String::new();
    for char in name.chars().take(max + 1) {
        if is_unprintable(char) {
            // Writing to a `String` does not fail.
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    if shown.chars().count() > max {
        shown = shown.chars().take(max.saturating_sub(1)).chain(['…']).collect();
    }
    shown
}

/// Escapes text for XML and HTML, in elements and in attributes with double quotes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // Not allowed in XML.
            _ if char.is_control() && char != '\n' => escaped.push('\u{fffd}'),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// Formats a duration with two or three digits and its unit: `640 ns`, `104 µs`, `1.3 ms`, `21 ms`, `2.0 s`.
pub fn duration(ns: u64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
    let ns = ns as f64;
    let unit = UNITS.iter().take_while(|(size, _)| ns >= size * 0.9995).last();
    let (size, name) = unit.copied().unwrap_or(UNITS[0]);
    let value = ns / size;
    if value < 9.95 && size > 1.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

/// Formats a number with three digits and a power of 1000: `950`, `12.3k`, `4.5M`.
pub fn amount(number: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
    let unit = UNITS.iter().take_while(|(size, _)| number >= size * 0.9995).last();
    let (size, name) = unit.copied().unwrap_or(UNITS[0]);
    let value = number / size;
    let digits = usize::from(value < 99.95 && (size > 1.0 || value < 9.95) && value.fract() > 0.0);
    format!("{value:.digits$}{name}")
}

/// Formats an integer with commas: `412,380`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time of the day in UTC, from milliseconds since 1970: `14:02:10`.
pub fn time_of_day(unix_ms: u64) -> String {
    let second = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Formats a date in UTC, from milliseconds since 1970: `2026-11-26`.
pub fn date(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "unknown date".to_owned(), |at| at.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_control_the_screen() {
        assert_eq!(shown_name("disk5", 8), "disk5");
        assert_eq!(shown_name("a\u{1b}[2J\n", 40), "a\\u{1b}[2J\\u{a}");
        assert_eq!(shown_name("a\u{202e}b", 40), "a\\u{202e}b");
        assert_eq!(shown_name("nqn.2014-08.org", 8), "nqn.201…");
        assert_eq!(shown_name(&"\u{1b}".repeat(1 << 16), 8).chars().count(), 8);
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<b a=\"1\">&'\u{0}"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;\u{fffd}");
    }

    #[test]
    fn durations_have_units() {
        let cases = [
            (0, "0 ns"),
            (640, "640 ns"),
            (999_900, "1.0 ms"),
            (1_500, "1.5 µs"),
            (104_000, "104 µs"),
            (21_400_000, "21 ms"),
            (2_000_000_000, "2.0 s"),
            (68_000_000_000, "68 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
        assert!(duration(u64::MAX).ends_with(" s"));
    }

    #[test]
    fn amounts_have_powers() {
        let cases =
            [(0.0, "0"), (0.5, "0.5"), (12.0, "12"), (950.4, "950"), (12_345.0, "12.3k"), (4.5e6, "4.5M")];
        for (number, text) in cases {
            assert_eq!(amount(number), text);
        }
        assert_eq!([grouped(0), grouped(999), grouped(412_380)], ["0", "999", "412,380"]);
    }

    #[test]
    fn times_are_in_utc() {
        assert_eq!(
            (date(1_795_701_730_000), time_of_day(1_795_701_730_000)),
            ("2026-11-26".into(), "14:02:10".into())
        );
        assert_eq!(date(u64::MAX), "unknown date");
    }
}
