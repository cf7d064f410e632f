//! Connections: a queue pair with its completion queue, and requests that any thread waits for.
//!
//! One of the threads that wait leads: it waits in the completion queue, and records the completions of all. No thread
//! waits for Python's lock while it holds a lock of this file.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_verbs::{
    CompletionQueue, Limits, LocalData, PostError, QueuePair, QueuePairConfig, ReceiveRequest, SendOperation,
    SendRequest, Status, WorkCompletion,
};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Kind, error};
use crate::local::{Local, target};
use crate::memory::{Registered, RemoteMemory};
use crate::opened::Opened;
use crate::requests::{Description, Outcome, Table};
use crate::timeout::{deadline, slice_end};

/// The objects of a connection that exist before its queue pair.
pub(crate) struct Unconnected {
    opened: Arc<Opened>,
    config: QueuePairConfig,
    notice: Arc<OwnedFd>,
}

impl Unconnected {
    /// Creates the completion queue.
    pub(crate) fn new(opened: &Arc<Opened>) -> std::io::Result<Unconnected> {
        let notice = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let signaled = Arc::clone(&notice);
        let on_notice = Box::new(move |_| signal(&signaled));
        let queue = opened.device.completion_queue_with_notices(4 * MAX_REQUESTS, on_notice);
        let limits = Limits { send_requests: MAX_REQUESTS, receives: MAX_REQUESTS, ..Limits::default() };
        let config = QueuePairConfig { limits, ..QueuePairConfig::new(Arc::clone(&opened.domain), queue) };
        Ok(Unconnected { opened: Arc::clone(opened), config, notice })
    }

    pub(crate) fn config(&self) -> &QueuePairConfig {
        &self.config
    }

    pub(crate) fn into_connection(self, pair: QueuePair, peer: &str) -> Connection {
        let Unconnected { opened, config, notice } = self;
        let shared = Shared {
            opened,
            peer: peer.to_owned(),
            completions: config.send_queue,
            notice,
            pair: RwLock::new(Some(pair)),
            table: Mutex::default(),
            changed: Condvar::new(),
            watcher: Mutex::new(None),
        };
        Connection { shared: Arc::new(shared) }
    }
}

struct Shared {
    opened: Arc<Opened>,
    peer: String,
    completions: Arc<CompletionQueue>,
    /// Readable once a completion has arrived, if an event loop has requested that.
    notice: Arc<OwnedFd>,
    pair: RwLock<Option<QueuePair>>,
    table: Mutex<Table>,
    /// A request has completed, or the leader has left.
    changed: Condvar,
    /// The object of `python/isolane/_async.py` that waits for the notice.
    watcher: Mutex<Option<Py<PyAny>>>,
}

/// Why a request was not posted.
enum PostFailure {
    Closed,
    Refused(PostError),
}

impl Shared {
    /// Waits until `is_done`. Returns `false` at the deadline.
    fn wait(&self, until: Instant, is_done: impl Fn(&Table) -> bool) -> bool {
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
    fn poll(&self) {
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

    /// Posts a request, once fewer than the maximum are in flight. `None` if that takes long.
    fn post(
        &self,
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
            if !self.wait(slice_end(None), |table| table.in_flight[queue] < MAX_REQUESTS) {
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

    fn close(&self) {
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

    fn post_failure(&self, py: Python<'_>, failure: &PostFailure) -> PyErr {
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

    fn failure(&self, py: Python<'_>, description: Description, outcome: Outcome) -> PyErr {
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

/// A queue pair that is connected to a peer.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Connection {
    shared: Arc<Shared>,
}

#[pymethods]
impl Connection {
    /// Starts to write `local` to memory of the peer.
    #[pyo3(signature = (local, remote, offset = 0, *, immediate = None))]
    fn start_write(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        immediate: Option<u32>,
    ) -> PyResult<Request> {
        let local = Local::new(local, &self.shared.opened, false)?;
        let (address, key) = target(remote, offset, local.len)?;
        self.send("write", local, SendOperation::Write { address, key, immediate }, remote.py())
    }

    /// Writes `local` to memory of the peer, and waits until it is there.
    #[pyo3(signature = (local, remote, offset = 0, *, immediate = None, timeout = None))]
    fn write(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        immediate: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        self.start_write(local, remote, offset, immediate)?.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to read memory of the peer into `local`.
    #[pyo3(signature = (local, remote, offset = 0))]
    fn start_read(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
    ) -> PyResult<Request> {
        let local = Local::new(local, &self.shared.opened, true)?;
        let (address, key) = target(remote, offset, local.len)?;
        self.send("read", local, SendOperation::Read { address, key }, remote.py())
    }

    /// Reads memory of the peer into `local`, and waits for it.
    #[pyo3(signature = (local, remote, offset = 0, *, timeout = None))]
    fn read(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        self.start_read(local, remote, offset)?.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to send `local` to a receive of the peer.
    #[pyo3(signature = (local, *, immediate = None))]
    fn start_send(&self, local: &Bound<'_, PyAny>, immediate: Option<u32>) -> PyResult<Request> {
        let py = local.py();
        let local = Local::new(local, &self.shared.opened, false)?;
        self.send("send", local, SendOperation::Send { immediate }, py)
    }

    /// Sends `local` to a receive of the peer, and waits until it is there.
    #[pyo3(name = "send", signature = (local, *, immediate = None, timeout = None))]
    fn send_and_wait(
        &self,
        local: &Bound<'_, PyAny>,
        immediate: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        self.start_send(local, immediate)?.finish(local.py(), deadline).map(drop)
    }

    /// Starts to receive a message into `local`, or a notification.
    #[pyo3(signature = (local = None))]
    fn start_recv(&self, py: Python<'_>, local: Option<&Bound<'_, PyAny>>) -> PyResult<Request> {
        let local =
            local.map_or(Ok(Local::default()), |local| Local::new(local, &self.shared.opened, true))?;
        let description = Description { operation: "receive", len: local.len, is_receive: true };
        let LocalData::Sges(data) = local.data else { unreachable!("destinations are registered") };
        self.shared.opened.check_process(py)?;
        if self.shared.table.lock().in_flight[1] >= MAX_REQUESTS {
            let text = format!("{MAX_REQUESTS} receives are posted: wait for one of them first");
            return Err(error(py, Kind::Other, text));
        }
        let post = |pair: &QueuePair, id| pair.post_receive(ReceiveRequest { id, data: data.clone() });
        self.start(py, description, local.memory.as_ref(), post)
    }

    /// Waits for a message or a notification.
    #[pyo3(signature = (local = None, *, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        local: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Received>> {
        let deadline = deadline(timeout)?;
        self.start_recv(py, local)?.finish(py, deadline)
    }

    /// Ends the connection. Requests in flight fail.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shared.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let is_open = self.shared.pair.read().is_some();
        format!("<isolane.Connection to {}{}>", self.shared.peer, if is_open { "" } else { ", closed" })
    }
}

impl Connection {
    fn send(
        &self,
        operation: &'static str,
        local: Local,
        posted: SendOperation,
        py: Python<'_>,
    ) -> PyResult<Request> {
        let description = Description { operation, len: local.len, is_receive: false };
        let Local { data, memory, .. } = local;
        let post = |pair: &QueuePair, id| {
            let (operation, data) = (posted, data.clone());
            pair.post_send(SendRequest {
                id,
                operation,
                data,
                signaled: true,
                solicited: true,
                fenced: false,
            })
        };
        self.start(py, description, memory.as_ref(), post)
    }

    fn start(
        &self,
        py: Python<'_>,
        description: Description,
        memory: Option<&Arc<Registered>>,
        post: impl Fn(&QueuePair, u64) -> Result<(), PostError> + Sync,
    ) -> PyResult<Request> {
        self.shared.opened.check_process(py)?;
        loop {
            match py.detach(|| self.shared.post(description, memory, &post)) {
                Some(Ok(id)) => return Ok(Request { shared: Arc::clone(&self.shared), id }),
                Some(Err(failure)) => return Err(self.shared.post_failure(py, &failure)),
                None => py.check_signals()?,
            }
        }
    }
}

/// A request in flight, or its result.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Request {
    shared: Arc<Shared>,
    id: usize,
}

#[pymethods]
impl Request {
    /// Whether the request has completed.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.opened.check_process(py)?;
        self.shared.poll();
        Ok(self.shared.table.lock().outcome(self.id).is_some())
    }

    /// Waits for the result.
    #[pyo3(signature = (timeout = None))]
    fn wait(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Option<Received>> {
        let (py, deadline) = (slf.py(), deadline(timeout)?);
        match slf.get().wait_before(py, deadline)? {
            Some(result) => slf.get().result(py, result),
            None => Err(timed_out(py, slf)),
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("isolane._async")?;
        module.getattr("wait")?.call1((slf,))?.call_method0("__await__")
    }

    /// Descriptor that is readable after `_arm` once a completion has arrived.
    fn _fileno(&self) -> RawFd {
        self.shared.notice.as_raw_fd()
    }

    /// Requests that the descriptor becomes readable.
    fn _arm(&self) {
        self.shared.table.lock().is_watched = true;
        self.shared.completions.request_notice(false);
    }

    /// Makes the descriptor unreadable.
    fn _disarm(&self) {
        self.shared.table.lock().is_watched = false;
        let _ = rustix::io::read(&*self.shared.notice, &mut [0; 8]);
    }

    #[getter(_watcher)]
    fn watcher(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.shared.watcher.lock().as_ref().map(|watcher| watcher.clone_ref(py))
    }

    #[setter(_watcher)]
    fn set_watcher(&self, watcher: Option<Py<PyAny>>) {
        let old = std::mem::replace(&mut *self.shared.watcher.lock(), watcher);
        drop(old);
    }
}

impl Request {
    fn wait_before(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
    ) -> PyResult<Option<(Description, Outcome)>> {
        self.shared.opened.check_process(py)?;
        // Mostly so in a batch, whose completions arrive together.
        if let Some(result) = self.shared.table.lock().outcome(self.id) {
            return Ok(Some(result));
        }
        loop {
            let until = slice_end(deadline);
            let is_done = py.detach(|| self.shared.wait(until, |table| table.outcome(self.id).is_some()));
            if is_done {
                return Ok(self.shared.table.lock().outcome(self.id));
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    fn result(
        &self,
        py: Python<'_>,
        (description, outcome): (Description, Outcome),
    ) -> PyResult<Option<Received>> {
        match outcome {
            Outcome::Success(nbytes, immediate) if description.is_receive => {
                Ok(Some(Received { nbytes, immediate }))
            }
            Outcome::Success(..) => Ok(None),
            failed => Err(self.shared.failure(py, description, failed)),
        }
    }

    /// Waits for the result of a request that the program has not seen.
    fn finish(self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<Option<Received>> {
        match self.wait_before(py, deadline)? {
            Some(result) => self.result(py, result),
            None => Err(timed_out(py, &Bound::new(py, self)?)),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.shared.opened.is_of_this_process() {
            self.shared.table.lock().release(self.id);
        }
    }
}

/// Returns the exception for a request that is still in flight, which it has as an attribute.
fn timed_out(py: Python<'_>, request: &Bound<'_, Request>) -> PyErr {
    let text = "the request is in flight after its timeout: wait for its attribute `request`, or close the connection";
    let failure = error(py, Kind::Timeout, text);
    match failure.value(py).setattr("request", request) {
        Ok(()) => failure,
        Err(other) => other,
    }
}

/// A received message, or a notification.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Received {
    /// Length of the message in bytes; of a notification, length of the WRITE.
    #[pyo3(get)]
    nbytes: u64,
    /// Immediate data.
    #[pyo3(get)]
    immediate: Option<u32>,
}

#[pymethods]
impl Received {
    fn __repr__(&self) -> String {
        let immediate = self.immediate.map_or_else(|| "None".to_owned(), |value| value.to_string());
        format!("isolane.Received(nbytes={}, immediate={immediate})", self.nbytes)
    }
}

fn signal(notice: &OwnedFd) {
    let _ = rustix::io::write(notice, &1_u64.to_ne_bytes());
}

/// Maximum number of requests in flight in each direction.
const MAX_REQUESTS: usize = 256;
/// How long a thread polls while requests are sent, which take microseconds each.
const SEND_SPIN: Duration = Duration::from_micros(500);
