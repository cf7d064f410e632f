//! Connections to Unix sockets.
//!
//! Invariant: no connection waits longer than its limit, also if the listener is stopped and its queue is full.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Limit of a connection that only tests whether a program listens: the shortest one that the kernel has.
const PROBE: Duration = Duration::from_micros(1);

/// Connects within a time above zero.
///
/// # Errors
/// [`Errno::AGAIN`] if the queue of the listener stays full, else the error of the system.
pub fn connect(path: &Path, limit: Duration) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// Returns `true` if a program listens, also if it is stopped.
pub fn has_listener(path: &Path) -> bool {
    matches!(connect(path, PROBE), Ok(_) | Err(Errno::AGAIN))
}

/// Returns `true` for a socket, and `false` for a link to one.
pub fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Returns `true` for a socket without a listener. The kernel also refuses connections to files of other types.
pub fn refuses(path: &Path) -> bool {
    is_socket(path) && connect(path, PROBE).is_err_and(|error| error == Errno::CONNREFUSED)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A listener that accepts no connection, with a full queue.
    pub(crate) fn stopped_listener(path: &Path) -> (UnixListener, Vec<UnixStream>) {
        let listener = UnixListener::bind(path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| connect(path, PROBE).ok()).take(100).collect();
        assert!(waiting.len() < 100, "the queue has no end");
        (listener, waiting)
    }

    #[test]
    fn tests_stopped_listeners_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve-1.sock");
        assert!(!has_listener(&path) && !refuses(&path), "no such file");
        let stopped = stopped_listener(&path);
        assert!(has_listener(&path) && !refuses(&path));
        drop(stopped);
        assert!(!has_listener(&path) && refuses(&path), "it has ended");
    }
}
