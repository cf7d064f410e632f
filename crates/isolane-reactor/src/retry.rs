//! Retries while a killed process still holds a resource: the kernel closes its files, locks, and
//! listeners only after it has torn down its io_uring.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum wait for a resource of a killed process.
pub const HELD_TIMEOUT: Duration = Duration::from_secs(5);

/// Retries `attempt` while `is_held` returns `true`, for up to `timeout`. Calls `notify` before the
/// first wait.
pub fn retry_while_held<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> T,
    is_held: impl Fn(&T) -> bool,
    notify: impl FnOnce(),
) -> T {
    let mut result = attempt();
    let (deadline, mut notify) = (Instant::now() + timeout, Some(notify));
    while is_held(&result) && Instant::now() < deadline {
        notify.take().into_iter().for_each(|notify| notify());
        sleep(RETRY_DELAY);
        result = attempt();
    }
    result
}

const RETRY_DELAY: Duration = Duration::from_millis(20);
