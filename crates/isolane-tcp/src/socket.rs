//! Non-blocking transfers, queues, and options of a socket that one process uses.

use crate::iovec;
use isolane_shm::sockopt::setsockopt;
use rustix::fd::AsFd;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use rustix::thread::CpuSet;
use socket2::SockRef;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;

/// Returns the bytes queued in the kernel and never sent (`SIOCOUTQNSD`).
///
/// # Errors
/// The error of the system call.
pub fn unsent_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQNSD writes one `c_int` and reads nothing.
    let request = unsafe { Getter::<SIOCOUTQNSD, libc::c_int>::new() };
    // SAFETY: as above.
    let count = unsafe { ioctl(socket, request) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns the bytes queued in the kernel that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// The error of the system call.
pub fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ writes one `c_int` and reads nothing.
    let request = unsafe { Getter::<{ libc::TIOCOUTQ as Opcode }, libc::c_int>::new() };
    // SAFETY: as above.
    let count = unsafe { ioctl(socket, request) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Receives into `plan`, in order. `Ok(0)` is the end of the stream.
///
/// # Errors
/// `WouldBlock` if the socket, which must be non-blocking, is empty.
pub fn receive(socket: impl AsFd, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    Ok(match plan {
        // A plain read of one segment is cheaper than a list of one.
        [slice] => iovec::read(socket, slice)?,
        slices => rustix::io::readv(socket, slices)?,
    })
}

/// Sends `plan`, in order, without raising `SIGPIPE`.
///
/// # Errors
/// `WouldBlock` if the socket is full.
pub fn send(socket: impl AsFd, plan: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(match plan {
        [slice] => iovec::send(socket, slice, flags)?,
        slices => rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)?,
    })
}

/// Allows [`send_zerocopy`] on this socket (`SO_ZEROCOPY`).
///
/// # Errors
/// The error of the system call.
pub fn enable_zerocopy(socket: impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?)
}

/// Sends `plan`, in order, without a copy: the kernel reads its memory until it reports completion.
///
/// # Errors
/// `WouldBlock` if the socket is full; `ENOBUFS` if the kernel has no memory for the report.
pub fn send_zerocopy(socket: impl AsFd, plan: &[IoSlice<'_>]) -> io::Result<usize> {
    let zero_copy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as _);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | zero_copy;
    Ok(rustix::net::sendmsg(socket, plan, &mut SendAncillaryBuffer::default(), flags)?)
}

/// Whether a connection between these addresses stays within this machine.
pub fn is_local(local: IpAddr, peer: IpAddr) -> bool {
    peer.is_loopback() || local == peer
}

/// Bounds the send buffer to `bytes` (`SO_SNDBUF`) if the kernel allows that size; else restores
/// automatic tuning. For local connections, where a larger buffer only evicts data from the caches.
///
/// # Errors
/// The error of the system call.
pub fn bound_send_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let sock = SockRef::from(socket);
    sock.set_send_buffer_size(bytes)?;
    if sock.send_buffer_size()? / 2 < bytes {
        Ok(setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0)?)
    } else {
        Ok(())
    }
}

/// Returns the core that last processed the connection's packets (`SO_INCOMING_CPU`, S6), if known.
pub fn incoming_cpu(socket: &impl AsFd) -> Option<usize> {
    SockRef::from(socket).cpu_affinity().ok().filter(|&core| core < CpuSet::MAX_CPU)
}

/// `linux/sockios.h`.
const SIOCOUTQNSD: Opcode = 0x894b;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use isolane_shm::sockopt::getsockopt_int;

    use super::*;

    #[test]
    fn bound_send_buffer_falls_back_to_auto_tuning() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        bound_send_buffer(&stream, 64 << 10).expect("supported option");
        assert_eq!(SockRef::from(&stream).send_buffer_size().expect("a size") / 2, 64 << 10);
        bound_send_buffer(&stream, 1 << 30).expect("more than any kernel grants");
        let locks = getsockopt_int(stream.as_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK);
        assert_eq!(locks.expect("supported option"), 0);
    }

    #[test]
    fn own_address_is_local() {
        let is_within = |local: &str, peer: &str| {
            is_local(local.parse().expect("an address"), peer.parse().expect("an address"))
        };
        assert!(is_within("127.0.0.1", "127.0.0.1") && is_within("::1", "::1"));
        assert!(is_within("192.0.2.1", "192.0.2.1"));
        assert!(!is_within("192.0.2.1", "192.0.2.2"));
    }
}
