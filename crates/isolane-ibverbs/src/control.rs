//! Control socket of the process, at the path in `ISOLANE_CONTROL`.
//!
//! Invariant: without the variable, there is no socket and no thread.

use std::sync::Once;

use isolane_inspect::host::{HostControl, VARIABLE, own_name};
use isolane_verbs::QueuePair;
use parking_lot::Mutex;

use crate::ffi::report;
use isolane_shm::with_only_faults_unblocked;

/// The socket, and the process that opened it.
static OPEN: Mutex<Option<(u32, HostControl)>> = Mutex::new(None);
static AT_EXIT: Once = Once::new();

/// Opens the socket unless it is open. Returns whether queue pairs are observed.
pub(crate) fn open() -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|path| path.is_empty()) {
        return false;
    }
    let process = std::process::id();
    let mut open = OPEN.lock();
    if open.as_ref().is_some_and(|(owner, _)| *owner == process) {
        return true;
    }
    match with_only_faults_unblocked(|| HostControl::from_variable(&own_name(), Vec::new())) {
        Ok(Some(control)) => {
            // After a fork, this drops the copy of the parent's, which leaves the socket alone.
            *open = Some((process, control));
            AT_EXIT.call_once(|| {
                // SAFETY: the function has the type that is called, and it is part of a library that is never unloaded,
                // because its threads run in it.
                unsafe { libc::atexit(close) };
            });
            true
        }
        Ok(None) => false,
        Err(error) => {
            // The program runs without it: two processes of a program can have the same variable.
            report(&format!("{VARIABLE}: {error}"));
            false
        }
    }
}

/// Adds a queue pair, until it is destroyed.
pub(crate) fn add(pair: &QueuePair) {
    if let Some((process, control)) = &*OPEN.lock()
        && *process == std::process::id()
    {
        // This process has created it.
        let _ = control.add(pair);
    }
}

/// Removes the socket at the end of the process.
extern "C" fn close() {
    // Another thread can hold the lock, and never release it.
    if let Some(mut open) = OPEN.try_lock() {
        *open = None;
    }
}
