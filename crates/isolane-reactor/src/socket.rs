//! Sockets: non-blocking transfer and the options that matter to a lane. Nothing here waits.

use crate::vectors;
use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::Duration;

/// Receives into `plan` in its order. `Ok(0)` is the end of the stream.
///
/// # Errors
/// `WouldBlock` if the socket, which must be non-blocking, is empty.
pub fn receive(socket: impl AsFd, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    Ok(match plan {
        // One piece costs the kernel less than a list of one.
        [piece] => vectors::read(socket, piece)?,
        pieces => rustix::io::readv(socket, pieces)?,
    })
}

/// Sends `plan` in its order and never raises `SIGPIPE`.
///
/// # Errors
/// `WouldBlock` if the socket is full.
pub fn send(socket: impl AsFd, plan: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(match plan {
        [piece] => vectors::send(socket, piece, flags)?,
        pieces => rustix::net::sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags)?,
    })
}

/// Sends `plan` in its order without a copy: the kernel reads from its memory until it says that it is done.
pub(crate) fn send_zero_copy(socket: impl AsFd, plan: &[IoSlice<'_>]) -> io::Result<usize> {
    let zero_copy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as _);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | zero_copy;
    Ok(rustix::net::sendmsg(socket, plan, &mut SendAncillaryBuffer::default(), flags)?)
}

/// Makes calls on the socket return instead of wait.
///
/// # Errors
/// The kernel's.
pub fn set_nonblocking(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, true)?)
}

/// Sends small segments at once (`TCP_NODELAY`).
///
/// # Errors
/// The kernel's.
pub fn set_nodelay(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_nodelay(true)
}

/// Finds a dead peer of an idle connection: first probe after `idle`, then every `interval`, lost after
/// `probes`.
///
/// # Errors
/// The kernel's.
pub fn set_keepalive(socket: &impl AsFd, idle: Duration, interval: Duration, probes: u32) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Has the close of the socket reset the connection (`SO_LINGER` of 0 s), so that the kernel keeps no state of it.
///
/// # Errors
/// The kernel's.
pub fn set_reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Finds a dead peer of a connection with unacknowledged bytes (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// The kernel's.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

/// Whether a connection between these addresses does not leave the machine.
pub fn is_within_machine(local: IpAddr, peer: IpAddr) -> bool {
    peer.is_loopback() || local == peer
}

/// Lets the kernel take `bytes` from us at a time (`SO_SNDBUF`), if it may be so much; else it goes on to
/// choose itself. For a connection within the machine, where a buffer bridges no distance: whatever waits in
/// it leaves the caches.
///
/// # Errors
/// The kernel's.
pub fn bound_send_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let sock = SockRef::from(socket);
    sock.set_send_buffer_size(bytes)?;
    match sock.send_buffer_size()? / 2 < bytes {
        true => crate::kernel::unlock_buffers(socket),
        false => Ok(()),
    }
}

/// Bytes that the kernel has taken and not sent once (`SIOCOUTQNSD`).
///
/// # Errors
/// The kernel's.
pub fn unsent_bytes(socket: &impl AsFd) -> io::Result<usize> {
    crate::kernel::unsent_bytes(socket)
}

/// This end of a connection.
///
/// # Errors
/// The kernel's.
pub fn local_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
    SockRef::from(socket).local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The core that the connection's packets were last processed on (`SO_INCOMING_CPU`, S6), if known.
pub fn incoming_cpu(socket: &impl AsFd) -> Option<usize> {
    SockRef::from(socket).cpu_affinity().ok().filter(|&core| core < crate::core::CORES_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_send_buffer_is_as_asked_for_or_the_kernels_business() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        bound_send_buffer(&stream, 64 << 10).expect("an option that there is");
        assert_eq!(SockRef::from(&stream).send_buffer_size().expect("a size") / 2, 64 << 10);
        bound_send_buffer(&stream, 1 << 30).expect("more than any kernel grants");
        assert!(!crate::kernel::are_buffers_locked(&stream).expect("an option that there is"));
    }

    #[test]
    fn a_connection_to_ones_own_address_does_not_leave_the_machine() {
        let is_within = |local: &str, peer: &str| {
            is_within_machine(local.parse().expect("an address"), peer.parse().expect("an address"))
        };
        assert!(is_within("127.0.0.1", "127.0.0.1") && is_within("::1", "::1"));
        assert!(is_within("192.0.2.1", "192.0.2.1"));
        assert!(!is_within("192.0.2.1", "192.0.2.2"));
    }
}
