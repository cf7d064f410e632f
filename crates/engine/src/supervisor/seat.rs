//! Where clients knock: the socket, and the lock that says whose it is.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, chmod, flock, fstat, stat};
use rustix::process::geteuid;

use crate::{EngineError, files, listen};

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
    pub fn take(path: &Path, allowed_uids: &[u32]) -> Result<Seat, EngineError> {
        files::make_folder(path)?;
        let refused = |why: String| EngineError::Listen { path: path.to_owned(), why };
        let lock = files::open_next_to_socket(&files::lock_path(path), 0o644)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(refused("an engine listens there; end it, or choose another path".into()));
        }
        // For who wants to send it a signal; without that it serves as well.
        let _ = lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id()));
        let seat = Seat { path: path.to_owned(), listener: listen(path)?, is_left: false, _lock: lock };
        if !allowed_uids.is_empty() {
            open_to_all(path).map_err(|error| {
                refused(format!("it cannot be opened to the users that are allowed: {error}"))
            })?;
            warn_of_closed_folders(path, allowed_uids);
        }
        Ok(seat)
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

/// Lets every user write to a socket that has just been made there.
fn open_to_all(path: &Path) -> io::Result<()> {
    // Whoever may write to the folder may have put something else there: what is looked at is what is changed.
    let socket = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&socket)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("somebody has put something else there"));
    }
    chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), Mode::from_raw_mode(0o666))?;
    Ok(())
}

/// Who may not enter the folder does not come to the socket.
fn warn_of_closed_folders(path: &Path, allowed_uids: &[u32]) {
    let Ok(path) = std::path::absolute(path) else { return };
    for uid in allowed_uids {
        if let Some(folder) = path.ancestors().skip(1).find(|folder| !may_enter(folder, *uid)) {
            log::warn!(
                "user {uid} is allowed to attach, but may not enter {}: `chmod o+x` it, or choose another path",
                folder.display()
            );
        }
    }
}

/// Whether a user may be able to enter a folder. Which groups it is in is not known here: each may be its own.
fn may_enter(folder: &Path, uid: u32) -> bool {
    let Ok(found) = stat(folder) else { return true };
    let mode = Mode::from_raw_mode(found.st_mode);
    match uid {
        0 => true,
        uid if uid == found.st_uid => mode.contains(Mode::XUSR),
        _ => mode.intersects(Mode::XGRP | Mode::XOTH),
    }
}
