//! The snapshot of the program, as readers get it.

use std::sync::{PoisonError, RwLock};

use hyper::body::Bytes;
use isolane_observe::snapshot::Snapshot;

use crate::program::SharedProgram;
use crate::source::Parts;

/// Source of the document for all readers.
pub struct Document {
    /// `None` after the program has stopped.
    program: RwLock<Option<SharedProgram>>,
    cpus: Vec<u32>,
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Document").finish_non_exhaustive()
    }
}

impl Document {
    /// Returns the source for a program whose cores use these CPUs.
    pub fn new(program: SharedProgram, cpus: Vec<u32>) -> Document {
        Document { program: RwLock::new(Some(program)), cpus }
    }

    /// Returns the current numbers, without steps.
    pub fn snapshot(&self) -> Snapshot {
        let program = self.program.read().unwrap_or_else(PoisonError::into_inner);
        program.as_ref().map_or_else(Snapshot::default, |program| program.snapshot())
    }

    /// Releases the program, after the calls in progress. Readers get empty documents from now on.
    pub fn detach(&self) {
        *self.program.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the document as JSON, in parts.
    pub fn json(&self, _parts: Parts) -> Vec<Bytes> {
        // Numbers and texts always have a representation.
        serde_json::to_vec(&self.snapshot()).map(Bytes::from).into_iter().collect()
    }

    /// Returns the CPUs of the program's cores, which side threads avoid.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }
}
