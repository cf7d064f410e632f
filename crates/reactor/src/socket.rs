//! Sockets: non-blocking transfer and the options that matter to a lane. Nothing here waits.

use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

/// Receives into `plan` in its order. `Ok(0)` is the end of the stream.
///
/// # Errors
/// `WouldBlock` if the socket, which must be non-blocking, is empty.
pub fn receive(socket: impl AsFd, plan: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    Ok(match plan {
        // One piece costs the kernel less than a list of one.
        [piece] => rustix::io::read(socket, &mut **piece)?,
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
        [piece] => rustix::net::send(socket, piece, flags)?,
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

/// Finds a dead peer of an idle connection: first probe after `idle`, then every `interval`, lost after `probes`.
///
/// # Errors
/// The kernel's.
pub fn set_keepalive(socket: &impl AsFd, idle: Duration, interval: Duration, probes: u32) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Finds a dead peer of a connection with unacknowledged bytes (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// The kernel's.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
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
