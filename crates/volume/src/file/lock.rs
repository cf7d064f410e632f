//! Two targets never serve one file: an open file description lock (`F_OFD_SETLK`) on the whole of it. Read-only
//! volumes share it. A block device is opened with O_EXCL instead, which its mounts also respect.
//!
//! Not protection from programs that do not ask for locks. The lock ends with the open file.

use std::fs::File;
use std::path::Path;

use isolane_reactor::file;

use super::holder;
use crate::OpenError;

/// Locks `file` for this volume alone, or shared with other readers.
pub(crate) fn lock(name: &str, path: &Path, file: &File, is_exclusive: bool) -> Result<(), OpenError> {
    match file::lock(file, is_exclusive) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let reason = format!("it is in use by {}", holder::describe_lock(path));
            Err(OpenError::new(name, reason, "stop that first, or serve a copy"))
        }
        Err(error) => {
            let remedy = "serve it from a file system that supports locks";
            Err(OpenError::new(name, format!("it cannot be locked ({error})"), remedy))
        }
    }
}

/// What to say of a device that somebody holds.
pub(crate) fn busy_device(name: &str, path: &Path, device: (u32, u32)) -> OpenError {
    let reason = format!("it is in use by {}", holder::describe_device(path, device));
    OpenError::new(name, reason, "unmount or stop that first")
}
