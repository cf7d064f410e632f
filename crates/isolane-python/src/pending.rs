//! Requests in flight as objects of Python, and received messages.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyType};

use crate::error::{Kind, error};
use crate::requests::{Description, Outcome};
use crate::shared::Shared;
use crate::timeout::{deadline, is_over, slice_end};

/// A request in flight, or its result.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Request {
    shared: Arc<Shared>,
    id: usize,
    /// Receives the former value of an atomic operation.
    former: Option<Py<PyByteArray>>,
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
    fn wait<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let (py, deadline) = (slf.py(), deadline(timeout)?);
        match slf.get().wait_before(py, deadline)? {
            Some(result) => slf.get().result(py, result),
            None => Err(timed_out(py, slf)),
        }
    }

    /// The type hints have the type of the result in brackets.
    #[classmethod]
    fn __class_getitem__(class: &Bound<'_, PyType>, _result: &Bound<'_, PyAny>) -> Py<PyType> {
        class.clone().unbind()
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
    pub(crate) fn new(shared: &Arc<Shared>, id: usize) -> Request {
        Request { shared: Arc::clone(shared), id, former: None }
    }

    /// Keeps the bytes that receive the former value of an atomic operation.
    pub(crate) fn with_former(self, bytes: Py<PyByteArray>) -> Request {
        // A request releases its slot when it is dropped, so it is not taken apart.
        let mut request = self;
        request.former = Some(bytes);
        request
    }

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
            if is_over(deadline) {
                return Ok(None);
            }
        }
    }

    /// Returns `Received` of a receive, the former value of an atomic operation, and otherwise `None`.
    fn result<'py>(
        &self,
        py: Python<'py>,
        (description, outcome): (Description, Outcome),
    ) -> PyResult<Bound<'py, PyAny>> {
        match (outcome, &self.former) {
            (Outcome::Success(nbytes, immediate), _) if description.is_receive => {
                Ok(Bound::new(py, Received { nbytes, immediate })?.into_any())
            }
            (Outcome::Success(..), Some(former)) => {
                let bytes = former.bind(py).to_vec().try_into().expect("8 bytes");
                Ok(u64::from_ne_bytes(bytes).into_pyobject(py)?.into_any())
            }
            (Outcome::Success(..), None) => Ok(py.None().into_bound(py)),
            (failed, _) => Err(self.shared.failure(py, description, failed)),
        }
    }

    /// Waits for the result of a request that the program has not seen.
    pub(crate) fn finish(self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<Bound<'_, PyAny>> {
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
