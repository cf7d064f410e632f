//! The parts of a device that its connections and memory share.
//!
//! They belong to the process that opened the device. In a child of `fork`, other threads of the parent can hold their
//! locks forever, and the sockets are those of the parent: the child uses nothing, and releases nothing.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isolane_verbs::{Device, ProtectionDomain};
use pyo3::prelude::*;

use crate::error::{Kind, error};

/// A device with the registered memory of its queue pairs.
pub(crate) struct Opened {
    pub(crate) device: Arc<Device>,
    pub(crate) domain: Arc<ProtectionDomain>,
    generation: u32,
}

impl Opened {
    pub(crate) fn new(device: Device) -> Opened {
        let generation = GENERATION.load(Ordering::Relaxed);
        Opened { device: Arc::new(device), domain: Arc::default(), generation }
    }

    /// Whether this process has opened the device.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// Returns an error in a child of the process that opened the device.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_of_this_process() {
            return Ok(());
        }
        let text = "the device belongs to the parent of this process: open another one, or use the start method spawn";
        Err(error(py, Kind::Other, text))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // Its threads are not in this process.
            forget(Arc::clone(&self.device));
        }
    }
}

/// Python calls this in a child of `fork`.
#[pyfunction]
pub(crate) fn _after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
