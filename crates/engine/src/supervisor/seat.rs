//! Where clients knock: the socket, and the lock that says whose it is.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::{EngineError, listen};

/// A socket of ours, as long as this is there.
pub(super) struct Seat {
    path: PathBuf,
    listener: OwnedFd,
    is_left: bool,
    /// Held to the end: of two supervisors that want the same path one gets it, and sees what the other has left.
    _lock: File,
}

impl Seat {
    /// # Errors
    /// [`EngineError::Listen`].
    pub fn take(path: &Path) -> Result<Seat, EngineError> {
        crate::control::make_folder(path)?;
        let refused = |why: String| EngineError::Listen { path: path.to_owned(), why };
        let lock = File::options().create(true).append(true).open(lock_path(path));
        let lock = lock.map_err(|error| {
            refused(format!(
                "its lock cannot be opened: {error}; choose a path in a folder that this user may write to"
            ))
        })?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(refused("an engine listens there; end it, or choose another path".into()));
        }
        Ok(Seat { path: path.to_owned(), listener: listen(path)?, is_left: false, _lock: lock })
    }

    /// Lets nobody in any more.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_left, true) {
            // Gone already is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Seat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}
