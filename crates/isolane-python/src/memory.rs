//! Registered memory, and its description for peers.

use std::sync::Arc;

use isolane_verbs::{Access, Registration, Sge, SgeList};
use parking_lot::Mutex;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

use crate::error::{Kind, error};
use crate::export::Export;
use crate::opened::Opened;

/// A registration. Dropping it ends the registration: no peer reaches the memory afterwards.
pub(crate) struct Registered {
    opened: Arc<Opened>,
    registration: Arc<Registration>,
    is_writable: bool,
}

impl Registered {
    /// Registers the memory of an export, with these rights of peers.
    pub(crate) fn new(
        py: Python<'_>,
        opened: &Arc<Opened>,
        export: Export,
        (remote_write, remote_read): (bool, bool),
    ) -> PyResult<Arc<Registered>> {
        // The locks of the device can be held forever in the child of a fork.
        opened.check_process(py)?;
        let is_writable = export.is_writable();
        let region = Arc::new(Export::region(py, Py::new(py, export)?));
        let access = Access(0)
            .with_local_write(is_writable)
            .with_remote_write(is_writable && remote_write)
            .with_remote_read(remote_read)
            .with_remote_atomic(is_writable && remote_write);
        // Peers address the memory by offsets, so that they learn no address of this process.
        let registration = opened.domain.register(region, 0, access);
        let registration = registration.map_err(|failure| error(py, Kind::Other, failure))?;
        Ok(Arc::new(Registered { opened: Arc::clone(opened), registration, is_writable }))
    }

    pub(crate) fn is_of(&self, opened: &Arc<Opened>) -> bool {
        Arc::ptr_eq(&self.opened, opened)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(crate) fn len(&self) -> usize {
        self.registration.region().len()
    }

    pub(crate) fn sges(&self, offset: usize, len: usize) -> SgeList {
        let sge = Sge { address: offset as u64, length: len as u32, lkey: self.registration.key() };
        if len == 0 { SgeList::new() } else { [sge].into_iter().collect() }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.opened.is_of_this_process() {
            return;
        }
        self.opened.device.deregister(&self.opened.domain, &self.registration);
    }
}

/// Memory of a Python object that is registered with a device.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Memory {
    registered: Mutex<Option<Arc<Registered>>>,
    offset: usize,
    len: usize,
}

impl Memory {
    pub(crate) fn new(registered: Arc<Registered>) -> Memory {
        let len = registered.len();
        Memory { registered: Mutex::new(Some(registered)), offset: 0, len }
    }

    /// Returns the registration, and the part of it that this is.
    pub(crate) fn part(&self, py: Python<'_>) -> PyResult<(Arc<Registered>, usize, usize)> {
        let closed = || error(py, Kind::Other, "the memory is closed: register it again");
        Ok((self.registered.lock().clone().ok_or_else(closed)?, self.offset, self.len))
    }
}

#[pymethods]
impl Memory {
    /// Description for peers.
    #[getter]
    fn remote(&self, py: Python<'_>) -> PyResult<RemoteMemory> {
        let (registered, offset, len) = self.part(py)?;
        Ok(RemoteMemory { rkey: registered.registration.key(), len: len as u64, offset: offset as u64 })
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __getitem__(&self, py: Python<'_>, part: &Bound<'_, PySlice>) -> PyResult<Memory> {
        let (registered, offset, len) = self.part(py)?;
        let (start, len) = slice(part, len as u64)?;
        let registered = Mutex::new(Some(registered));
        Ok(Memory { registered, offset: offset + start as usize, len: len as usize })
    }

    /// Ends the registration, once its slices are closed and its requests have completed.
    fn close(&self, py: Python<'_>) {
        let registered = self.registered.lock().take();
        py.detach(|| drop(registered));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let registered = self.registered.lock();
        let key =
            registered.as_ref().map(|registered| format!("key {:#010x}", registered.registration.key()));
        format!("<isolane.Memory {} bytes, {}>", self.len, key.as_deref().unwrap_or("closed"))
    }
}

/// Registered memory of a peer: a key, and a range of the memory.
#[pyclass(frozen, eq, hash, module = "isolane")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct RemoteMemory {
    pub(crate) rkey: u32,
    pub(crate) len: u64,
    pub(crate) offset: u64,
}

#[pymethods]
impl RemoteMemory {
    #[new]
    #[pyo3(signature = (rkey, nbytes, offset = 0))]
    fn new(rkey: u32, nbytes: u64, offset: u64) -> PyResult<RemoteMemory> {
        if offset.checked_add(nbytes).is_none() {
            let text = format!("{nbytes} bytes from offset {offset} exceed 64 bits: pass smaller numbers");
            return Err(PyValueError::new_err(text));
        }
        Ok(RemoteMemory { rkey, len: nbytes, offset })
    }

    /// Remote key.
    #[getter]
    fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.len
    }

    /// Offset of the first byte in the registered memory, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    fn __len__(&self) -> usize {
        self.len as usize
    }

    fn __getitem__(&self, part: &Bound<'_, PySlice>) -> PyResult<RemoteMemory> {
        let (start, len) = slice(part, self.len)?;
        Ok(RemoteMemory { rkey: self.rkey, len, offset: self.offset + start })
    }

    /// Returns 20 bytes that `unpack` reads: offset, length, and key, little endian.
    fn pack<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut bytes = [0; PACKED_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_le_bytes());
        PyBytes::new(py, &bytes)
    }

    /// Returns the description that `pack` has written.
    #[staticmethod]
    fn unpack(data: &Bound<'_, PyAny>) -> PyResult<RemoteMemory> {
        let bytes = Export::of(data)?;
        if bytes.nbytes() != PACKED_BYTES {
            let text = format!("{} bytes are not a packed RemoteMemory: pass {PACKED_BYTES}", bytes.nbytes());
            return Err(PyValueError::new_err(text));
        }
        let bytes = bytes.to_vec();
        let number = |at: std::ops::Range<usize>| {
            bytes[at].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        RemoteMemory::new(number(16..20) as u32, number(8..16), number(0..8))
    }

    fn __repr__(&self) -> String {
        format!("isolane.RemoteMemory(rkey={:#010x}, nbytes={}, offset={})", self.rkey, self.len, self.offset)
    }
}

/// Returns start and length of a slice.
fn slice(part: &Bound<'_, PySlice>, len: u64) -> PyResult<(u64, u64)> {
    let len =
        isize::try_from(len).map_err(|_| PyIndexError::new_err("the memory is too large for a slice"))?;
    let part = part.indices(len)?;
    if part.step != 1 {
        return Err(PyIndexError::new_err("a slice of memory has the step 1: it is contiguous"));
    }
    Ok((part.start as u64, part.slicelength as u64))
}

const PACKED_BYTES: usize = 20;
