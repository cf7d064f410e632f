//! Where clients knock: the socket, and the lock that says whose it is.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, chmod, flock, fstat, stat};
use rustix::io::Errno;
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
        let until = Instant::now() + SHARED_MAX;
        let pause = || {
            std::thread::sleep(SHARED_PAUSE);
            Instant::now() < until
        };
        lock_alone(&lock, pause).map_err(|error| refused(why_locked(error)))?;
        // For a user who wants to send a signal; without that it serves as well.
        let _ = lock.set_len(0).and_then(|()| writeln!(&lock, "{}", std::process::id()));
        if let Err(error) = files::mark_as_ours(&lock) {
            log::warn!(
                "`isolane engine status` and `stop` will not find this engine: cannot lock its file: {error}"
            );
        }
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

/// Locks a file for this process alone. Calls `pause`, and tries again unless that returns `false`, as long as other
/// programs have the file locked only to read it.
fn lock_alone(lock: &File, mut pause: impl FnMut() -> bool) -> Result<(), Errno> {
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => {}
            outcome => return outcome,
        }
        // Refused if another engine has the file.
        flock(lock, FlockOperation::NonBlockingLockShared)?;
        flock(lock, FlockOperation::Unlock)?;
        if !pause() {
            return Err(Errno::BUSY);
        }
    }
}

fn why_locked(error: Errno) -> String {
    match error {
        Errno::AGAIN => "an engine listens there; end it, or choose another path".into(),
        Errno::BUSY => {
            "other programs keep its lock shared; end them (see `lsof`), or choose another path".into()
        }
        error => format!("its lock cannot be had: {error}; choose another path"),
    }
}

/// How long programs that only read the lock may delay a start.
const SHARED_MAX: Duration = Duration::from_secs(1);
const SHARED_PAUSE: Duration = Duration::from_millis(10);

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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &tempfile::TempDir) -> File {
        files::open_next_to_socket(&folder.path().join("sock.lock"), 0o644).unwrap()
    }

    #[test]
    fn start_waits_for_programs_that_only_read_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let lock = open(&folder);
        let mut readers = vec![open(&folder), open(&folder)];
        readers.iter().for_each(|reader| flock(reader, FlockOperation::LockShared).unwrap());
        let mut pauses = 0;
        let outcome = lock_alone(&lock, || {
            pauses += 1;
            drop(readers.pop());
            true
        });
        assert_eq!((outcome, pauses), (Ok(()), 2));

        let other = open(&folder);
        let outcome = lock_alone(&other, || panic!("it waits for another engine"));
        assert_eq!(outcome, Err(Errno::AGAIN));
        drop(lock);
        flock(&other, FlockOperation::LockShared).unwrap();
        assert_eq!(lock_alone(&open(&folder), || false), Err(Errno::BUSY));
    }

    #[test]
    fn takes_its_seat_after_a_reader_has_left() {
        let folder = tempfile::tempdir().unwrap();
        let reader = open(&folder);
        flock(&reader, FlockOperation::LockShared).unwrap();
        std::thread::scope(|scope| {
            let seat = scope.spawn(|| Seat::take(&folder.path().join("sock"), &[]));
            // Once the start has the file open, it meets the lock, now or soon.
            let lock = std::fs::metadata(folder.path().join("sock.lock")).unwrap();
            while count_of_open(&lock) < 2 {
                std::thread::yield_now();
            }
            drop(reader);
            let seat = seat.join().unwrap().unwrap();
            assert!(Seat::take(&folder.path().join("sock"), &[]).is_err(), "two have the same seat");
            drop(seat);
        });
    }

    /// How many descriptors of this process are of a file.
    fn count_of_open(file: &std::fs::Metadata) -> usize {
        use std::os::unix::fs::MetadataExt;
        let id = (file.dev(), file.ino());
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let found = descriptors.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        found.filter(|found| (found.dev(), found.ino()) == id).count()
    }
}
