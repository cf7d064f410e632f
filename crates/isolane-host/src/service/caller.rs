//! A caller's place at a volume: what it asks for goes in, what came of it goes out.
//!
//! Both ways are queues without a lock, as long as the most requests that the caller may have outstanding, so
//! neither is ever full. Invariant: a request that was taken from here is answered here, by an error if by
//! nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::classes::Class;
use crate::error::RequestError;
use crate::request::{Completion, Request};

/// A request on its way to whoever drives.
#[derive(Debug)]
pub(crate) struct Submission {
    pub class: Class,
    pub request: Request,
    pub tag: u64,
}

/// One caller, or one idle place for the next that comes.
#[derive(Debug)]
pub(crate) struct Caller {
    submissions: ArrayQueue<Submission>,
    completions: ArrayQueue<Completion>,
    /// Whether whoever drives knows that there are submissions.
    is_listed: AtomicBool,
    /// That of all places of the same thread.
    bell: Arc<Bell>,
}

impl Caller {
    /// For `depth` requests at a time, one at least.
    pub(crate) fn new(depth: usize) -> Arc<Caller> {
        Caller::with_bell(depth, Arc::default())
    }

    /// Another place of the same thread, at another service: a ring at either wakes it.
    pub(super) fn beside(&self, depth: usize) -> Arc<Caller> {
        Caller::with_bell(depth, Arc::clone(&self.bell))
    }

    fn with_bell(depth: usize, bell: Arc<Bell>) -> Arc<Caller> {
        Arc::new(Caller {
            submissions: ArrayQueue::new(depth),
            completions: ArrayQueue::new(depth),
            is_listed: AtomicBool::new(false),
            bell,
        })
    }

    /// Leaves a request. Whoever leaves more than the depth gets it back.
    pub(crate) fn submit(&self, submission: Submission) -> Result<(), Submission> {
        self.submissions.push(submission)
    }

    pub(crate) fn has_submissions(&self) -> bool {
        !self.submissions.is_empty()
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    pub(crate) fn take_completion(&self) -> Option<Completion> {
        self.completions.pop()
    }

    pub(super) fn take_submission(&self) -> Option<Submission> {
        self.submissions.pop()
    }

    /// Whether the caller has to be put on the list now: true once until [`Caller::unlist`].
    pub(super) fn list(&self) -> bool {
        !self.is_listed.swap(true, Ordering::AcqRel)
    }

    /// Before its submissions are taken: what comes later is listed anew.
    pub(super) fn unlist(&self) {
        self.is_listed.swap(false, Ordering::AcqRel);
    }

    /// Leaves an answer; [`Caller::ring`] tells of it.
    pub(super) fn complete(&self, completion: Completion) {
        let left = self.completions.push(completion);
        debug_assert!(left.is_ok(), "more answers than the caller can have outstanding");
    }

    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    /// Sleeps until an answer is there, or somebody rings for another reason, unless `is_over` already; no longer than
    /// `until`.
    pub(super) fn sleep(&self, until: Option<Instant>, is_over: impl Fn() -> bool) {
        self.bell.sleep(until, || self.has_completions() || is_over());
    }

    /// Nobody will ever take what is left here.
    pub(super) fn refuse_all(&self) {
        while let Some(Submission { request, tag, .. }) = self.submissions.pop() {
            let buffer = request.into_buffer();
            self.complete(Completion { tag, result: Err(RequestError::Closed), buffer });
        }
        self.ring();
    }
}

/// The duty to answer one request of a caller.
#[derive(Debug)]
pub(super) struct Duty {
    caller: Option<Arc<Caller>>,
    tag: u64,
}

impl Duty {
    pub(super) fn new(caller: &Arc<Caller>, tag: u64) -> Duty {
        Duty { caller: Some(Arc::clone(caller)), tag }
    }

    /// Leaves the answer and tells whom to ring for.
    #[inline(always)]
    pub(super) fn fulfil(mut self, completion: Completion) -> Option<Arc<Caller>> {
        let caller = self.caller.take()?;
        caller.complete(Completion { tag: self.tag, ..completion });
        Some(caller)
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            caller.complete(Completion { tag: self.tag, result: Err(RequestError::Closed), buffer: None });
            caller.ring();
        }
    }
}

/// Wakes one sleeper. Costs a fence and a look while nobody sleeps.
#[derive(Debug, Default)]
struct Bell {
    state: AtomicU32,
}

impl Bell {
    /// Everything written before is visible to the sleeper that this wakes.
    fn ring(&self) {
        // Orders the answer before the look: either the sleeper sees the answer, or this sees the sleeper.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == ASLEEP && self.state.swap(AWAKE, Ordering::AcqRel) == ASLEEP
        {
            // It can only fail where there is nobody to wake.
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    fn sleep(&self, until: Option<Instant>, is_over: impl Fn() -> bool) {
        self.state.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.state.load(Ordering::Acquire) == ASLEEP {
            if is_over() {
                self.state.store(AWAKE, Ordering::Relaxed);
                return;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.state.store(AWAKE, Ordering::Relaxed);
                return;
            }
            // A time that no clock reaches is none.
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            // Ended by a ring, by a signal, or at once because somebody rang already: the loop looks again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, ASLEEP, timeout.as_ref());
        }
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_memory::Buffer;

    fn submission(tag: u64) -> Submission {
        let request = Request::Read { lba: 0, buffer: Buffer::contiguous(512) };
        Submission { class: Class::Read, request, tag }
    }

    #[test]
    fn a_caller_is_listed_once_until_its_submissions_are_taken() {
        let caller = Caller::new(2);
        assert!(caller.submit(submission(1)).is_ok() && caller.list());
        assert!(caller.submit(submission(2)).is_ok() && !caller.list());
        assert!(caller.submit(submission(3)).is_err());
        caller.unlist();
        assert_eq!(caller.take_submission().map(|taken| taken.tag), Some(1));
        assert!(caller.list());
    }

    #[test]
    fn a_request_that_nobody_answers_is_answered_by_an_error() {
        let caller = Caller::new(2);
        caller.submit(submission(1)).unwrap();
        drop(Duty::new(&caller, 2));
        caller.refuse_all();
        let (taken, left) = (caller.take_completion().unwrap(), caller.take_completion().unwrap());
        assert!(matches!((taken.tag, taken.result), (2, Err(RequestError::Closed))));
        assert!(matches!((left.tag, left.result), (1, Err(RequestError::Closed))));
        assert!(taken.buffer.is_none() && left.buffer.is_some());
    }

    #[test]
    fn a_sleeper_misses_no_ring() {
        let (caller, rounds) = (Caller::new(1), 20_000);
        let answering = Arc::clone(&caller);
        let thread = std::thread::spawn(move || {
            for tag in 0..rounds {
                while answering.take_submission().is_none() {
                    std::thread::yield_now();
                }
                let answer = Completion { tag: 0, result: Ok(()), buffer: None };
                Duty::new(&answering, tag).fulfil(answer).unwrap().ring();
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
