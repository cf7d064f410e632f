//! What a program that was killed still holds: the kernel tears its ring down on its own time, and keeps its
//! files, their locks and its listeners until then.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long to wait for what nobody alive seems to hold.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Tries again while `is_held` says so of the outcome, for `patience`. `tell` is called before the first
/// wait.
pub fn wait_for_the_dead<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> T,
    is_held: impl Fn(&T) -> bool,
    tell: impl FnOnce(),
) -> T {
    let mut outcome = attempt();
    let (until, mut tell) = (Instant::now() + patience, Some(tell));
    while is_held(&outcome) && Instant::now() < until {
        tell.take().into_iter().for_each(|tell| tell());
        sleep(PAUSE);
        outcome = attempt();
    }
    outcome
}

/// How long to wait between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
