//! Control socket of a command that uses volumes or verbs, at the path in `ISOLANE_CONTROL`.
//!
//! The process has one. A thread for signals closes it before it ends the process, so that no dead socket stays.

use std::sync::{Mutex, PoisonError};

use isolane_inspect::host::{HostControl, VARIABLE};
use isolane_observe::observable::Observable;

use crate::failure::{Context, Failure};

static OPEN: Mutex<Option<HostControl>> = Mutex::new(None);

/// Opens the socket, for a command whose threads are pinned to these cores. Without the variable it does nothing.
pub fn open(command: &str, cores: impl IntoIterator<Item = usize>) -> Result<(), Failure> {
    let cpus = cores.into_iter().filter_map(|core| u32::try_from(core).ok()).collect();
    let control = HostControl::from_variable(command, cpus).context(VARIABLE)?;
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) = control;
    Ok(())
}

/// Returns `true` if the socket is open.
pub fn is_open() -> bool {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Adds a volume, client, or queue pair, until it is closed.
pub fn add(volume: &impl Observable) {
    if let Some(control) = &*OPEN.lock().unwrap_or_else(PoisonError::into_inner) {
        // This process has connected it.
        let _ = control.add(volume);
    }
}

/// Closes the socket if it is open.
pub fn close() {
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
