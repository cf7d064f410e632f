//! Socket for clients, and the lock that identifies its owner.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, chmod, flock, fstat, stat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::{EngineError, files, listen};

/// Socket of this supervisor; dropping it removes the socket.
pub(super) struct SocketLock {
    path: PathBuf,
    listener: OwnedFd,
    released: bool,
    /// Held until the drop, so that only one supervisor uses the path.
    _lock: File,
}

impl SocketLock {
    /// # Errors
    /// [`EngineError::Listen`].
    pub fn acquire(path: &Path, allowed_uids: &[u32]) -> Result<SocketLock, EngineError> {
        files::create_socket_dir(path)?;
        let refused = |reason: String| EngineError::Listen { path: path.to_owned(), reason };
        let lock = files::open_next_to_socket(&files::lock_path(path), 0o644)?;
        let deadline = Instant::now() + SHARED_LOCK_TIMEOUT;
        let wait = || {
            std::thread::sleep(SHARED_LOCK_RETRY_DELAY);
            Instant::now() < deadline
        };
        lock_exclusive(&lock, wait).map_err(|error| refused(lock_reason(error)))?;
        // The PID is for users who send signals; a failure does no other harm.
        let _ = lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id()));
        if let Err(error) = files::set_owner(&lock) {
            log::warn!(
                "`isolane engine status` and `stop` will not find this engine: cannot lock its file: {error}"
            );
        }
        let socket =
            SocketLock { path: path.to_owned(), listener: listen(path)?, released: false, _lock: lock };
        if !allowed_uids.is_empty() {
            make_world_writable(path)
                .map_err(|error| refused(format!("cannot open the socket to allowed users: {error}")))?;
            warn_unreachable_dirs(path, allowed_uids);
        }
        Ok(socket)
    }

    /// Removes the socket, so that no client can connect.
    pub fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            // Fails only if the socket was removed before.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for SocketLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        self.release();
    }
}

/// Locks a file exclusively. While other programs hold only shared locks to read it, calls `wait` and tries again
/// until that returns `false`.
fn lock_exclusive(lock: &File, mut wait: impl FnMut() -> bool) -> Result<(), Errno> {
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
        // Fails if another engine holds the lock.
        flock(lock, FlockOperation::NonBlockingLockShared)?;
        flock(lock, FlockOperation::Unlock)?;
        if !wait() {
            return Err(Errno::BUSY);
        }
    }
}

fn lock_reason(error: Errno) -> String {
    match error {
        Errno::AGAIN => "an engine listens there; end it, or choose another path".into(),
        Errno::BUSY => {
            "other programs keep its lock shared; end them (see `lsof`), or choose another path".into()
        }
        error => format!("cannot lock its file: {error}; choose another path"),
    }
}

/// Maximum time that programs reading the lock file can delay a start.
const SHARED_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const SHARED_LOCK_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Lets every user write to a new socket.
fn make_world_writable(path: &Path) -> io::Result<()> {
    // Checks and changes the same file, because users with access to the directory may have replaced the socket.
    let socket = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&socket)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("another user has replaced it"));
    }
    chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), Mode::from_raw_mode(0o666))?;
    Ok(())
}

/// Warns about users who cannot reach the socket.
fn warn_unreachable_dirs(path: &Path, allowed_uids: &[u32]) {
    let Ok(path) = std::path::absolute(path) else { return };
    for uid in allowed_uids {
        if let Some(dir) = path.ancestors().skip(1).find(|dir| !can_search(dir, *uid)) {
            log::warn!(
                "user {uid} is allowed to attach, but may not enter {}: `chmod o+x` it, or choose another path",
                dir.display()
            );
        }
    }
}

/// Whether a user may be able to enter a directory. Its groups are unknown, so any group may be one of them.
fn can_search(dir: &Path, uid: u32) -> bool {
    let Ok(found) = stat(dir) else { return true };
    let mode = Mode::from_raw_mode(found.st_mode);
    match uid {
        0 => true,
        uid if uid == found.st_uid => mode.contains(Mode::XUSR),
        _ => mode.intersects(Mode::XGRP | Mode::XOTH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &tempfile::TempDir) -> File {
        files::open_next_to_socket(&dir.path().join("sock.lock"), 0o644).unwrap()
    }

    #[test]
    fn waits_for_readers_of_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = open(&dir);
        let mut readers = vec![open(&dir), open(&dir)];
        readers.iter().for_each(|reader| flock(reader, FlockOperation::LockShared).unwrap());
        let mut waits = 0;
        let result = lock_exclusive(&lock, || {
            waits += 1;
            drop(readers.pop());
            true
        });
        assert_eq!((result, waits), (Ok(()), 2));

        let other = open(&dir);
        let result = lock_exclusive(&other, || panic!("waits for another engine"));
        assert_eq!(result, Err(Errno::AGAIN));
        drop(lock);
        flock(&other, FlockOperation::LockShared).unwrap();
        assert_eq!(lock_exclusive(&open(&dir), || false), Err(Errno::BUSY));
    }

    #[test]
    fn acquires_lock_after_reader_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let reader = open(&dir);
        flock(&reader, FlockOperation::LockShared).unwrap();
        std::thread::scope(|scope| {
            let lock_owner = scope.spawn(|| SocketLock::acquire(&dir.path().join("sock"), &[]));
            // Once the thread has opened the file, it finds the lock held.
            let lock = std::fs::metadata(dir.path().join("sock.lock")).unwrap();
            while open_count(&lock) < 2 {
                std::thread::yield_now();
            }
            drop(reader);
            let lock_owner = lock_owner.join().unwrap().unwrap();
            assert!(
                SocketLock::acquire(&dir.path().join("sock"), &[]).is_err(),
                "two supervisors hold the lock"
            );
            drop(lock_owner);
        });
    }

    /// Number of descriptors of this process for a file.
    fn open_count(file: &std::fs::Metadata) -> usize {
        use std::os::unix::fs::MetadataExt;
        let id = (file.dev(), file.ino());
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let found = descriptors.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        found.filter(|found| (found.dev(), found.ino()) == id).count()
    }
}
