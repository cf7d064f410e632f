//! Connections: a queue pair with its completion queue, and the operations that it starts.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use isolane_verbs::{
    Limits, LocalData, PostError, QueuePair, QueuePairConfig, ReceiveRequest, SendOperation,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rustix::event::{EventfdFlags, eventfd};

use crate::batch::Batch;
use crate::error::{Kind, error};
use crate::local::{Local, target};
use crate::memory::{Registered, RemoteMemory};
use crate::opened::Opened;
use crate::pending::Request;
use crate::requests::Description;
use crate::shared::{ATOMIC, MAX_REQUESTS, Shared, not_posted, send_request, signal};
use crate::timeout::{deadline, is_over};

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
        let shared = Shared::new(opened, peer, config.send_queue, notice, pair);
        Connection { shared: Arc::new(shared) }
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
        self.write_before(None, local, remote, offset, immediate)
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
        self.write_before(deadline, local, remote, offset, immediate)?.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to read memory of the peer into `local`.
    #[pyo3(signature = (local, remote, offset = 0))]
    fn start_read(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
    ) -> PyResult<Request> {
        self.read_before(None, local, remote, offset)
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
        self.read_before(deadline, local, remote, offset)?.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to write parts of `local` to memory of the peer, as one request.
    #[pyo3(signature = (local, remote, parts, *, immediate = None))]
    fn start_write_batch(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
        immediate: Option<u32>,
    ) -> PyResult<Request> {
        self.batch_before(None, local, remote, parts, false, immediate)
    }

    /// Writes parts of `local` to memory of the peer, and waits until all are there.
    #[pyo3(signature = (local, remote, parts, *, immediate = None, timeout = None))]
    fn write_batch(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
        immediate: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        let request = self.batch_before(deadline, local, remote, parts, false, immediate)?;
        request.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to read memory of the peer into parts of `local`, as one request.
    fn start_read_batch(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
    ) -> PyResult<Request> {
        self.batch_before(None, local, remote, parts, true, None)
    }

    /// Reads memory of the peer into parts of `local`, and waits for all.
    #[pyo3(signature = (local, remote, parts, *, timeout = None))]
    fn read_batch(
        &self,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        let request = self.batch_before(deadline, local, remote, parts, true, None)?;
        request.finish(remote.py(), deadline).map(drop)
    }

    /// Starts to replace 8 bytes of the peer by `swap`, if they are `compare`.
    #[pyo3(signature = (remote, compare, swap, offset = 0))]
    fn start_compare_swap(
        &self,
        remote: &Bound<'_, RemoteMemory>,
        compare: u64,
        swap: u64,
        offset: u64,
    ) -> PyResult<Request> {
        self.compare_swap_before(None, remote, offset, compare, swap)
    }

    /// Replaces 8 bytes of the peer by `swap`, if they are `compare`. Returns their former value.
    #[pyo3(signature = (remote, compare, swap, offset = 0, *, timeout = None))]
    fn compare_swap(
        &self,
        remote: &Bound<'_, RemoteMemory>,
        compare: u64,
        swap: u64,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let deadline = deadline(timeout)?;
        let request = self.compare_swap_before(deadline, remote, offset, compare, swap)?;
        request.finish(remote.py(), deadline).map(Bound::unbind)
    }

    /// Starts to add to 8 bytes of the peer, modulo 2^64.
    #[pyo3(signature = (remote, add, offset = 0))]
    fn start_fetch_add(&self, remote: &Bound<'_, RemoteMemory>, add: u64, offset: u64) -> PyResult<Request> {
        self.fetch_add_before(None, remote, offset, add)
    }

    /// Adds to 8 bytes of the peer, modulo 2^64. Returns their former value.
    #[pyo3(signature = (remote, add, offset = 0, *, timeout = None))]
    fn fetch_add(
        &self,
        remote: &Bound<'_, RemoteMemory>,
        add: u64,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let deadline = deadline(timeout)?;
        self.fetch_add_before(deadline, remote, offset, add)?.finish(remote.py(), deadline).map(Bound::unbind)
    }

    /// Starts to send `local` to a receive of the peer.
    #[pyo3(signature = (local, *, immediate = None))]
    fn start_send(&self, local: &Bound<'_, PyAny>, immediate: Option<u32>) -> PyResult<Request> {
        self.send_before(None, local, immediate)
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
        self.send_before(deadline, local, immediate)?.finish(local.py(), deadline).map(drop)
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
        self.start(py, None, description, local.memory.as_ref(), post)
    }

    /// Waits for a message or a notification.
    #[pyo3(signature = (local = None, *, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        local: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let deadline = deadline(timeout)?;
        self.start_recv(py, local)?.finish(py, deadline).map(Bound::unbind)
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

/// Requests that are posted before a deadline, if there is one.
impl Connection {
    fn write_before(
        &self,
        deadline: Option<Instant>,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        immediate: Option<u32>,
    ) -> PyResult<Request> {
        let local = Local::new(local, &self.shared.opened, false)?;
        let (address, rkey) = target(remote, offset, local.len)?;
        self.send(remote.py(), deadline, "write", local, SendOperation::Write { address, rkey, immediate })
    }

    fn read_before(
        &self,
        deadline: Option<Instant>,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
    ) -> PyResult<Request> {
        let local = Local::new(local, &self.shared.opened, true)?;
        let (address, rkey) = target(remote, offset, local.len)?;
        self.send(remote.py(), deadline, "read", local, SendOperation::Read { address, rkey })
    }

    fn batch_before(
        &self,
        deadline: Option<Instant>,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
        is_read: bool,
        immediate: Option<u32>,
    ) -> PyResult<Request> {
        let batch = Batch::new(local, &self.shared.opened, remote, parts, is_read)?;
        batch.start(&self.shared, remote.py(), immediate, deadline)
    }

    fn send_before(
        &self,
        deadline: Option<Instant>,
        object: &Bound<'_, PyAny>,
        immediate: Option<u32>,
    ) -> PyResult<Request> {
        let local = Local::new(object, &self.shared.opened, false)?;
        self.send(object.py(), deadline, "send", local, SendOperation::Send { immediate })
    }

    fn compare_swap_before(
        &self,
        deadline: Option<Instant>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> PyResult<Request> {
        let operation = |address, rkey| SendOperation::CompareSwap { address, rkey, compare, swap };
        self.atomic(deadline, remote, offset, operation)
    }

    fn fetch_add_before(
        &self,
        deadline: Option<Instant>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        add: u64,
    ) -> PyResult<Request> {
        self.atomic(deadline, remote, offset, |address, rkey| SendOperation::FetchAdd { address, rkey, add })
    }

    fn atomic(
        &self,
        deadline: Option<Instant>,
        remote: &Bound<'_, RemoteMemory>,
        offset: u64,
        operation: impl FnOnce(u64, u32) -> SendOperation,
    ) -> PyResult<Request> {
        let py = remote.py();
        let (address, rkey) = target(remote, offset, 8)?;
        if !address.is_multiple_of(8) {
            let text = format!("offset {address} of the peer's memory: pass a multiple of 8 bytes");
            return Err(PyValueError::new_err(text));
        }
        let former = PyByteArray::new(py, &[0; 8]);
        let local = Local::new(&former, &self.shared.opened, true)?;
        let request = self.send(py, deadline, ATOMIC, local, operation(address, rkey))?;
        Ok(request.with_former(former.unbind()))
    }

    fn send(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        operation: &'static str,
        local: Local,
        posted: SendOperation,
    ) -> PyResult<Request> {
        let description = Description { operation, len: local.len, is_receive: false };
        let Local { data, memory, .. } = local;
        let post = |pair: &QueuePair, id| pair.post_send(send_request(id, posted, data.clone()));
        self.start(py, deadline, description, memory.as_ref(), post)
    }

    fn start(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        description: Description,
        memory: Option<&Arc<Registered>>,
        post: impl Fn(&QueuePair, u64) -> Result<(), PostError> + Sync,
    ) -> PyResult<Request> {
        self.shared.opened.check_process(py)?;
        loop {
            match py.detach(|| self.shared.post(deadline, description, memory, &post)) {
                Some(Ok(id)) => return Ok(Request::new(&self.shared, id)),
                Some(Err(failure)) => return Err(self.shared.post_failure(py, &failure)),
                None if is_over(deadline) => return Err(not_posted(py, &self.shared, description)),
                None => py.check_signals()?,
            }
        }
    }
}
