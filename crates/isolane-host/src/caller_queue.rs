//! Submission and completion queues of one caller, between its thread and the thread that drives the client.
//!
//! Both are lock-free and hold as many entries as the caller may have outstanding, so neither is ever full.
//!
//! Invariant: every request taken from the queue gets exactly one completion; dropping its [`ReplyGuard`] completes
//! it with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use isolane_reactor::{Parker, clock};

use crate::error::RequestError;
use crate::lane_class::LaneClass;
use crate::request::{Completion, Request};

/// A request that waits for the leader.
#[derive(Debug)]
pub(crate) struct Submission {
    pub class: LaneClass,
    pub request: Request,
    pub tag: u64,
}

/// Queues of one caller, or idle ones for the next caller.
#[derive(Debug)]
pub(crate) struct CallerQueue {
    submissions: ArrayQueue<Submission>,
    completions: ArrayQueue<Completion>,
    /// Whether it is in the list of callers with submissions.
    listed: AtomicBool,
    /// When it was listed last.
    listed_at: AtomicU64,
    /// When the leader last handed completions to another thread; it writes this.
    handed_at: AtomicU64,
    /// When the caller has taken them; it writes this.
    taken_at: AtomicU64,
    /// Number of its requests while it waits and may lead, else 0.
    own_if_waiting: AtomicUsize,
    /// Shared by all queues of the same thread.
    parker: Arc<Parker>,
}

impl CallerQueue {
    /// Creates queues for `depth` requests at a time, at least one.
    pub(crate) fn new(depth: usize) -> Arc<CallerQueue> {
        CallerQueue::with_parker(depth, Arc::default())
    }

    /// Creates queues of the same thread at another service; a completion in either wakes the thread.
    pub(crate) fn sibling(&self, depth: usize) -> Arc<CallerQueue> {
        CallerQueue::with_parker(depth, Arc::clone(&self.parker))
    }

    fn with_parker(depth: usize, parker: Arc<Parker>) -> Arc<CallerQueue> {
        Arc::new(CallerQueue {
            submissions: ArrayQueue::new(depth),
            completions: ArrayQueue::new(depth),
            listed: AtomicBool::new(false),
            listed_at: AtomicU64::new(0),
            handed_at: AtomicU64::new(0),
            taken_at: AtomicU64::new(0),
            own_if_waiting: AtomicUsize::new(0),
            parker,
        })
    }

    /// Queues a request. Returns it if `depth` requests are queued already.
    pub(crate) fn submit(&self, submission: Submission) -> Result<(), Submission> {
        self.submissions.push(submission)
    }

    pub(crate) fn has_submissions(&self) -> bool {
        !self.submissions.is_empty()
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Returns how many completions can be taken.
    pub(crate) fn completions(&self) -> usize {
        self.completions.len()
    }

    pub(crate) fn take_completion(&self) -> Option<Completion> {
        self.completions.pop()
    }

    pub(crate) fn take_submission(&self) -> Option<Submission> {
        self.submissions.pop()
    }

    /// Returns `true` if the caller must be added to the list now: once until [`CallerQueue::on_dequeued`].
    pub(crate) fn try_enqueue(&self) -> bool {
        let is_new = !self.listed.swap(true, Ordering::AcqRel);
        if is_new {
            self.listed_at.store(clock::now(), Ordering::Relaxed);
        }
        is_new
    }

    /// Returns when the queued requests were listed; 0 if they were not.
    pub(crate) fn listed_at(&self) -> u64 {
        if self.listed.load(Ordering::Relaxed) { self.listed_at.load(Ordering::Relaxed) } else { 0 }
    }

    /// Records that the caller's thread runs, and takes completions now.
    #[inline]
    pub(crate) fn on_running(&self) {
        let handed = self.handed_at.load(Ordering::Relaxed);
        if handed > self.taken_at.load(Ordering::Relaxed) {
            self.taken_at.store(clock::now().max(handed), Ordering::Relaxed);
        }
    }

    /// Records that the leader hands completions to the caller, which another thread is.
    pub(crate) fn on_handed(&self, now: u64) {
        self.handed_at.store(now, Ordering::Relaxed);
    }

    /// Returns when the caller has taken the completions that were handed to it `at` a time; `None` before.
    pub(crate) fn taken_at(&self, at: u64) -> Option<u64> {
        let taken = self.taken_at.load(Ordering::Relaxed);
        // A caller that spins can take completions before they are handed to it.
        let is_early = taken < at && !self.has_completions();
        if is_early { Some(at) } else { (taken >= at).then_some(taken) }
    }

    /// Records that the caller waits with this many requests and may lead, or that it does not (0).
    pub(crate) fn set_waiting(&self, own: usize) {
        self.own_if_waiting.store(own, Ordering::Relaxed);
    }

    /// Returns the number of its requests if it waits and may lead, else 0.
    pub(crate) fn own_if_waiting(&self) -> usize {
        self.own_if_waiting.load(Ordering::Relaxed)
    }

    /// Must precede taking its submissions, so that later ones list it again.
    pub(crate) fn on_dequeued(&self) {
        self.listed.swap(false, Ordering::AcqRel);
    }

    /// Wakes the caller if it sleeps; completions do not do that.
    pub(crate) fn wake(&self) {
        self.parker.wake();
    }

    /// Sleeps until a completion arrives, [`CallerQueue::wake`] is called, or `deadline`; not at all if
    /// `is_over` returns `true`.
    pub(crate) fn sleep(&self, deadline: Option<Instant>, is_over: impl Fn() -> bool) {
        self.parker.sleep(deadline, || self.has_completions() || is_over());
    }

    /// Returns the wait of its thread in other event loops.
    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    /// Fails every queued request: the volume is closed.
    pub(crate) fn reject_all(self: &Arc<Self>) {
        while let Some(Submission { request, tag, .. }) = self.submissions.pop() {
            let buffer = request.into_buffer();
            let rejected = Completion { tag, result: Err(RequestError::Closed), buffer };
            ReplyGuard::new(self, tag).complete(rejected);
        }
        self.wake();
    }
}

/// Obligation to complete one request of a caller.
#[derive(Debug)]
pub(crate) struct ReplyGuard {
    caller: Option<Arc<CallerQueue>>,
    tag: u64,
}

impl ReplyGuard {
    pub(crate) fn new(caller: &Arc<CallerQueue>, tag: u64) -> ReplyGuard {
        ReplyGuard { caller: Some(Arc::clone(caller)), tag }
    }

    /// Queues the completion and returns the caller to wake.
    #[inline(always)]
    pub(crate) fn complete(&mut self, completion: Completion) -> Option<Arc<CallerQueue>> {
        let caller = self.caller.take()?;
        let pushed = caller.completions.push(Completion { tag: self.tag, ..completion });
        debug_assert!(pushed.is_ok(), "at most `depth` requests are outstanding");
        Some(caller)
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        let dropped = Completion { tag: self.tag, result: Err(RequestError::Closed), buffer: None };
        if let Some(caller) = self.complete(dropped) {
            caller.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_memory::Buffer;

    fn submission(tag: u64) -> Submission {
        let request = Request::Read { lba: 0, buffer: Buffer::contiguous(512) };
        Submission { class: LaneClass::Read, request, tag }
    }

    #[test]
    fn lists_caller_once_until_dequeued() {
        let caller = CallerQueue::new(2);
        assert!(caller.submit(submission(1)).is_ok() && caller.try_enqueue());
        assert!(caller.submit(submission(2)).is_ok() && !caller.try_enqueue());
        assert!(caller.submit(submission(3)).is_err());
        caller.on_dequeued();
        assert_eq!(caller.take_submission().map(|taken| taken.tag), Some(1));
        assert!(caller.try_enqueue());
    }

    #[test]
    fn dropped_reply_completes_with_error() {
        let caller = CallerQueue::new(2);
        caller.submit(submission(1)).unwrap();
        drop(ReplyGuard::new(&caller, 2));
        caller.reject_all();
        let (taken, queued) = (caller.take_completion().unwrap(), caller.take_completion().unwrap());
        assert!(matches!((taken.tag, taken.result), (2, Err(RequestError::Closed))));
        assert!(matches!((queued.tag, queued.result), (1, Err(RequestError::Closed))));
        assert!(taken.buffer.is_none() && queued.buffer.is_some());
    }

    #[test]
    fn sleeper_misses_no_wake() {
        let (caller, rounds) = (CallerQueue::new(1), 20_000);
        let completer = Arc::clone(&caller);
        let thread = std::thread::spawn(move || {
            for tag in 0..rounds {
                while completer.take_submission().is_none() {
                    std::thread::yield_now();
                }
                let completion = Completion { tag: 0, result: Ok(()), buffer: None };
                ReplyGuard::new(&completer, tag).complete(completion).unwrap().wake();
            }
        });
        for tag in 0..rounds {
            caller.submit(submission(tag)).unwrap();
            caller.sleep(None, || false);
            assert_eq!(caller.take_completion().unwrap().tag, tag);
        }
        thread.join().unwrap();
    }
}
