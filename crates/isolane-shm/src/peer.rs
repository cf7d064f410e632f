//! Identity of the process at the other end of a Unix socket, as reported by the kernel.

use std::io;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sockopt::{getsockopt, getsockopt_int};

/// Process that connected, or that listened, and its user at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// PID; 0 if the process is in another PID namespace and has no PID in ours.
    pub pid: i32,
    /// Effective user ID.
    pub uid: u32,
}

impl PeerCred {
    /// Returns the peer of a connected socket (`SO_PEERCRED`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn from_socket(socket: BorrowedFd<'_>) -> io::Result<PeerCred> {
        let mut ucred = [0; size_of::<libc::ucred>()];
        getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut ucred)?;
        let word = |at: usize| std::array::from_fn(|index| ucred[at + index]);
        let (pid, uid) = (offset_of!(libc::ucred, pid), offset_of!(libc::ucred, uid));
        Ok(PeerCred { pid: i32::from_ne_bytes(word(pid)), uid: u32::from_ne_bytes(word(uid)) })
    }
}

/// Process at the other end of a Unix socket.
#[derive(Debug)]
pub enum PeerProcess {
    /// A pidfd, which becomes readable when the process exits, even if another process inherited its sockets.
    Alive(OwnedFd),
    /// The process has exited.
    Ended,
    /// The kernel cannot identify it: Linux is older than 6.5, and the process has no PID in our namespace.
    Unknown,
}

impl PeerProcess {
    /// Returns the peer of a connected socket (`SO_PEERPIDFD`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn from_socket(socket: BorrowedFd<'_>) -> io::Result<PeerProcess> {
        match getsockopt_int(socket, libc::SOL_SOCKET, SO_PEERPIDFD) {
            // SAFETY: the kernel has just created the descriptor for this process.
            Ok(pidfd) => Ok(PeerProcess::Alive(unsafe { OwnedFd::from_raw_fd(pidfd) })),
            Err(Errno::SRCH | Errno::INVAL) => Ok(PeerProcess::Ended),
            Err(Errno::NOPROTOOPT) => PeerProcess::by_pid(socket),
            Err(error) => Err(error.into()),
        }
    }

    /// Fallback for kernels without `SO_PEERPIDFD`.
    fn by_pid(socket: BorrowedFd<'_>) -> io::Result<PeerProcess> {
        let Some(pid) = Pid::from_raw(PeerCred::from_socket(socket)?.pid) else {
            return Ok(PeerProcess::Unknown);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(PeerProcess::Alive(process)),
            Err(Errno::SRCH) => Ok(PeerProcess::Ended),
            Err(error) => Err(error.into()),
        }
    }
}

/// Not in `libc`; this number does not hold on PA-RISC and SPARC.
const SO_PEERPIDFD: libc::c_int = 77;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn identifies_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = PeerCred { pid: std::process::id() as i32, uid: rustix::process::geteuid().as_raw() };
        assert_eq!(PeerCred::from_socket(one.as_fd()).unwrap(), own);
    }

    #[test]
    fn rejects_file_that_is_not_a_socket() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(PeerCred::from_socket(file.as_fd()).is_err());
    }
}
