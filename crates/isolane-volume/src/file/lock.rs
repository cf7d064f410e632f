//! Exclusive access of one target to a file: an open file description lock (`F_OFD_SETLK`) on the whole
//! file, shared by read-only volumes. A block device is opened with O_EXCL instead, which mounts respect.
//!
//! Does not protect from programs that ignore locks. The lock ends with the open file, which can be after
//! its program was killed: the kernel closes the file only when an io_uring with writes in flight is torn
//! down. So opening waits for a lock that no visible process holds, which also keeps those late writes from
//! racing with the new program.

use std::fs::{self, File};
use std::path::Path;

use isolane_reactor::{file, retry};
use rustix::io::Errno;

use super::lock_owner;
use crate::OpenError;

/// Locks `file` exclusively, or shared with other readers.
pub(crate) fn lock(name: &str, path: &Path, file: &File, exclusive: bool) -> Result<(), OpenError> {
    let is_orphaned = |locked: &_| matches!(locked, Ok(false)) && !lock_owner::is_locked(path);
    match retry_while_orphaned(name, || file::lock(file, exclusive), is_orphaned) {
        Ok(true) => Ok(()),
        Ok(false) => {
            if let Some(other) = lock_owner::name_of_own_lock(path) {
                return Err(opened_twice(name, path, &other));
            }
            let reason = format!("in use by {}", lock_owner::describe_lock(path));
            Err(busy(name, reason, "stop it first, or serve a copy"))
        }
        Err(error) => {
            let remedy = "use a file system that supports locks";
            let number = error.raw_os_error();
            Err(OpenError::new(name, format!("cannot lock it ({error})"), remedy).with_os_error(number))
        }
    }
}

/// Retries for a bounded time while no visible process holds the file.
pub(crate) fn retry_while_orphaned<T>(
    name: &str,
    attempt: impl FnMut() -> T,
    is_orphaned: impl Fn(&T) -> bool,
) -> T {
    retry::retry_while_held(retry::HELD_TIMEOUT, attempt, is_orphaned, || {
        log::info!("{name}: waiting for the kernel to release it after its program ended");
    })
}

/// Returns the error for a device in use.
pub(crate) fn device_busy_error(name: &str, path: &Path, device: (u32, u32)) -> OpenError {
    if let Some(other) = lock_owner::name_of_own_device(path) {
        return opened_twice(name, path, &other);
    }
    let reason = format!("in use by {}", lock_owner::describe_device(path, device));
    busy(name, reason, "unmount or stop it first")
}

/// Returns the error for a file or device that this process has open already, as `other`.
fn opened_twice(name: &str, path: &Path, other: &Path) -> OpenError {
    let is_same_name = fs::canonicalize(path).is_ok_and(|path| path == other);
    let reason = if is_same_name {
        String::from("this process has it open already")
    } else {
        format!("the same file as {}, which this process has open", other.display())
    };
    busy(name, reason, "name each file once, or serve a copy")
}

fn busy(name: &str, reason: String, remedy: &str) -> OpenError {
    OpenError::new(name, reason, remedy).with_os_error(Some(Errno::BUSY.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_orphaned_lock() {
        let attempts = std::cell::Cell::new(0);
        let attempt = || attempts.replace(attempts.get() + 1);
        assert_eq!(retry_while_orphaned("x", attempt, |attempt| *attempt < 3), 3);
    }

    #[test]
    fn detects_lock_of_running_program() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!lock_owner::is_locked(file.path()));
        lock("x", file.path(), file.as_file(), true).unwrap();
        assert!(lock_owner::is_locked(file.path()));
        let again = File::open(file.path()).unwrap();
        let refused = lock("x", file.path(), &again, false).unwrap_err().to_string();
        assert!(refused.contains("this process has it open already"), "{refused}");
    }
}
