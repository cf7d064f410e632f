//! How long tests wait for what must happen: so long that only what hangs is found by it. No test says how
//! fast anything is.
#![allow(dead_code)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Far beyond what anything takes, also on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for something that happens soon, on a machine that is not too busy.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < until, "it did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Does something that may hang on a thread of its own, and returns what came of it.
pub fn with_timeout<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || drop(sender.send(work())));
    match receiver.recv_timeout(TEST_TIMEOUT) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: {what}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
    }
}
