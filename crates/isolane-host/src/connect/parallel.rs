//! I/O queues that connect at the same time, each in a thread.
//!
//! Invariant: the caller is one of the threads, so that all queues connect even if the system has no other thread.

use std::thread::{self, Builder};

use parking_lot::Mutex;

use crate::error::ConnectError;

/// Calls `connect` with each queue ID from 1 to `queues`, in at most `threads` threads. Returns the results in the order
/// of the IDs.
///
/// # Errors
/// The error of the lowest ID that failed. No other queue starts to connect after an error.
pub(super) fn connect_each<T: Send>(
    queues: u16,
    threads: u16,
    connect: impl Fn(u16) -> Result<T, ConnectError> + Sync,
) -> Result<Vec<T>, ConnectError> {
    let (waiting, results) = (Mutex::new(1..=queues), Mutex::new(Vec::new()));
    let next = || waiting.lock().next();
    let work = || {
        while let Some(qid) = next() {
            let result = connect(qid);
            if result.is_err() {
                *waiting.lock() = NONE;
            }
            results.lock().push((qid, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(queues) {
            if let Err(error) = Builder::new().name("isolane-connect".to_owned()).spawn_scoped(scope, work) {
                log::debug!("queues connect with fewer threads: {error}");
                break;
            }
        }
        work();
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(qid, _)| *qid);
    results.into_iter().map(|(_, result)| result).collect()
}

/// No queue ID.
#[expect(clippy::reversed_empty_ranges, reason = "an empty range")]
const NONE: std::ops::RangeInclusive<u16> = 1..=0;

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn failure(qid: u16) -> ConnectError {
        ConnectError::Unsupported(format!("queue {qid}"))
    }

    #[test]
    fn queues_connect_at_the_same_time_and_keep_their_order() {
        let all = Barrier::new(4);
        let connected = connect_each(4, 8, |qid| {
            // Each waits for the others.
            all.wait();
            Ok(qid)
        });
        assert_eq!(connected.unwrap(), [1, 2, 3, 4]);
        assert!(connect_each(0, 8, Ok::<u16, ConnectError>).unwrap().is_empty());
    }

    #[test]
    fn one_thread_connects_one_after_the_other() {
        let now = AtomicUsize::new(0);
        let connected = connect_each(5, 1, |qid| {
            assert_eq!(now.fetch_add(1, Ordering::SeqCst) + 1, usize::from(qid));
            Ok(qid)
        });
        assert_eq!(connected.unwrap(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn no_queue_connects_after_an_error() {
        let calls = AtomicUsize::new(0);
        let connect = |qid| {
            calls.fetch_add(1, Ordering::SeqCst);
            if qid == 2 { Err(failure(qid)) } else { Ok(qid) }
        };
        let error = connect_each(9, 1, connect).unwrap_err();
        assert_eq!((error.to_string(), calls.into_inner()), (failure(2).to_string(), 2));
    }

    #[test]
    fn error_of_the_lowest_queue_is_reported() {
        let both = Barrier::new(2);
        let connect = |qid| -> Result<(), _> {
            both.wait();
            Err(failure(qid))
        };
        assert_eq!(connect_each(2, 2, connect).unwrap_err().to_string(), failure(1).to_string());
    }
}
