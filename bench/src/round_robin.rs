//! Round-robin driving of connections.

use std::io;
use std::time::{Duration, Instant};

/// Drives all connections for a tenth of `time`, then calls `start`, and drives them for `time`. Returns the completed
/// operations of each and their duration.
pub(crate) fn measure<C>(
    connections: &mut [C],
    time: Duration,
    turn: impl Fn(&mut C) -> io::Result<u64>,
    start: impl Fn(&mut C),
) -> io::Result<(Vec<u64>, Duration)> {
    run_round_robin(connections, time / 10, &turn)?;
    connections.iter_mut().for_each(start);
    let started = Instant::now();
    let operations = run_round_robin(connections, time, turn)?;
    Ok((operations, started.elapsed()))
}

/// Calls `turn` for one connection after the other for `time`. Returns the completed operations of each.
fn run_round_robin<C>(
    connections: &mut [C],
    time: Duration,
    turn: impl Fn(&mut C) -> io::Result<u64>,
) -> io::Result<Vec<u64>> {
    let start = Instant::now();
    let mut completed = vec![0; connections.len()];
    while start.elapsed() < time {
        for _ in 0..ROUNDS_PER_CLOCK_READ {
            for (connection, completed) in connections.iter_mut().zip(&mut completed) {
                *completed += turn(connection)?;
            }
        }
    }
    Ok(completed)
}

const ROUNDS_PER_CLOCK_READ: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_operations_per_connection() {
        let mut sizes = [1, 10, 100];
        let completed = run_round_robin(&mut sizes, Duration::from_millis(1), |size| Ok(*size)).unwrap();
        assert!(completed[0] >= ROUNDS_PER_CLOCK_READ as u64);
        assert_eq!(completed, [completed[0], 10 * completed[0], 100 * completed[0]]);
    }
}
