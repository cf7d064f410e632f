//! Listening Unix sockets of servers.
//!
//! A socket has mode 0600, so that only processes of its user and of root can connect. One that a killed server has left
//! is replaced.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, fchmod};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::retry::retry_while_held;

/// A listening socket. Dropping it removes its file, unless another program has replaced that.
#[derive(Debug)]
pub struct UnixListener {
    path: PathBuf,
    socket: OwnedFd,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
}

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct ListenError {
    /// The address.
    pub address: String,
    /// Reason and remedy.
    pub reason: String,
}

impl UnixListener {
    /// Binds a path. Waits up to `timeout` for a socket that is in use, perhaps by a killed process.
    ///
    /// # Errors
    /// The reason, with the remedy.
    pub fn bind(path: &Path, timeout: Duration) -> Result<UnixListener, ListenError> {
        let name = path.display().to_string();
        let attempt = || try_bind(path);
        let is_held =
            |bound: &Result<UnixListener, Refused>| bound.as_ref().is_err_and(|refused| refused.is_held);
        let notify = || log::warn!("{name} is in use; waiting up to {timeout:?} for it");
        let bound = retry_while_held(timeout, attempt, is_held, notify);
        bound.map_err(|Refused { reason, .. }| ListenError { address: name.clone(), reason })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a non-blocking connection, or `None` if none is waiting.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            // Another process can have removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A failure to bind: reason with its remedy, and whether another process may be about to release the address.
struct Refused {
    reason: String,
    is_held: bool,
}

fn try_bind(path: &Path) -> Result<UnixListener, Refused> {
    let refuse = |reason: String| Refused { reason, is_held: false };
    let bound = match create(path) {
        Err(Errno::ADDRINUSE) if is_socket(path) && connect(path) == Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|error| refuse(format!("{error}; remove the dead socket")))?;
            create(path)
        }
        result => result,
    };
    let socket = bound.map_err(|error| match error {
        Errno::ADDRINUSE if is_socket(path) => Refused {
            reason: "another program listens there; stop it, or choose another path".to_owned(),
            is_held: true,
        },
        Errno::ADDRINUSE => refuse("it is not a socket; choose another path".to_owned()),
        Errno::NAMETOOLONG => refuse("the path is longer than 107 bytes; shorten it".to_owned()),
        Errno::NOENT => refuse("its directory does not exist; create it".to_owned()),
        error => refuse(format!("{}; choose another path", io::Error::from(error))),
    })?;
    Ok(UnixListener { path: path.to_owned(), socket, file: identity(path) })
}

fn create(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode of the socket, so that it never has another one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Connects to a socket without waiting, to test whether a program listens.
fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bind(path: &Path) -> Result<UnixListener, ListenError> {
        UnixListener::bind(path, Duration::ZERO)
    }

    #[test]
    fn socket_is_private_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn replaces_only_dead_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = bind(&path).unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "cannot listen on {}: another program listens there; stop it, or choose another path",
                path.display()
            )
        );
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        drop(listener);
        assert!(bind(&path).unwrap_err().reason.contains("not a socket; choose another path"));
        assert_eq!(fs::read(&path).unwrap(), b"data", "a file of another program was removed");
    }

    #[test]
    fn names_unusable_paths() {
        let refuse = |path: &str| bind(Path::new(path)).unwrap_err().to_string();
        assert!(refuse("/nowhere/socket").contains("its directory does not exist"));
        assert!(refuse(&"x".repeat(200)).contains("longer than 107 bytes"));
    }
}
