//! Driving lanes by turns for a time.

use std::io;
use std::time::{Duration, Instant};

/// Turns all lanes, one after the other, for so long. Returns how many operations each completed.
pub(crate) fn turn_for<L>(
    lanes: &mut [L],
    time: Duration,
    turn: impl Fn(&mut L) -> io::Result<u64>,
) -> io::Result<Vec<u64>> {
    let begun = Instant::now();
    let mut completed = vec![0; lanes.len()];
    while begun.elapsed() < time {
        for _ in 0..TURNS_PER_LOOK_AT_THE_CLOCK {
            for (lane, completed) in lanes.iter_mut().zip(&mut completed) {
                *completed += turn(lane)?;
            }
        }
    }
    Ok(completed)
}

const TURNS_PER_LOOK_AT_THE_CLOCK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_its_turns_and_its_own_count() {
        let mut lanes = [1, 10, 100];
        let completed = turn_for(&mut lanes, Duration::from_millis(1), |lane| Ok(*lane)).unwrap();
        assert!(completed[0] >= TURNS_PER_LOOK_AT_THE_CLOCK as u64);
        assert_eq!(completed, [completed[0], 10 * completed[0], 100 * completed[0]]);
    }
}
