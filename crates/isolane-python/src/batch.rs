//! Batches: many WRITEs or READs that one call starts, and that are one request of the program.

use std::sync::Arc;
use std::time::Instant;

use isolane_verbs::{LocalData, SendOperation, SendRequest};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::local::{MAX_BYTES, registered, target};
use crate::memory::{Registered, RemoteMemory};
use crate::opened::Opened;
use crate::pending::Request;
use crate::requests::Description;
use crate::shared::{MAX_REQUESTS, PostFailure, Shared, not_posted, send_request};
use crate::timeout::{is_over, slice_end};

/// A batch that is not started.
pub(crate) struct Batch {
    memory: Arc<Registered>,
    parts: Vec<Part>,
    rkey: u32,
    is_read: bool,
}

/// A range of the registered memory, and its address at the peer.
struct Part {
    offset: usize,
    address: u64,
    len: usize,
}

impl Batch {
    /// Checks the parts, which are rows of an offset in `local`, an offset in `remote`, and a length.
    pub(crate) fn new(
        local: &Bound<'_, PyAny>,
        opened: &Arc<Opened>,
        remote: &Bound<'_, RemoteMemory>,
        parts: &Bound<'_, PyAny>,
        is_read: bool,
    ) -> PyResult<Batch> {
        let (memory, start, len) = registered(local, opened, is_read)?;
        // Rows of numpy are no sequences.
        let rows = if parts.hasattr("tolist")? { parts.call_method0("tolist")? } else { parts.clone() };
        // The length can be any number.
        let mut checked = Vec::with_capacity(rows.len()?.min(MAX_REQUESTS));
        for (at, row) in rows.try_iter()?.enumerate() {
            let row = row?;
            let numbers =
                row.extract::<(u64, u64, u64)>().or_else(|_| row.extract::<[u64; 3]>().map(Into::into));
            let (from, to, count) = numbers.map_err(|_| {
                let text = "pass (offset in local, offset in remote, nbytes), each 0 or more";
                PyTypeError::new_err(format!("part {at} of the batch: {text}"))
            })?;
            let wrong = |text: String| PyValueError::new_err(format!("part {at} of the batch: {text}"));
            if from.checked_add(count).is_none_or(|end| end > len as u64) {
                return Err(wrong(format!("{count} bytes at offset {from} exceed the {len} bytes of local")));
            }
            if count > MAX_BYTES as u64 {
                return Err(wrong(format!("{count} bytes exceed the maximum of {MAX_BYTES}: split it")));
            }
            let (address, _) = target(remote, to, count as usize)
                .map_err(|error| wrong(error.value(remote.py()).to_string()))?;
            checked.push(Part { offset: start + from as usize, address, len: count as usize });
        }
        Ok(Batch { memory, parts: checked, rkey: remote.get().rkey, is_read })
    }

    /// Posts all parts before the deadline, if there is one. The last part has the immediate data.
    pub(crate) fn start(
        &self,
        shared: &Arc<Shared>,
        py: Python<'_>,
        immediate: Option<u32>,
        deadline: Option<Instant>,
    ) -> PyResult<Request> {
        shared.opened.check_process(py)?;
        if immediate.is_some() && self.parts.is_empty() {
            return Err(PyValueError::new_err(
                "a batch without parts cannot notify: pass a part, or use write",
            ));
        }
        let len = self.parts.iter().map(|part| part.len).sum();
        let operation = if self.is_read { "read" } else { "write" };
        let description = Description { operation, len, is_receive: false };
        let id = shared.table.lock().open(description, Some(Arc::clone(&self.memory)));
        let mut posted = 0;
        let mut result = Ok(());
        while result.is_ok() && posted < self.parts.len() {
            let failure = py.detach(|| self.post_some(shared, id, &mut posted, immediate, deadline)).err();
            result = match failure {
                Some(failure) => Err(shared.post_failure(py, &failure)),
                None if posted < self.parts.len() && is_over(deadline) => {
                    Err(not_posted(py, shared, description))
                }
                None => py.check_signals(),
            };
        }
        let mut table = shared.table.lock();
        let memory = if result.is_ok() { table.seal(id) } else { table.abandon(id) };
        drop(table);
        drop(memory);
        result.map(|()| Request::new(shared, id))
    }

    /// Posts parts from `posted` on, until all are posted or that takes long.
    fn post_some(
        &self,
        shared: &Shared,
        id: usize,
        posted: &mut usize,
        immediate: Option<u32>,
        deadline: Option<Instant>,
    ) -> Result<(), PostFailure> {
        let until = slice_end(deadline);
        while *posted < self.parts.len() && Instant::now() < until {
            let mut table = shared.table.lock();
            let count = (MAX_REQUESTS - table.in_flight[0]).min(self.parts.len() - *posted);
            let is_open = table.add_parts(id, count);
            drop(table);
            if !is_open {
                return Err(PostFailure::Closed);
            }
            if count == 0 {
                shared.wait(until, |table| table.in_flight[0] < MAX_REQUESTS);
                continue;
            }
            let end = *posted + count;
            let pair = shared.pair.read();
            let result = pair.as_ref().ok_or(PostFailure::Closed).and_then(|pair| {
                while *posted < end {
                    pair.post_send(self.request(id, *posted, immediate)).map_err(PostFailure::Refused)?;
                    *posted += 1;
                }
                Ok(())
            });
            drop(pair);
            if result.is_err() {
                shared.table.lock().remove_parts(id, end - *posted);
                return result;
            }
        }
        Ok(())
    }

    fn request(&self, id: usize, at: usize, immediate: Option<u32>) -> SendRequest {
        let Part { offset, address, len } = self.parts[at];
        let rkey = self.rkey;
        let immediate = immediate.filter(|_| at + 1 == self.parts.len());
        let operation = if self.is_read {
            SendOperation::Read { address, rkey }
        } else {
            SendOperation::Write { address, rkey, immediate }
        };
        send_request(id as u64, operation, LocalData::Sges(self.memory.sges(offset, len)))
    }
}
