//! Time limit of the tests, long enough that only a hang exceeds it. No test measures speed.
#![allow(dead_code)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `work`, which may hang, on another thread and returns its result.
pub fn with_timeout<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || drop(sender.send(work())));
    match receiver.recv_timeout(TEST_TIMEOUT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread sends before it ends"),
        },
    }
}
