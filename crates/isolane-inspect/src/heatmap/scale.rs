//! Colors of counts, and marks of the axes.

/// From few operations to many. The lightness falls evenly, so that a print without colors is readable.
pub const COLORS: [&str; 8] =
    ["#fdc98a", "#fca563", "#f47d52", "#dd5550", "#b93a62", "#8a2a6b", "#591d64", "#2a0f45"];

/// Borders between the colors: powers of a base, in operations per second.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    base: f64,
}

impl Levels {
    /// Chooses the base so that all rates have a color.
    pub fn new(rates: impl Iterator<Item = f64>) -> Levels {
        let largest = rates.fold(1.0, f64::max);
        let fits = |base: &f64| base.powi(COLORS.len() as i32) > largest;
        Levels { base: [2.0, 3.0, 4.0, 5.0, 10.0].into_iter().find(fits).unwrap_or(100.0) }
    }

    /// Returns the position of the color of a rate above 0.
    pub fn of(self, rate: f64) -> usize {
        (rate.max(1.0).log(self.base) + 1e-9).floor().clamp(0.0, COLORS.len() as f64 - 1.0) as usize
    }

    /// Returns the lowest rate of a color.
    pub fn lowest(self, level: usize) -> f64 {
        self.base.powi(level as i32)
    }
}

/// Returns the times of the marks of the axis, in milliseconds since 1970: round, and at most ten.
pub fn time_marks(start_ms: u64, end_ms: u64) -> Vec<u64> {
    const STEPS_S: [u64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14_400, 86_400];
    let span = end_ms.saturating_sub(start_ms);
    let step = STEPS_S.into_iter().map(|step| step * 1000).find(|step| span / step < MAX_MARKS);
    let step = step.unwrap_or(span / MAX_MARKS + 1);
    let first = start_ms.div_ceil(step).saturating_mul(step);
    (0..MAX_MARKS).map(|mark| first.saturating_add(mark * step)).take_while(|at| *at <= end_ms).collect()
}

const MAX_MARKS: u64 = 10;

/// Marks of the latency axis, in nanoseconds.
pub const LATENCY_MARKS: [u64; 9] =
    [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_has_a_color() {
        for largest in [0.1, 1.0, 200.0, 65_536.0, 1e6, 1e12] {
            let levels = Levels::new([0.5, largest].into_iter());
            assert_eq!(levels.of(0.1), 0);
            assert!(levels.of(largest) < COLORS.len());
            for level in 0..COLORS.len() {
                assert_eq!(levels.of(levels.lowest(level)), level, "{largest}");
            }
        }
        assert_eq!(Levels::new([200.0].into_iter()).of(200.0), 7, "uses all colors");
    }

    #[test]
    fn colors_darken_evenly() {
        let channel =
            |color: &str, at: usize| f64::from(u8::from_str_radix(&color[at..at + 2], 16).expect("hex"));
        let light = COLORS
            .map(|color| 0.299 * channel(color, 1) + 0.587 * channel(color, 3) + 0.114 * channel(color, 5));
        assert!(light.windows(2).all(|pair| pair[0] - pair[1] > 10.0), "{light:?}");
        assert!(light[0] < 230.0, "differs from white paper");
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(time_marks(61_500, 121_000), [70_000, 80_000, 90_000, 100_000, 110_000, 120_000]);
        for (start, end) in [(0, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (5, 4), (1, 999)] {
            assert!(time_marks(start, end).len() <= 10);
        }
    }
}
