//! The tables, as ratios to the floor.

use super::{Pair, Row};

/// Prints a Markdown table of all pairs.
pub fn print(pairs: &[Pair]) {
    println!("| work | floor | isolane | isolane / floor | spread of floor | spread of isolane |");
    println!("|---|---|---|---|---|---|");
    for pair in pairs {
        println!("{}", line(pair));
    }
}

fn line(pair: &Pair) -> String {
    let is_latency = Row::named(pair.row).is_some_and(Row::is_latency);
    let (floor, isolane) = match is_latency {
        true => (pair.floor.mean_us, pair.isolane.mean_us),
        false => (pair.floor.iops, pair.isolane.iops),
    };
    let ratio = if is_latency { pair.mean_ratio } else { pair.rate_ratio };
    let show = |figure: f64| match is_latency {
        true => format!("{figure:.2} µs"),
        false => format!("{:.1} k/s", figure / 1e3),
    };
    let range = |least, greatest| format!("{} – {}", show(least), show(greatest));
    format!(
        "| {} | {} | {} | {ratio:.2} | {} | {} |",
        pair.row,
        show(floor.median),
        show(isolane.median),
        range(floor.min, floor.max),
        range(isolane.min, isolane.max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paired::{Measured, Sample};

    #[test]
    fn depth_one_is_shown_as_a_round_trip_and_the_rest_as_a_rate() {
        let measured = |iops, mean_us| Measured::of(vec![Sample { iops, mean_us }]);
        let pair = |row| Pair {
            row,
            floor: measured(1e6, 10.0),
            isolane: measured(8e5, 12.5),
            rate_ratio: 0.8,
            mean_ratio: 1.25,
        };
        assert!(line(&pair("r4k-qd1")).starts_with("| r4k-qd1 | 10.00 µs | 12.50 µs | 1.25 |"));
        assert!(line(&pair("r4k-qd32")).starts_with("| r4k-qd32 | 1000.0 k/s | 800.0 k/s | 0.80 |"));
    }
}
