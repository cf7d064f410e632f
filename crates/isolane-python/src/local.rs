//! Local data of requests, and ranges of the peer's memory.

use std::sync::Arc;

use isolane_verbs::{Limits, LocalData, SgeList};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::export::Export;
use crate::memory::{Memory, Registered, RemoteMemory};
use crate::opened::Opened;

/// Local data of a request.
pub(crate) struct Local {
    pub(crate) data: LocalData,
    /// Kept until the completion.
    pub(crate) memory: Option<Arc<Registered>>,
    pub(crate) len: usize,
}

impl Default for Local {
    fn default() -> Local {
        Local { data: LocalData::Sges(SgeList::new()), memory: None, len: 0 }
    }
}

impl Local {
    /// Takes registered memory, or registers the memory of another object for the time of the request. Short data that
    /// is sent is copied.
    pub(crate) fn new(
        object: &Bound<'_, PyAny>,
        opened: &Arc<Opened>,
        is_destination: bool,
    ) -> PyResult<Local> {
        let (memory, offset, len) = if let Ok(memory) = object.cast::<Memory>() {
            part_of(memory, opened, is_destination)?
        } else {
            let export = exported(object, is_destination)?;
            let len = export.nbytes();
            if len == 0 {
                return Ok(Local::default());
            }
            if !is_destination && len <= Limits::default().inline_bytes {
                return Ok(Local { data: LocalData::Inline(export.to_vec()), memory: None, len });
            }
            (Registered::new(object.py(), opened, export, (false, false))?, 0, len)
        };
        if len > MAX_BYTES {
            let text = format!("{len} bytes exceed the maximum of {MAX_BYTES} of one request: split it");
            return Err(PyValueError::new_err(text));
        }
        Ok(Local { data: LocalData::Sges(memory.sges(offset, len)), memory: Some(memory), len })
    }
}

/// Takes registered memory, or registers the memory of another object for the time of a batch: with offset and length.
pub(crate) fn registered(
    object: &Bound<'_, PyAny>,
    opened: &Arc<Opened>,
    is_destination: bool,
) -> PyResult<(Arc<Registered>, usize, usize)> {
    if let Ok(memory) = object.cast::<Memory>() {
        return part_of(memory, opened, is_destination);
    }
    let export = exported(object, is_destination)?;
    let len = export.nbytes();
    Ok((Registered::new(object.py(), opened, export, (false, false))?, 0, len))
}

fn exported(object: &Bound<'_, PyAny>, is_destination: bool) -> PyResult<Export> {
    let export = Export::of(object)?;
    if is_destination {
        export.require_writable()?;
    }
    Ok(export)
}

fn part_of(
    memory: &Bound<'_, Memory>,
    opened: &Arc<Opened>,
    is_destination: bool,
) -> PyResult<(Arc<Registered>, usize, usize)> {
    let (registered, offset, len) = memory.get().part(memory.py())?;
    if !registered.is_of(opened) {
        let text = "the memory belongs to another device: register it with the device of the connection";
        return Err(PyValueError::new_err(text));
    }
    if is_destination && !registered.is_writable() {
        return Err(PyValueError::new_err("the memory is read-only: register a writable object"));
    }
    Ok((registered, offset, len))
}

/// Returns address and key of a range of the peer's memory.
pub(crate) fn target(remote: &Bound<'_, RemoteMemory>, offset: u64, len: usize) -> PyResult<(u64, u32)> {
    let remote = remote.get();
    if offset.checked_add(len as u64).is_none_or(|end| end > remote.len) {
        let text =
            format!("{len} bytes at offset {offset} exceed the {} bytes of the peer's memory", remote.len);
        return Err(PyValueError::new_err(text));
    }
    Ok((remote.offset + offset, remote.rkey))
}

/// Maximum data of a request, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 31;
