//! Numbers and names as text for people.

use crate::names;

/// Longest name in text, in characters.
const MAX_NAME: usize = 120;

/// Returns a duration with three digits.
pub(super) fn show_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "us"),
        ns => (ns, "ns"),
    };
    format!("{} {unit}", show_digits(value))
}

/// Returns a number with three digits.
pub(super) fn show_digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Returns a share as percent.
pub(super) fn show_percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

/// Returns a number with a comma between thousands.
pub(super) fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a quantile as in `p99.9`.
pub(super) fn show_quantile(quantile: f64) -> String {
    let percent = format!("{:.3}", quantile * 100.0);
    format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
}

/// Returns a text without control characters, and shortened.
pub(super) fn escape(text: &str) -> String {
    names::escape(text, MAX_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_three_digits() {
        assert_eq!(show_ns(21_400_000.0), "21.4 ms");
        assert_eq!(show_ns(310_000.0), "310 us");
        assert_eq!(show_ns(3.0), "3.00 ns");
        assert_eq!(show_count(412_380), "412,380");
        assert_eq!(show_count(7), "7");
        assert_eq!((show_quantile(0.999).as_str(), show_quantile(0.5).as_str()), ("p99.9", "p50"));
        assert_eq!((show_percent(0.943).as_str(), show_percent(0.0002).as_str()), ("94 %", "0.02 %"));
    }

    #[test]
    fn escapes_control_characters() {
        assert_eq!(escape("a\u{1b}[31mb\n\u{61c}"), "a\\u{1b}[31mb\\u{a}\\u{61c}");
        assert_eq!(escape(&"x".repeat(100_000)).chars().count(), MAX_NAME + 1);
    }
}
