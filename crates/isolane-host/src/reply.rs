//! Recipient of one completion: a tag, a future, a caller, or a request that was split over several clients.
//!
//! Invariant: each recipient is notified exactly once; dropping a reply notifies it of an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oneshot::Sender;
use parking_lot::Mutex;

use crate::caller_queue::{CallerQueue, ReplyGuard};
use crate::error::RequestError;
use crate::request::Completion;

/// Recipient of a completion.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The owner of the client, which takes completions from its turns.
    Tag(u64),
    Future(Sender<Completion>),
    Caller(ReplyGuard),
    Part(ReplyPart),
}

impl Reply {
    /// Delivers the completion and returns the caller to wake. Those with a tag are not delivered here.
    #[inline(never)]
    pub(crate) fn deliver(self, completion: Completion) -> Option<Arc<CallerQueue>> {
        match self {
            Reply::Tag(_) => None,
            Reply::Future(sender) => {
                // A dropped future does not receive its buffer.
                let _ = sender.send(completion);
                None
            }
            Reply::Caller(mut guard) => guard.complete(completion),
            Reply::Part(part) => part.finish(completion.result),
        }
    }

    /// Splits the reply into `parts`. It is delivered with the last part, and with an error if any part failed.
    pub(crate) fn split(self, parts: usize) -> impl Iterator<Item = Reply> {
        let remaining = AtomicUsize::new(parts);
        let joined =
            Arc::new(JoinedReply { remaining, failure: Mutex::default(), reply: Mutex::new(Some(self)) });
        (0..parts).map(move |_| Reply::Part(ReplyPart(Some(Arc::clone(&joined)))))
    }
}

/// A reply that waits for several parts. Only flushes take its locks, once per part.
#[derive(Debug)]
struct JoinedReply {
    remaining: AtomicUsize,
    /// The first failure.
    failure: Mutex<Option<RequestError>>,
    reply: Mutex<Option<Reply>>,
}

/// One part of a [`JoinedReply`]; dropping it fails the part.
#[derive(Debug)]
pub(crate) struct ReplyPart(Option<Arc<JoinedReply>>);

impl ReplyPart {
    #[inline(never)]
    fn finish(mut self, result: Result<(), RequestError>) -> Option<Arc<CallerQueue>> {
        self.0.take()?.finish(result)
    }
}

impl Drop for ReplyPart {
    fn drop(&mut self) {
        if let Some(caller) = self.0.take().and_then(|joined| joined.finish(Err(RequestError::Closed))) {
            caller.wake();
        }
    }
}

impl JoinedReply {
    #[cold]
    fn finish(&self, result: Result<(), RequestError>) -> Option<Arc<CallerQueue>> {
        if let Err(error) = result {
            self.failure.lock().get_or_insert(error);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let reply = self.reply.lock().take()?;
        let result = self.failure.lock().take().map_or(Ok(()), Err);
        reply.deliver(Completion { tag: 0, result, buffer: None })
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::*;

    fn completion(result: Result<(), RequestError>) -> Completion {
        Completion { tag: 0, result, buffer: None }
    }

    #[test]
    fn last_part_reports_first_failure() {
        let caller = CallerQueue::new(1);
        let mut parts = Reply::Caller(ReplyGuard::new(&caller, 9)).split(3);
        assert!(parts.next().unwrap().deliver(completion(Ok(()))).is_none());
        assert!(parts.next().unwrap().deliver(completion(Err(RequestError::TooMany(1)))).is_none());
        assert!(!caller.has_completions());
        // A dropped part has failed.
        drop(parts.next().unwrap());
        let completion = caller.take_completion().unwrap();
        assert!(matches!((completion.tag, completion.result), (9, Err(RequestError::TooMany(1)))));
    }

    #[test]
    fn succeeds_if_all_parts_do() {
        let (sender, receiver) = oneshot::async_channel();
        Reply::Future(sender).split(2).for_each(|part| drop(part.deliver(completion(Ok(())))));
        assert!(block_on(receiver).unwrap().result.is_ok());
    }
}
