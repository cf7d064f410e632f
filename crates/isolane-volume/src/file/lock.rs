//! Two targets never serve one file: an open file description lock (`F_OFD_SETLK`) on the whole of it.
//! Read-only volumes share it. A block device is opened with O_EXCL instead, which its mounts also respect.
//!
//! Not protection from programs that do not ask for locks. The lock ends with the open file. That may be a
//! while after its program was killed: the kernel tears a ring with writes in flight down on its own time,
//! and keeps the file for them. So a lock that no living program holds is waited for, which also keeps those
//! late writes out of the new program's way.

use std::fs::File;
use std::path::Path;

use isolane_reactor::{dead, file};

use super::holder;
use crate::OpenError;

/// Locks `file` for this volume alone, or shared with other readers.
pub(crate) fn lock(name: &str, path: &Path, file: &File, is_exclusive: bool) -> Result<(), OpenError> {
    let is_orphaned = |locked: &_| matches!(locked, Ok(false)) && !holder::is_locked(path);
    match wait_for_the_dead(name, || file::lock(file, is_exclusive), is_orphaned) {
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

/// Tries again while somebody holds it whom nobody can see any more, for a bounded time.
pub(crate) fn wait_for_the_dead<T>(
    name: &str,
    attempt: impl FnMut() -> T,
    is_orphaned: impl Fn(&T) -> bool,
) -> T {
    dead::wait_for_the_dead(dead::PATIENCE, attempt, is_orphaned, || {
        log::info!("{name}: waiting until the kernel lets go of it for a program that has ended");
    })
}

/// What to say of a device that somebody holds.
pub(crate) fn busy_device(name: &str, path: &Path, device: (u32, u32)) -> OpenError {
    let reason = format!("it is in use by {}", holder::describe_device(path, device));
    OpenError::new(name, reason, "unmount or stop that first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_no_living_program_holds_is_waited_for() {
        let attempts = std::cell::Cell::new(0);
        let attempt = || attempts.replace(attempts.get() + 1);
        assert_eq!(wait_for_the_dead("x", attempt, |attempt| *attempt < 3), 3);
    }

    #[test]
    fn the_lock_of_a_living_program_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!holder::is_locked(file.path()));
        lock("x", file.path(), file.as_file(), true).unwrap();
        assert!(holder::is_locked(file.path()));
        let again = File::open(file.path()).unwrap();
        let refused = lock("x", file.path(), &again, false).unwrap_err().to_string();
        assert!(refused.contains("this process itself"), "{refused}");
    }
}
