//! Who waits for the end of a request: a future, a caller, or both kinds for the last of several requests
//! that are one.
//!
//! Invariant: each is told exactly once, by an error if by nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::caller::{Caller, Duty};
use crate::error::RequestError;
use crate::oneshot::Sender;
use crate::request::Completion;

/// Who waits for a request.
pub(super) enum Reply {
    Future(Sender<Completion>),
    Caller(Duty),
    Part(Part),
}

impl Reply {
    /// Tells, and returns whom to ring for.
    #[inline(always)]
    pub(super) fn deliver(self, completion: Completion) -> Option<Arc<Caller>> {
        match self {
            Reply::Future(sender) => {
                sender.send(completion);
                None
            }
            Reply::Caller(duty) => duty.fulfil(completion),
            Reply::Part(part) => part.end(completion.result),
        }
    }

    /// Tells of the last of several requests.
    #[cold]
    fn deliver_joint(self, result: Result<(), RequestError>) -> Option<Arc<Caller>> {
        self.deliver(Completion { tag: 0, result, buffer: None })
    }

    /// As many as there are requests, each of which is a part of the one that this waits for: it fails if any
    /// of them does.
    pub(super) fn split(self, parts: usize) -> impl Iterator<Item = Reply> {
        let left = AtomicUsize::new(parts);
        let joint = Arc::new(Joint { left, failure: Mutex::default(), reply: Mutex::new(Some(self)) });
        (0..parts).map(move |_| Reply::Part(Part(Some(Arc::clone(&joint)))))
    }
}

/// Several requests that are one. Its locks are taken once for each of them: for flushes only.
struct Joint {
    /// Requests that have not ended.
    left: AtomicUsize,
    failure: Mutex<Option<RequestError>>,
    reply: Mutex<Option<Reply>>,
}

/// The duty to tell of one of them.
pub(super) struct Part(Option<Arc<Joint>>);

impl Part {
    #[inline(never)]
    fn end(mut self, result: Result<(), RequestError>) -> Option<Arc<Caller>> {
        self.0.take()?.end(result)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(caller) = self.0.take().and_then(|joint| joint.end(Err(RequestError::Closed))) {
            caller.ring();
        }
    }
}

impl Joint {
    /// One has ended. The first failure is told; nobody is told before the last.
    fn end(&self, result: Result<(), RequestError>) -> Option<Arc<Caller>> {
        if let Err(error) = result {
            self.failure.lock().get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let reply = self.reply.lock().take()?;
        let result = self.failure.lock().take().map_or(Ok(()), Err);
        reply.deliver_joint(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oneshot::{block_on, oneshot};

    fn ended(result: Result<(), RequestError>) -> Completion {
        Completion { tag: 0, result, buffer: None }
    }

    #[test]
    fn the_last_part_tells_of_the_first_failure() {
        let caller = Caller::new(1);
        let mut parts = Reply::Caller(Duty::new(&caller, 9)).split(3);
        assert!(parts.next().unwrap().deliver(ended(Ok(()))).is_none());
        assert!(parts.next().unwrap().deliver(ended(Err(RequestError::TooMany(1)))).is_none());
        assert!(!caller.has_completions());
        // A part that nobody ends has failed.
        drop(parts.next().unwrap());
        let told = caller.take_completion().unwrap();
        assert!(matches!((told.tag, told.result), (9, Err(RequestError::TooMany(1)))));
    }

    #[test]
    fn it_succeeds_if_all_parts_do() {
        let (sender, receiver) = oneshot();
        Reply::Future(sender).split(2).for_each(|part| drop(part.deliver(ended(Ok(())))));
        assert!(block_on(receiver).unwrap().result.is_ok());
    }
}
