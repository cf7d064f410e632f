//! The parts of a connection that its requests share: any thread waits for them.
//!
//! One of the threads that wait leads: it waits in the completion queue, and records the completions of all. No thread
//! waits for Python's lock while it holds a lock of this file.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_verbs::{
    CompletionQueue, LocalData, PostError, QueuePair, SendOperation, SendRequest, Status, WorkCompletion,
};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use pyo3::prelude::*;

use crate::error::{Kind, error};
use crate::memory::Registered;
use crate::opened::Opened;
use crate::requests::{Description, Outcome, Table};
use crate::timeout::slice_end;

/// The parts of a connection that its requests share.
pub(crate) struct Shared {
    pub(crate) opened: Arc<Opened>,
    pub(crate) peer: String,
    pub(crate) completions: Arc<CompletionQueue>,
    /// Readable once a completion has arrived, if an event loop has requested that.
    pub(crate) notice: Arc<OwnedFd>,
    pub(crate) pair: RwLock<Option<QueuePair>>,
    pub(crate) table: Mutex<Table>,
    /// A request has completed, or the leader has left.
    changed: Condvar,
    /// The object of `python/isolane/_async.py` that waits for the notice.
    pub(crate) watcher: Mutex<Option<Py<PyAny>>>,
}

/// Why a request was not posted.
pub(crate) enum PostFailure {
    Closed,
    Refused(PostError),
}

impl Shared {
    pub(crate) fn new(
        opened: Arc<Opened>,
        peer: &str,
        completions: Arc<CompletionQueue>,
        notice: Arc<OwnedFd>,
        pair: QueuePair,
    ) -> Shared {
        Shared {
            opened,
            peer: peer.to_owned(),
            completions,
            notice,
            pair: RwLock::new(Some(pair)),
            table: Mutex::default(),
            changed: Condvar::new(),
            watcher: Mutex::new(None),
        }
    }

    /// Waits until `is_done`. Returns `false` at the deadline.
    pub(crate) fn wait(&self, until: Instant, is_done: impl Fn(&Table) -> bool) -> bool {
        let mut table = self.table.lock();
        while !is_done(&table) {
            let now = Instant::now();
            if until <= now {
                return false;
            }
            if table.has_leader {
                self.changed.wait_until(&mut table, until);
                continue;
            }
            table.has_leader = true;
            let spins_until = if table.in_flight[0] > 0 { until.min(now + SEND_SPIN) } else { now };
            let found = MutexGuard::unlocked(&mut table, || self.next(spins_until, until));
            table.has_leader = false;
            let has_found = found.is_some();
            let mut next = found;
            let mut memories = Vec::new();
            while let Some(done) = next {
                memories.extend(table.complete(&done.completion));
                next = self.completions.take();
            }
            // Another thread leads from now on.
            self.changed.notify_all();
            self.report(&table, has_found);
            if !memories.is_empty() {
                MutexGuard::unlocked(&mut table, || drop(memories));
            }
        }
        true
    }

    /// Waits for the next completion: polls at least until `spins_until`, then sleeps.
    fn next(&self, spins_until: Instant, until: Instant) -> Option<WorkCompletion> {
        loop {
            if let Some(found) = self.completions.poll() {
                return Some(found);
            }
            let now = Instant::now();
            if now >= spins_until {
                return self.completions.wait(until.saturating_duration_since(now));
            }
            std::hint::spin_loop();
        }
    }

    /// Records the completions that have arrived, without waiting.
    pub(crate) fn poll(&self) {
        let (mut memories, mut has_found) = (Vec::new(), false);
        let mut table = self.table.lock();
        while let Some(done) = self.completions.take() {
            memories.extend(table.complete(&done.completion));
            has_found = true;
        }
        self.report(&table, has_found);
        drop(table);
    }

    /// Wakes the threads and the event loop that wait for recorded completions, if there are new ones.
    fn report(&self, table: &Table, has_found: bool) {
        if !has_found {
            return;
        }
        self.changed.notify_all();
        if table.is_watched {
            signal(&self.notice);
        }
    }

    /// Posts a request, once fewer than the maximum are in flight. `None` if that takes long, or until the deadline.
    pub(crate) fn post(
        &self,
        deadline: Option<Instant>,
        description: Description,
        memory: Option<&Arc<Registered>>,
        post: impl FnOnce(&QueuePair, u64) -> Result<(), PostError>,
    ) -> Option<Result<usize, PostFailure>> {
        let queue = usize::from(description.is_receive);
        let mut table = self.table.lock();
        let id = loop {
            if table.in_flight[queue] < MAX_REQUESTS {
                break table.insert(description, memory.cloned());
            }
            drop(table);
            if !self.wait(slice_end(deadline), |table| table.in_flight[queue] < MAX_REQUESTS) {
                return None;
            }
            table = self.table.lock();
        };
        drop(table);
        let posted = match &*self.pair.read() {
            None => Err(PostFailure::Closed),
            Some(pair) => post(pair, id as u64).map_err(PostFailure::Refused),
        };
        if posted.is_err() {
            let memory = self.table.lock().cancel(id);
            drop(memory);
        }
        Some(posted.map(|()| id))
    }

    pub(crate) fn close(&self) {
        if !self.opened.is_of_this_process() {
            return;
        }
        let pair = self.pair.write().take();
        drop(pair);
        let mut table = self.table.lock();
        let memories = table.close();
        self.report(&table, true);
        drop(table);
        drop(memories);
    }

    pub(crate) fn post_failure(&self, py: Python<'_>, failure: &PostFailure) -> PyErr {
        match failure {
            PostFailure::Closed => error(py, Kind::ConnectionLost, "the connection is closed: connect again"),
            PostFailure::Refused(PostError::State(_)) => {
                error(py, Kind::ConnectionLost, self.ended("the request was not sent"))
            }
            PostFailure::Refused(reason) => error(py, Kind::Other, format!("{}: {reason}", self.peer)),
        }
    }

    /// Returns a text with the first failure of the connection, which is mostly the cause.
    fn ended(&self, text: &str) -> String {
        match &self.table.lock().first_failure {
            Some(first) => format!("{}: {text} after an earlier failure: {first}", self.peer),
            None => format!("{}: {text}: the peer has ended the connection; connect again", self.peer),
        }
    }

    pub(crate) fn failure(&self, py: Python<'_>, description: Description, outcome: Outcome) -> PyErr {
        let Description { operation, len, .. } = description;
        let Outcome::Failed(status) = outcome else {
            return error(
                py,
                Kind::ConnectionLost,
                format!("{operation} of {len} bytes: the connection was closed"),
            );
        };
        if status == Status::Flushed {
            return error(
                py,
                Kind::ConnectionLost,
                self.ended(&format!("{operation} of {len} bytes: not completed")),
            );
        }
        let (kind, remedy) = match status {
            Status::RemoteAccess => (
                Kind::Access,
                "the peer has no memory with this key that allows it; check key, range, and the rights of register()",
            ),
            Status::LocalProtection => {
                (Kind::Access, "this program has closed the memory; keep it until the end")
            }
            Status::LocalLength => (Kind::Other, "the message is longer than the buffer; pass a larger one"),
            Status::RemoteInvalidRequest if operation == ATOMIC => {
                (Kind::Other, "the memory of the peer starts at no multiple of 8 bytes; align it there")
            }
            Status::RemoteInvalidRequest => (Kind::Other, "the buffer of the peer is too short; send less"),
            Status::RetryExceeded => (Kind::ConnectionLost, "the peer does not respond; connect again"),
            _ => (Kind::Other, "connect again"),
        };
        let text = format!("{}: {operation} of {len} bytes: {}: {remedy}", self.peer, status.name());
        self.table.lock().first_failure.get_or_insert_with(|| text.clone());
        error(py, kind, text)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.opened.is_of_this_process() {
            std::mem::forget(self.pair.get_mut().take());
        }
    }
}

/// Returns the error of a request that was not posted before its deadline.
pub(crate) fn not_posted(py: Python<'_>, shared: &Shared, description: Description) -> PyErr {
    let Description { operation, len, .. } = description;
    let reason = format!("{MAX_REQUESTS} requests are in flight, and the peer completes none");
    error(py, Kind::Timeout, format!("{}: {operation} of {len} bytes: not posted: {reason}", shared.peer))
}

/// Returns a request whose completion wakes those that wait for it.
pub(crate) fn send_request(id: u64, operation: SendOperation, data: LocalData) -> SendRequest {
    SendRequest { id, operation, data, signaled: true, solicited: true, fenced: false }
}

/// Makes the descriptor of a notice readable.
pub(crate) fn signal(notice: &OwnedFd) {
    let _ = rustix::io::write(notice, &1_u64.to_ne_bytes());
}

/// Operation of a compare and swap, and of a fetch and add.
pub(crate) const ATOMIC: &str = "atomic operation";
/// Maximum number of requests in flight in each direction.
pub(crate) const MAX_REQUESTS: usize = 256;
/// How long a thread polls while requests are sent, which take microseconds each.
const SEND_SPIN: Duration = Duration::from_micros(500);
