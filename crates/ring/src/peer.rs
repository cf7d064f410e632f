//! Who is at the other end of a Unix socket, as the kernel says.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that has connected, or that listens, when it did so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; 0 if it is in another namespace of processes, where it has none that we would know.
    pub pid: i32,
    /// Its user, effective.
    pub uid: u32,
}

impl Peer {
    /// Of a connected socket (`SO_PEERCRED`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (option, place) = (libc::SO_PEERCRED, (&raw mut found).cast());
        // SAFETY: it writes at most as many bytes as it is told, to a value that outlives the call and that any
        // bytes are a value of.
        let outcome =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, &raw mut len) };
        match outcome {
            0 => Ok(Peer { pid: found.pid, uid: found.uid }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_in_this_process_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = Peer { pid: std::process::id() as i32, uid: rustix::process::geteuid().as_raw() };
        assert_eq!(Peer::of(one.as_fd()).unwrap(), own);
    }

    #[test]
    fn what_is_no_socket_has_none() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Peer::of(file.as_fd()).is_err());
    }
}
