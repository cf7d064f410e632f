//! Sizes and times on the command line.

use std::time::Duration;

/// Parses a size in bytes: `4096`, `4k`, `1M`, `10G`, `1T` in powers of 1024, `10GB` in powers of 1000.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    isolane_volume::spec::parse_size(text).map_err(|error| error.to_string())
}

/// Parses a time: `10s`, `500ms`, `2m`; a bare number means seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds_each = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "us" => 0.000_001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`: write for example 500ms, 10s or 2m")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is not a time: write for example 10s"))?;
    Duration::try_from_secs_f64(number * seconds_each).map_err(|_| format!("`{text}` is too long"))
}

/// Parses a time above 0.
pub fn parse_time_above_zero(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time.is_zero() { Err("the time must not be 0: write for example 10s".into()) } else { Ok(time) }
}

/// Parses a short time, which needs a unit unless it is 0.
pub fn parse_time_with_unit(text: &str) -> Result<Duration, String> {
    if text.ends_with(|c: char| c.is_ascii_digit() || c == '.') && !text.trim_matches(['0', '.']).is_empty() {
        Err(format!("`{text}` has no unit: write for example {text}us or {text}ms"))
    } else {
        parse_time(text)
    }
}

/// Formats a size or rate: `1.5 GiB`.
pub fn show_bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_units_of_time() {
        assert_eq!(parse_time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse_time("5 parsecs").unwrap_err().contains("unknown unit"));
        assert!(parse_time("").is_err());
    }

    #[test]
    fn short_times_need_a_unit() {
        assert_eq!(parse_time_with_unit("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(parse_time_with_unit("0"), Ok(Duration::ZERO));
        assert!(parse_time_with_unit("3").unwrap_err().contains("write for example 3us"));
        assert!(parse_time_with_unit("").is_err());
    }

    #[test]
    fn formats_sizes() {
        assert_eq!(show_bytes(512.0), "512 B");
        assert_eq!(show_bytes(1536.0), "1.5 KiB");
        assert_eq!(show_bytes(3.0 * 1024.0 * 1024.0 * 1024.0), "3.0 GiB");
    }
}
