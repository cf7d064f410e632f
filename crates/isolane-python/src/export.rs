//! Memory of a Python object, by the buffer protocol or DLPack.
//!
//! Invariant: a pointer of an [`Export`] is valid until the export is dropped: Python objects keep memory that they have
//! exported in place.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use isolane_memory::MemoryRegion;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

/// Memory of an object, which cannot be resized or freed while this exists.
#[pyclass(frozen, module = "isolane._isolane")]
pub(crate) struct Export {
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
    _holder: Holder,
}

// SAFETY: the memory is not tied to a thread, and this type never forms a reference to its bytes.
unsafe impl Send for Export {}
// SAFETY: as above.
unsafe impl Sync for Export {}

/// Value that keeps the memory in place.
enum Holder {
    Buffer(#[expect(dead_code, reason = "released when dropped")] BufferView),
    /// Its destructor frees the tensor.
    Capsule(#[expect(dead_code, reason = "released when dropped")] Py<PyAny>),
}

#[pymethods]
impl Export {
    /// Exports the memory of an object.
    #[new]
    fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Export> {
        let export = Export::of(object)?;
        if writable {
            export.require_writable()?
        }
        Ok(export)
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Length in bytes.
    #[getter]
    pub(crate) fn nbytes(&self) -> usize {
        self.len
    }
}

impl Export {
    /// Exports the memory of an object, writable if the object is.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Export> {
        let refused = match BufferView::new(object) {
            Ok(view) => return Export::from_buffer(view),
            Err(error) => error,
        };
        // The storage of a tensor of torch can be resized while a capsule of DLPack has it, but not while an array has.
        if object.hasattr("__dlpack__")? && object.hasattr("detach")? && object.hasattr("numpy")? {
            check_device(object)?;
            let array = object.call_method0("detach")?.call_method0("numpy")?;
            return Export::from_buffer(BufferView::new(&array)?);
        }
        if object.hasattr("__dlpack__")? { Export::from_dlpack(object) } else { Err(refused) }
    }

    fn from_buffer(view: BufferView) -> PyResult<Export> {
        let start = NonNull::new(view.raw.buf.cast()).unwrap_or(NonNull::dangling());
        let (len, is_writable) = (view.raw.len.max(0) as usize, view.raw.readonly == 0);
        Ok(Export { start, len, is_writable, _holder: Holder::Buffer(view) })
    }

    fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Export> {
        check_device(object)?;
        let capsule = object.call_method0("__dlpack__")?;
        let tensor = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"dltensor"))?;
        // SAFETY: a capsule of this name holds a `DLManagedTensor`, which starts with these fields, until its destructor
        // runs. The capsule lives, and its producer does not change the fields.
        let (start, len) = unsafe { tensor.cast::<DlTensor>().as_ref().range() }?;
        Ok(Export { start, len, is_writable: true, _holder: Holder::Capsule(capsule.unbind()) })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Returns an error if the memory is read-only.
    pub(crate) fn require_writable(&self) -> PyResult<()> {
        if self.is_writable {
            return Ok(());
        }
        Err(PyBufferError::new_err(
            "the memory is read-only: pass a writable object, as a bytearray or an array",
        ))
    }

    /// Returns the bytes, which other threads can change in the meantime.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the memory has this length and is exported.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Returns a region of the memory of an export, which it keeps.
    pub(crate) fn region(py: Python<'_>, export: Py<Export>) -> MemoryRegion {
        let (start, len) = (export.get().start, export.get().len);
        let owner = Box::new(export.clone_ref(py));
        // SAFETY: the export keeps the memory in place, and Rust code forms no reference to it. Read-only memory is only
        // registered without the right to write it, which each request is checked against.
        unsafe { MemoryRegion::from_owner(start, len, owner) }
    }
}

fn check_device(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    let (kind, _): (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
    if kind == DL_CPU {
        return Ok(());
    }
    let text = format!(
        "the tensor is on a device of DLPack type {kind}: copy it to the CPU first, as with tensor.cpu()"
    );
    Err(PyBufferError::new_err(text))
}

/// A view of the buffer protocol.
struct BufferView {
    raw: Box<RawBuffer>,
}

impl BufferView {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<BufferView> {
        let mut last = None;
        for flags in [BUFFER_WRITABLE, BUFFER_SIMPLE] {
            let mut raw = Box::new(RawBuffer::EMPTY);
            // SAFETY: the object lives, Python's lock is held, and the structure has the layout that Python fills.
            if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *raw, flags) } == 0 {
                return Ok(BufferView { raw });
            }
            last = Some(PyErr::fetch(object.py()));
        }
        Err(last.unwrap_or_else(|| PyTypeError::new_err("the object has no buffer")))
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, and released once. An export is a Python object, so this runs with
        // Python's lock.
        unsafe { PyBuffer_Release(&mut *self.raw) };
    }
}

/// `Py_buffer`, whose layout has not changed since Python 3.3 and is part of the stable interface since 3.11.
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    object: *mut PyObject,
    len: isize,
    item_bytes: isize,
    readonly: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

impl RawBuffer {
    const EMPTY: RawBuffer = RawBuffer {
        buf: null_mut(),
        object: null_mut(),
        len: 0,
        item_bytes: 0,
        readonly: 0,
        dimensions: 0,
        format: null_mut(),
        shape: null_mut(),
        strides: null_mut(),
        suboffsets: null_mut(),
        internal: null_mut(),
    };
}

// Each Python since 3.0 exports both; PyO3 declares them from 3.11 on.
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
}

/// Contiguous bytes without a description of their items (`PyBUF_SIMPLE`).
const BUFFER_SIMPLE: c_int = 0;
/// The same, writable (`PyBUF_WRITABLE`).
const BUFFER_WRITABLE: c_int = 1;

/// `DLTensor` of DLPack.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl DlTensor {
    /// Returns the memory of a tensor whose elements are contiguous.
    fn range(&self) -> PyResult<(NonNull<u8>, usize)> {
        let dimensions = usize::try_from(self.dimensions).unwrap_or(0);
        let values = |start: *const i64| {
            // SAFETY: DLPack promises an array with an element for each dimension, unless the pointer is null.
            (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, dimensions) })
        };
        let shape = if dimensions == 0 { &[][..] } else { values(self.shape).unwrap_or_default() };
        let strides = if dimensions == 0 { None } else { values(self.strides) };
        if shape.contains(&0) {
            return Ok((NonNull::dangling(), 0));
        }
        let mut elements = 1_usize;
        for (at, size) in shape.iter().enumerate().rev() {
            if *size > 1 && strides.is_some_and(|strides| strides[at] != elements as i64) {
                let text = "the tensor is not contiguous: copy it first, as with tensor.contiguous()";
                return Err(PyBufferError::new_err(text));
            }
            elements = usize::try_from(*size)
                .ok()
                .and_then(|size| elements.checked_mul(size))
                .ok_or_else(too_large)?;
        }
        let element_bits = usize::from(self.bits) * usize::from(self.lanes);
        let bytes = elements.checked_mul(element_bits).ok_or_else(too_large)?.div_ceil(8);
        let start = self.data.cast::<u8>().wrapping_add(self.byte_offset as usize);
        match NonNull::new(start) {
            Some(start) => Ok((start, bytes)),
            None if bytes == 0 => Ok((NonNull::dangling(), 0)),
            None => Err(PyBufferError::new_err("the tensor has no memory: pass one with data")),
        }
    }
}

fn too_large() -> PyErr {
    PyBufferError::new_err("the tensor is larger than memory: its producer is faulty")
}

/// Type of a CPU in DLPack.
const DL_CPU: i32 = 1;
