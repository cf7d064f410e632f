//! The directory of the engine's socket, and the files next to it.
//!
//! The directory may be one that other users can write to, such as `/tmp`. Therefore no file is opened through a link,
//! and the checks apply to the open file, not to its path.
//!
//! Invariant: no file is written or truncated unless it is a regular file of this user with one name.

use std::fs::File;
use std::path::{Path, PathBuf};

use isolane_engine_api::runtime_dir::exposed_reason;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, fcntl_lock, fstat, mkdir, open, stat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk, geteuid};

use crate::EngineError;

/// Name of the lock of the engine that listens on `socket`; the file contains the PID of the supervisor.
pub fn lock_path(socket: &Path) -> PathBuf {
    next_to(socket, ".lock")
}

/// Text of the supervisor's log line about a failed upgrade, before the reason. `isolane engine upgrade` reads it.
pub const UPGRADE_FAILED: &str = "engine not replaced, it continues unchanged: ";

/// Text in the first line of a status in the log. `isolane engine status` reads it.
pub const STATUS_SESSIONS: &str = " sessions, of ";

/// Name of the log of an engine in the background that listens on `socket`.
pub fn log_path(socket: &Path) -> PathBuf {
    next_to(socket, ".log")
}

fn next_to(socket: &Path, ending: &str) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Opens a file next to a socket for reading and appending, and creates it with `mode` if it does not exist.
///
/// # Errors
/// [`EngineError::File`] for a symbolic link, a file with several names, a file of another user, and anything that is not
/// a regular file.
pub fn open_next_to_socket(path: &Path, mode: u32) -> Result<File, EngineError> {
    open_checked(path, OFlags::RDWR | OFlags::CREATE | OFlags::APPEND, mode)
}

/// Opens a file next to a socket for reading.
///
/// # Errors
/// As [`open_next_to_socket`].
pub fn read_next_to_socket(path: &Path) -> Result<File, EngineError> {
    open_checked(path, OFlags::RDONLY, 0)
}

/// Sets the record lock by which [`supervisor_of`] finds this process, as long as the file is open.
pub(crate) fn set_owner(lock: &File) -> Result<(), Errno> {
    fcntl_lock(lock, FlockOperation::NonBlockingLockExclusive)
}

/// Returns the supervisor that holds the lock of its engine, or `None` if no engine runs. Asks the kernel, because
/// the text of the file may be from a supervisor that has ended.
///
/// # Errors
/// Errors of the system; `SRCH` if the supervisor is in another PID namespace.
pub fn supervisor_of(lock: &File) -> Result<Option<Pid>, Errno> {
    let holder = fcntl_getlk(lock, &Flock::from(FlockType::WriteLock))?;
    holder.map(|holder| holder.pid.ok_or(Errno::SRCH)).transpose()
}

fn open_checked(path: &Path, flags: OFlags, mode: u32) -> Result<File, EngineError> {
    let refused = |reason: String| EngineError::File { path: path.to_owned(), reason };
    // NONBLOCK: opening a pipe must not wait for its other end.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = open(path, flags, Mode::from_raw_mode(mode)).map_err(|error| match error {
        Errno::LOOP => refused(format!("is a symbolic link; {REMEDY}")),
        error => refused(format!("{error}; choose a socket in a directory that this user may write to")),
    })?;
    let found = fstat(&file).map_err(|error| refused(error.to_string()))?;
    match unsafe_reason(&found) {
        Some(reason) => Err(refused(format!("{reason}; {REMEDY}"))),
        None => Ok(file.into()),
    }
}

/// Returns why an open file must not be written, if so.
fn unsafe_reason(found: &Stat) -> Option<String> {
    let own = geteuid().as_raw();
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Some("is not a regular file".into());
    }
    if found.st_uid != own {
        return Some(format!("belongs to user {}, not to user {own}", found.st_uid));
    }
    (found.st_nlink != 1).then(|| format!("has {} names (hard links)", found.st_nlink))
}

/// Creates the directory of the default socket with mode 0700, if it does not exist. Another directory must exist.
///
/// # Errors
/// [`EngineError::Listen`], also for a directory in which other users could replace the socket.
pub fn create_socket_dir(socket: &Path) -> Result<(), EngineError> {
    // First, so that an invalid path leaves no directory.
    check(socket)?;
    let refused = |reason: String| EngineError::Listen { path: socket.to_owned(), reason };
    let dir = match socket.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => dir,
        None => Path::new("."),
    };
    let is_default = isolane_engine_api::default_path().parent() == Some(dir);
    match if is_default { mkdir(dir, Mode::RWXU) } else { stat(dir).and(Err(Errno::EXIST)) } {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => exposed_reason(dir).map_or(Ok(()), |reason| {
            Err(refused(format!("its directory {} {reason}, or choose another path", dir.display())))
        }),
        Err(error) => Err(refused(format!("{error}; create its directory, or choose another path"))),
    }
}

/// Returns the address of a socket, if its path is valid.
pub(crate) fn check(path: &Path) -> Result<SocketAddrUnix, EngineError> {
    let refused = |reason: String| EngineError::Listen { path: path.to_owned(), reason };
    let address = SocketAddrUnix::new(path);
    let address = address.map_err(|error| refused(format!("{error}; choose a shorter path")))?;
    match stat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            Err(refused("the path is not a socket; choose another path".into()))
        }
        _ => Ok(address),
    }
}

const REMEDY: &str = "remove it, or choose a socket in another directory";

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    /// A directory, and a file in it that must not change.
    fn victim() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("victim");
        fs::write(&file, "precious").unwrap();
        (dir, file)
    }

    fn refusal(path: &Path) -> String {
        open_next_to_socket(path, 0o600).expect_err("the file is not refused").to_string()
    }

    #[test]
    fn refuses_links_and_special_files() {
        let (dir, file) = victim();
        let path = |name| dir.path().join(name);
        symlink(&file, path("symlink")).unwrap();
        symlink(path("missing"), path("dangling")).unwrap();
        fs::hard_link(&file, path("hard")).unwrap();
        mkfifoat(CWD, path("fifo"), Mode::RWXU).unwrap();
        fs::create_dir(path("directory")).unwrap();
        for (name, reason) in [
            ("symlink", "is a symbolic link; remove it"),
            ("dangling", "is a symbolic link; remove it"),
            ("hard", "has 2 names (hard links); remove it"),
            ("fifo", "is not a regular file; remove it"),
            ("directory", "directory"),
        ] {
            let text = refusal(&path(name));
            assert!(text.contains(reason) && text.contains(name), "{text}");
        }
        assert!(!path("missing").exists(), "a file was created through a link");
        assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    }

    #[test]
    fn refuses_files_and_directories_of_other_users() {
        if !geteuid().is_root() {
            return eprintln!("skipped: only root can give files away");
        }
        let (dir, file) = victim();
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(refusal(&file).contains("belongs to user 65534, not to user 0"), "{}", refusal(&file));
        let link = dir.path().join("link");
        symlink(".", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        let text = create_socket_dir(&link.join("sock")).unwrap_err().to_string();
        assert!(text.contains("is a symbolic link of user 65534; remove it"), "{text}");
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        let text = create_socket_dir(&dir.path().join("sock")).unwrap_err().to_string();
        assert!(text.contains("belongs to user 65534"), "{text}");
    }

    #[test]
    fn creates_no_directory_of_a_given_socket() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = create_socket_dir(&missing.join("sock")).unwrap_err().to_string();
        assert!(error.contains("create its directory, or choose another path"), "{error}");
        assert!(!missing.exists());
    }

    #[test]
    fn refuses_directories_writable_by_others() {
        let (dir, _file) = victim();
        let socket = dir.path().join("sock");
        for (mode, refused) in [(0o700, false), (0o755, false), (0o1777, false), (0o777, true), (0o770, true)]
        {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            match (create_socket_dir(&socket), refused) {
                (Ok(()), false) => {}
                (Err(error), true) => assert!(error.to_string().contains("`chmod go-w` it"), "{error}"),
                (result, _) => panic!("{mode:o}: {result:?}"),
            }
        }
    }

    #[test]
    fn opens_own_files_without_truncating() {
        let (dir, file) = victim();
        assert!(open_next_to_socket(&file, 0o600).is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let new = dir.path().join("new");
        assert!(read_next_to_socket(&new).is_err());
        open_next_to_socket(&new, 0o600).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(read_next_to_socket(&new).is_ok());
    }
}
