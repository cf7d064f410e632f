//! Clients of a listener: their number, and their times.
//!
//! A client that has not sent its request is displaced by a newer one if there are too many. So clients that are slow or
//! send nothing keep no other client out.
//!
//! Invariant: each client ends: within a time for its request, one for the program, and one to read the response. Only a
//! client that follows events has no time.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// Clients of a listener at a time; others wait in its backlog.
pub(super) const MAX_CLIENTS: usize = 64;
/// Time to send a request, and to read its response.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a command, which can open volumes on other machines.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Time after which a later end is noticed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The clients of a listener.
pub(super) struct Clients {
    permits: Arc<Semaphore>,
    /// Those that may not have sent their request, the oldest first.
    waiting: VecDeque<(Arc<Client>, AbortHandle)>,
}

/// A client.
pub(super) struct Client {
    phase: Mutex<Phase>,
}

/// Phase of a client, with its end.
#[derive(Clone, Copy)]
enum Phase {
    /// Its request arrives.
    Request(Instant),
    /// The program executes it, or the response is sent.
    Response(Instant),
    /// It gets lines until it ends.
    Endless,
}

impl Clients {
    pub(super) fn new() -> Clients {
        Clients { permits: Arc::new(Semaphore::new(MAX_CLIENTS)), waiting: VecDeque::new() }
    }

    /// Waits until there is space for another client, which displaces one that has not sent its request.
    pub(super) async fn admit(&mut self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Some(permit);
        }
        self.forget();
        if let Some((_, task)) = self.waiting.pop_front() {
            log::limited!(Debug, "control socket: a client that has sent no request was displaced");
            task.abort();
        }
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Adds a client, whose task has its permit.
    pub(super) fn spawn<T>(&mut self, answer: impl FnOnce(Arc<Client>) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        self.forget();
        let client = Client::new();
        let task = tokio::spawn(answer(Arc::clone(&client)));
        self.waiting.push_back((client, task.abort_handle()));
    }

    fn forget(&mut self) {
        self.waiting.retain(|(client, task)| client.is_waiting() && !task.is_finished());
    }
}

impl Client {
    fn new() -> Arc<Client> {
        Arc::new(Client { phase: Mutex::new(Phase::Request(Instant::now() + TIMEOUT)) })
    }

    /// Its request is complete, and its response follows within a time.
    pub(super) fn set_answered_within(&self, time: Duration) {
        *self.phase() = Phase::Response(Instant::now() + time);
    }

    /// It follows events.
    pub(super) fn set_endless(&self) {
        *self.phase() = Phase::Endless;
    }

    /// Drives a connection until it ends, or its time has passed.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let mut connection = pin!(connection);
        loop {
            let check = Instant::now() + CHECK_INTERVAL;
            let until = self.end().map_or(check, |end| end.min(check));
            if let Ok(result) = timeout_at(until, &mut connection).await {
                return Some(result);
            }
            if self.end().is_some_and(|end| end <= Instant::now()) {
                return None;
            }
        }
    }

    fn end(&self) -> Option<Instant> {
        match *self.phase() {
            Phase::Request(end) | Phase::Response(end) => Some(end),
            Phase::Endless => None,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.phase(), Phase::Request(_))
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
