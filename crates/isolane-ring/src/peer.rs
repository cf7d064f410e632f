//! Who is at the other end of a Unix socket, as the kernel says.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

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

/// The process at the other end of a Unix socket, while it lives.
#[derive(Debug)]
pub enum Process {
    /// A descriptor that becomes readable when the process ends, whoever has inherited its own.
    Alive(OwnedFd),
    /// It has ended.
    Ended,
    /// The kernel does not say (before Linux 6.5), and it has no PID here.
    Unknown,
}

impl Process {
    /// Of a connected socket (`SO_PEERPIDFD`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Process> {
        let mut found: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: as of `Peer::of`.
        let outcome = unsafe {
            let place = (&raw mut found).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, place, &raw mut len)
        };
        if outcome == 0 {
            // SAFETY: the kernel has just made the descriptor for this process.
            return Ok(Process::Alive(unsafe { OwnedFd::from_raw_fd(found) }));
        }
        let error = io::Error::last_os_error();
        match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::INVAL) => Ok(Process::Ended),
            Some(Errno::NOPROTOOPT) => Process::by_pid(socket),
            _ => Err(error),
        }
    }

    /// As well as older kernels can say it.
    fn by_pid(socket: BorrowedFd<'_>) -> io::Result<Process> {
        let Some(pid) = Pid::from_raw(Peer::of(socket)?.pid) else { return Ok(Process::Unknown) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Process::Alive(process)),
            Err(Errno::SRCH) => Ok(Process::Ended),
            Err(error) => Err(error.into()),
        }
    }
}

/// Of every architecture that Linux has given its own numbers, none runs this.
const SO_PEERPIDFD: libc::c_int = 77;

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
