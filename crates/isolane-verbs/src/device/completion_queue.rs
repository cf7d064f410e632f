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

use super::contention;
use super::progress::Progress;
use crate::observed::{Observer, Unfetched};
use crate::types::{Completion, CompletionNotice, OnNotice, Status, WorkCompletion};

/// Completions of any number of queue pairs of one device.
pub struct CompletionQueue {
    progress: Arc<Progress>,
    on_notice: Option<OnNotice>,
    state: Mutex<State>,
    /// Signaled when a completion arrives while [`State::waiting`] is not 0.
    arrived: Condvar,
}

struct State {
    completions: VecDeque<WorkCompletion>,
    capacity: usize,
    requested: Requested,
    /// Completions after the last one that had a notice. The queue can hold fewer.
    unreported: usize,
    /// Number of callers of [`CompletionQueue::wait`] that sleep.
    waiting: usize,
    waker: Option<Waker>,
    has_overrun: bool,
    /// The request of each completion, if the device is observed.
    observed: Option<VecDeque<Option<Unfetched>>>,
}

/// Kind of completions that have a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Requested {
    Nothing,
    /// Completions that are solicited or not successful.
    Solicited,
    Any,
}

impl Requested {
    /// Whether a completion has a notice.
    fn matches(self, completion: &Completion) -> bool {
        match self {
            Requested::Nothing => false,
            Requested::Solicited => completion.solicited || completion.status != Status::Success,
            Requested::Any => true,
        }
    }
}

impl State {
    /// Removes the next completion.
    #[inline]
    fn pop(&mut self) -> Option<WorkCompletion> {
        let completion = self.completions.pop_front();
        if self.observed.is_some() && completion.is_some() {
            self.observe_fetched();
        }
        completion
    }

    #[cold]
    fn observe_fetched(&mut self) {
        if let Some(unfetched) = self.observed.as_mut().and_then(VecDeque::pop_front).flatten() {
            unfetched.fetched();
        }
    }

    /// Adds the requests of the completions that were appended.
    #[cold]
    fn observe(&mut self, mut observer: Option<&mut Observer>) {
        if let Some(observed) = &mut self.observed {
            for arrived in self.completions.range(observed.len()..) {
                let observer = observer.as_deref_mut();
                observed.push_back(observer.and_then(|observer| observer.completed(&arrived.completion)));
            }
        }
    }

    fn forget(&mut self, queue_pair: u32) {
        if let Some(observed) = &mut self.observed {
            let kept = self.completions.iter().zip(observed.drain(..));
            let kept = kept.filter(|(completion, _)| completion.queue_pair != queue_pair);
            *observed = kept.map(|(_, unfetched)| unfetched).collect::<Vec<_>>().into();
        }
        self.completions.retain(|completion| completion.queue_pair != queue_pair);
    }
}

impl CompletionQueue {
    pub(super) fn new(
        progress: Arc<Progress>,
        capacity: usize,
        on_notice: Option<OnNotice>,
        is_observed: bool,
    ) -> CompletionQueue {
        let state = State {
            completions: VecDeque::new(),
            capacity,
            requested: Requested::Nothing,
            unreported: 0,
            waiting: 0,
            waker: None,
            has_overrun: false,
            observed: is_observed.then(VecDeque::new),
        };
        CompletionQueue { progress, on_notice, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Requests one notice for a completion, or for one that is solicited or not successful: immediately if the queue
    /// has one that no notice has reported, otherwise when the next one arrives. The library's thread drives the lanes
    /// from now on, until a thread polls.
    pub fn request_notice(&self, solicited_only: bool) {
        let requested = if solicited_only { Requested::Solicited } else { Requested::Any };
        let mut state = self.lock();
        if state.requested < requested {
            state.requested = requested;
        }
        let first = state.completions.len().saturating_sub(state.unreported);
        let mut unreported = state.completions.range(first..);
        let has_arrived = unreported.any(|arrived| state.requested.matches(&arrived.completion));
        if has_arrived {
            (state.requested, state.unreported) = (Requested::Nothing, unreported.len());
        }
        drop(state);
        if has_arrived {
            self.notify(CompletionNotice::Arrived);
        }
        self.progress.hand_over();
    }

    /// Number of completions that have arrived.
    pub fn len(&self) -> usize {
        self.lock().completions.len()
    }

    /// Number of completions that can arrive until half of the capacity is in use.
    pub(super) fn free_half(&self) -> usize {
        let state = self.lock();
        (state.capacity / 2).saturating_sub(state.completions.len())
    }

    /// Whether no completion has arrived.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the capacity. Returns `false` if more completions are in the queue.
    pub fn resize(&self, capacity: usize) -> bool {
        let mut state = self.lock();
        let is_enough = state.completions.len() <= capacity;
        if is_enough {
            state.capacity = capacity;
        }
        is_enough
    }

    /// Returns the next completion, if there is one. Otherwise it first drives the device's lanes, unless a dedicated
    /// thread does that. While threads that spin keep the cores busy, it sleeps for up to 0.1 ms until data arrives.
    pub fn poll(&self) -> Option<WorkCompletion> {
        if let Some(completion) = self.take() {
            return Some(completion);
        }
        let can_sleep = self.progress.is_shared() && !self.progress.has_stopped();
        if can_sleep && contention::should_sleep() {
            self.progress.sleep(|| !self.is_empty());
            return self.take();
        }
        let found = self.drive();
        if found.is_none() && self.progress.is_shared() {
            contention::relax(can_sleep);
        }
        found
    }

    /// Returns the next completion as [`CompletionQueue::poll`], but never sleeps.
    pub fn poll_without_sleep(&self) -> Option<WorkCompletion> {
        self.take().or_else(|| self.drive())
    }

    /// Drives the device's lanes, unless a dedicated thread does that. Returns the next completion.
    fn drive(&self) -> Option<WorkCompletion> {
        if self.progress.drive() { self.take() } else { None }
    }

    /// Returns the next completion that has arrived, without driving the lanes.
    pub fn take(&self) -> Option<WorkCompletion> {
        self.lock().pop()
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
            // Other tasks of the thread do not wait for a sleep.
            if let Some(completion) = self.poll_without_sleep() {
                return Poll::Ready(completion);
            }
            self.progress.hand_over();
            if self.progress.has_stopped() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let waker = context.waker().clone();
            let mut state = self.state.lock();
            match state.pop() {
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

    /// Appends completions of requests that `observer` observes. Returns `false` if the queue has overrun.
    pub(super) fn extend(
        &self,
        completions: impl Iterator<Item = WorkCompletion>,
        observer: Option<&mut Observer>,
    ) -> bool {
        let mut state = self.lock();
        let (mut is_requested, mut overruns) = (false, false);
        for completion in completions {
            overruns = !state.has_overrun && state.completions.len() >= state.capacity;
            state.has_overrun |= overruns;
            if state.has_overrun {
                break;
            }
            state.unreported += 1;
            if state.requested.matches(&completion.completion) {
                is_requested = true;
                (state.requested, state.unreported) = (Requested::Nothing, 0);
            }
            state.completions.push_back(completion);
        }
        if state.observed.is_some() {
            state.observe(observer);
        }
        let (is_awaited, waker, is_intact) = (state.waiting > 0, state.waker.take(), !state.has_overrun);
        drop(state);
        if is_awaited {
            self.arrived.notify_all();
        }
        self.progress.wake_sleepers();
        if overruns {
            self.notify(CompletionNotice::Overrun);
        }
        if is_requested {
            self.notify(CompletionNotice::Arrived);
        }
        if let Some(waker) = waker {
            self.progress.wake_later(waker);
        }
        is_intact
    }

    fn notify(&self, notice: CompletionNotice) {
        if let Some(on_notice) = &self.on_notice {
            on_notice(notice);
        }
    }

    /// Drops the completions of a queue pair that is destroyed.
    pub(super) fn forget(&self, queue_pair: u32) {
        self.lock().forget(queue_pair);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.progress.lock(&self.state)
    }
}

/// How long a waiting caller polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::progress::ProgressMode;
    use super::*;
    use crate::types::CompletedOperation;

    /// Events of a queue.
    enum Step {
        /// Completions arrive together: their number, solicited or not, and their status.
        Arrive(usize, bool, Status),
        /// A notice is requested: for solicited completions only, or for any.
        Arm(bool),
        /// All completions are taken.
        Take,
        /// The first completion is taken.
        TakeOne,
    }

    /// Returns the number of notices after each step.
    fn notices(steps: &[Step]) -> Vec<usize> {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let on_notice = move |notice| {
            assert_eq!(notice, CompletionNotice::Arrived);
            counter.fetch_add(1, Ordering::SeqCst);
        };
        let progress = Arc::new(Progress::new(ProgressMode::Polling).unwrap());
        let queue = CompletionQueue::new(progress, 16, Some(Box::new(on_notice)), false);
        let after = |step: &Step| {
            match *step {
                Step::Arrive(count, solicited, status) => {
                    assert!(queue.extend(std::iter::repeat_n(done(solicited, status), count), None))
                }
                Step::Arm(solicited_only) => queue.request_notice(solicited_only),
                Step::Take => while queue.take().is_some() {},
                Step::TakeOne => drop(queue.take()),
            }
            count.load(Ordering::SeqCst)
        };
        steps.iter().map(after).collect()
    }

    fn done(solicited: bool, status: Status) -> WorkCompletion {
        let (id, operation, length) = (1, CompletedOperation::Receive, 0);
        let (immediate, source) = (None, None);
        let completion = Completion { id, status, operation, length, immediate, solicited, source };
        WorkCompletion { queue_pair: 1, completion }
    }

    #[test]
    fn reports_completion_in_each_order_of_steps() {
        use Step::{Arm, Arrive, Take, TakeOne};
        const PLAIN: Step = Arrive(1, false, Status::Success);
        const SOLICITED: Step = Arrive(1, true, Status::Success);
        const FAILED: Step = Arrive(1, false, Status::Flushed);
        let (any, solicited) = (|| Arm(false), || Arm(true));
        let cases: [(&[Step], &[usize]); 15] = [
            (&[PLAIN, PLAIN], &[0, 0]),
            (&[any(), PLAIN, PLAIN], &[0, 1, 1]),
            (&[PLAIN, any(), PLAIN], &[0, 1, 1]),
            (&[PLAIN, Take, any(), PLAIN], &[0, 0, 0, 1]),
            (&[any(), PLAIN, Take, any(), PLAIN], &[0, 1, 1, 1, 2]),
            // A program that arms before it polls has no second notice of the same completion.
            (&[any(), PLAIN, any(), Take, any(), PLAIN], &[0, 1, 1, 1, 1, 2]),
            (&[any(), PLAIN, PLAIN, any(), Take, any()], &[0, 1, 1, 2, 2, 2]),
            (&[any(), Arrive(2, false, Status::Success), any(), any()], &[0, 1, 2, 2]),
            // A program that takes one completion after each notice gets a notice for each.
            (
                &[any(), Arrive(3, false, Status::Success), any(), TakeOne, any(), TakeOne, any(), TakeOne],
                &[0, 1, 2, 2, 3, 3, 3, 3],
            ),
            (&[any(), any(), PLAIN, PLAIN], &[0, 0, 1, 1]),
            (&[PLAIN, solicited(), PLAIN, SOLICITED, SOLICITED], &[0, 0, 0, 1, 1]),
            (&[SOLICITED, PLAIN, solicited(), SOLICITED], &[0, 0, 1, 1]),
            (&[FAILED, solicited()], &[0, 1]),
            (&[PLAIN, solicited(), any()], &[0, 0, 1]),
            // A request for any completion is not narrowed.
            (&[any(), solicited(), PLAIN], &[0, 0, 1]),
        ];
        for (index, (steps, expected)) in cases.iter().enumerate() {
            assert_eq!(notices(steps), *expected, "case {index}");
        }
    }
}
