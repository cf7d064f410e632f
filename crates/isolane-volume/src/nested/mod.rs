//! Volumes made of other volumes: a request as a future that sends requests to members.
//!
//! A nested volume returns [`Step::nested`] with an `async` block. The driver of the volume runs it in an
//! [`Executor`], one per core, on the thread that received the request. Leaf volumes have no part in this.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use isolane_volume::{Request, Step, Volume};
//!
//! /// Delays a request.
//! fn delay(inner: &Arc<dyn Volume>, request: Request) -> Step {
//!     let inner = Arc::clone(inner);
//!     Step::nested(request, |io, request| async move {
//!         io.sleep(Duration::from_millis(5)).await;
//!         io.start(&inner, request).await
//!     })
//! }
//! ```
//!
//! Invariant: a nested request completes only after all requests that it sent have ended, or were abandoned.

mod executor;
mod timer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::executor::{Executor, Member, Operation};
pub use self::timer::{MemberEnd, address_of};
use crate::request::{Completer, Outcome, Pending, Request, Step};
use crate::{Volume, VolumeError};

impl Step {
    /// Returns a step that executes `request` with requests to other volumes. `run` can await only what
    /// [`NestedIo`] starts.
    pub fn nested<F>(request: Request, run: impl FnOnce(NestedIo, Request) -> F) -> Step
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (completer, mut step) = Step::pending(&request);
        if let Step::Pending(pending) = &mut step {
            let io = NestedIo::default();
            let future = Box::pin(run(io.clone(), request));
            pending.attach_work(Box::new(Nested { future, io, completer }));
        }
        step
    }
}

impl Pending {
    /// Takes the nested request that completes this one; the driver starts it in its [`Executor`].
    pub fn take_nested(&mut self) -> Option<Nested> {
        self.take_work()?.downcast().ok().map(|nested| *nested)
    }
}

/// A nested request that an [`Executor`] runs.
pub struct Nested {
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    io: NestedIo,
    completer: Completer,
}

impl fmt::Debug for Nested {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Nested")
    }
}

/// Starts requests to members on behalf of one nested request.
#[derive(Clone, Debug, Default)]
pub struct NestedIo {
    queue: Arc<Mutex<IoQueue>>,
}

/// Changes that the executor has not seen yet.
#[derive(Debug, Default)]
struct IoQueue {
    started: Vec<Started>,
    /// Number of requests that were abandoned.
    abandoned: usize,
}

/// A request to a member or a timer that the executor has not seen yet.
#[derive(Debug)]
struct Started {
    reply: Reply,
    command: Command,
}

#[derive(Debug)]
enum Command {
    Request(Arc<dyn Volume>, Request),
    SleepUntil(Instant),
    WaitForTurn,
}

impl NestedIo {
    /// Starts a request to a member. Requests that are started before the first is awaited run concurrently.
    pub fn start(&self, member: &Arc<dyn Volume>, request: Request) -> Running {
        self.push(Command::Request(Arc::clone(member), request))
    }

    /// Waits for at least `duration` from this call on, not from the start of the turn of the core.
    pub async fn sleep(&self, duration: Duration) {
        // Waiting has no error.
        let _ = self.push(Command::SleepUntil(Instant::now() + duration)).await;
    }

    /// Waits for a later turn of the core, for example until another request has released a lock.
    pub async fn retry_later(&self) {
        let _ = self.push(Command::WaitForTurn).await;
    }

    /// Starts the requests and waits for all of them.
    ///
    /// # Errors
    /// The first error in the order of the requests.
    pub async fn run_all(
        &self,
        requests: impl IntoIterator<Item = (Arc<dyn Volume>, Request)>,
    ) -> Result<Vec<isolane_memory::Payload>, VolumeError> {
        let running: Vec<_> =
            requests.into_iter().map(|(member, request)| self.start(&member, request)).collect();
        let mut outcomes = Vec::with_capacity(running.len());
        for running in running {
            outcomes.push(running.await);
        }
        outcomes.into_iter().collect()
    }

    fn push(&self, command: Command) -> Running {
        let reply = Reply::default();
        self.queue.lock().started.push(Started { reply: Arc::clone(&reply), command });
        Running(reply)
    }

    /// Stops waiting for a request, which may still execute later. Returns its outcome if it has ended.
    pub fn abandon(&self, running: Running) -> Option<Outcome> {
        match std::mem::replace(&mut *running.0.lock(), ReplyState::Abandoned) {
            ReplyState::Waiting => {
                self.queue.lock().abandoned += 1;
                None
            }
            ReplyState::Ended(outcome) => Some(outcome),
            ReplyState::Abandoned => None,
        }
    }
}

type Reply = Arc<Mutex<ReplyState>>;

#[derive(Debug, Default)]
enum ReplyState {
    #[default]
    Waiting,
    Ended(Outcome),
    /// The outcome was taken, or will be ignored.
    Abandoned,
}

/// A request to a member in progress. Dropping it does not cancel the request.
#[derive(Debug)]
#[must_use = "the outcome can be an error"]
pub struct Running(Reply);

impl Future for Running {
    type Output = Outcome;

    /// The executor polls the nested request again whenever a member replies, and a few times per second.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Outcome> {
        let mut reply = self.0.lock();
        match std::mem::replace(&mut *reply, ReplyState::Abandoned) {
            ReplyState::Ended(outcome) => Poll::Ready(outcome),
            state => {
                *reply = state;
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests;
