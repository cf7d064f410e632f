//! Completion queue: where queue pairs report finished requests.
//!
//! Invariant: a completion is reported once, in the order in which its queue pair finished it, or the queue has
//! overrun and reports nothing further.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::progress::Progress;
use crate::work::Completion;

/// A finished request of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Number of the queue pair: [`QueuePair::number`](super::QueuePair::number).
    pub queue_pair: u32,
    /// Result.
    pub completion: Completion,
}

/// Completions of any number of queue pairs of one device.
pub struct CompletionQueue {
    progress: Arc<Progress>,
    capacity: usize,
    state: Mutex<State>,
    /// Signaled when a completion arrives while [`State::waiting`] is not 0.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    completions: VecDeque<WorkCompletion>,
    /// Number of callers of [`CompletionQueue::wait`] that sleep.
    waiting: usize,
    waker: Option<Waker>,
    has_overrun: bool,
}

impl CompletionQueue {
    pub(super) fn new(progress: Arc<Progress>, capacity: usize) -> CompletionQueue {
        CompletionQueue { progress, capacity, state: Mutex::default(), arrived: Condvar::new() }
    }

    /// Returns the next completion, if there is one. Otherwise it first drives the device's lanes, unless a dedicated
    /// thread does that.
    pub fn poll(&self) -> Option<WorkCompletion> {
        if let Some(completion) = self.lock().completions.pop_front() {
            return Some(completion);
        }
        if !self.progress.drive() {
            return None;
        }
        self.lock().completions.pop_front()
    }

    /// Waits for the next completion: polls for a short time, then sleeps. `None` after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<WorkCompletion> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout);
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return None;
            }
            if now - start < SPIN || self.progress.has_stopped() {
                std::hint::spin_loop();
                continue;
            }
            self.progress.hand_over();
            let mut state = self.state.lock();
            if state.completions.is_empty() {
                state.waiting += 1;
                match deadline {
                    Some(deadline) => drop(self.arrived.wait_until(&mut state, deadline)),
                    None => self.arrived.wait(&mut state),
                }
                state.waiting -= 1;
            }
        }
    }

    /// Returns the next completion. One task at a time can wait.
    pub async fn next(&self) -> WorkCompletion {
        poll_fn(|context| {
            if let Some(completion) = self.poll() {
                return Poll::Ready(completion);
            }
            self.progress.hand_over();
            if self.progress.has_stopped() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let waker = context.waker().clone();
            let mut state = self.state.lock();
            match state.completions.pop_front() {
                Some(completion) => Poll::Ready(completion),
                None => {
                    let old = state.waker.replace(waker);
                    drop(state);
                    drop(old);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Whether completions were lost because the queue was full. Its queue pairs have failed.
    pub fn has_overrun(&self) -> bool {
        self.state.lock().has_overrun
    }

    /// Appends a completion. Returns `false` if the queue has overrun.
    pub(super) fn push(&self, completion: WorkCompletion) -> bool {
        let mut state = self.lock();
        if state.completions.len() >= self.capacity {
            state.has_overrun = true;
        }
        if state.has_overrun {
            return false;
        }
        state.completions.push_back(completion);
        let (is_awaited, waker) = (state.waiting > 0, state.waker.take());
        drop(state);
        if is_awaited {
            self.arrived.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Drops the completions of a queue pair that is destroyed.
    pub(super) fn forget(&self, queue_pair: u32) {
        self.lock().completions.retain(|completion| completion.queue_pair != queue_pair);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.progress.lock(&self.state)
    }
}

/// How long a waiting caller polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
