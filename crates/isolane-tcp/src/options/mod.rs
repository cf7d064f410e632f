//! TCP socket options that a user may set for each listener of a target and each connection of a
//! host (H5, V6).
//!
//! Invariant: an option is set as requested, or the error names it, the kernel's reason, and the
//! remedy. Values that the kernel would silently reduce are read back and rejected.

mod error;
mod text;

pub use error::SocketOptionError;
pub use text::OptionSyntaxError;

use isolane_shm::sockopt::{getsockopt_int, setsockopt};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, sockopt};
use socket2::SockRef;
use std::io;

/// Socket options; `None` keeps the kernel's default. Text form:
/// `priority=5,tos=0x68,congestion=bbr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `priority=N`: selects a queue of the queueing discipline and the network card
    /// (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// `tos=N`: DSCP and two zero bits, in every IP header (`IP_TOS`, `IPV6_TCLASS`).
    pub type_of_service: Option<u8>,
    /// `busy-poll=US`: duration of busy polling on an empty receive (`SO_BUSY_POLL`).
    pub busy_poll_us: Option<u32>,
    /// `prefer-busy-poll=on|off`: keeps the card's interrupts off while polling
    /// (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: Option<bool>,
    /// `congestion=NAME` (`TCP_CONGESTION`). Unset, targets and hosts replace BBR by Reno on local
    /// connections: [`SocketOptions::tune_for_loopback`].
    pub congestion_control: Option<String>,
    /// `receive-buffer=BYTES`, without the kernel's doubling (`SO_RCVBUF`); disables automatic
    /// tuning.
    pub receive_buffer_bytes: Option<u32>,
    /// `send-buffer=BYTES`, likewise (`SO_SNDBUF`). Unset, targets and hosts bound it on local
    /// connections: [`SocketOptions::tune_for_loopback`].
    pub send_buffer_bytes: Option<u32>,
    /// `max-unsent=BYTES`: limit of unsent bytes in the socket (`TCP_NOTSENT_LOWAT`). Later data
    /// can overtake bytes queued in user space, but not bytes queued in the kernel.
    pub max_unsent_bytes: Option<u32>,
}

impl SocketOptions {
    /// Sets the options. Buffer sizes affect the TCP handshake only if set before it.
    ///
    /// # Errors
    /// The first option that the kernel does not set as requested.
    pub fn apply(&self, socket: &impl AsFd) -> Result<(), SocketOptionError> {
        let sock = SockRef::from(socket);
        // On IPv4 setting the type of service also changes the priority, so set the priority after
        // it.
        set("tos", self.type_of_service, |tos| set_type_of_service(socket, tos))?;
        set("priority", self.priority, |priority| sock.set_priority(priority))?;
        set("busy-poll", self.busy_poll_us, |us| sock.set_busy_poll(us))?;
        set("prefer-busy-poll", self.prefer_busy_poll, |on| {
            Ok(setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, i32::from(on))?)
        })?;
        set("congestion", self.congestion_control.as_deref(), |name| {
            sock.set_tcp_congestion(name.as_bytes())
        })?;
        self.apply_buffers(&sock)?;
        set("max-unsent", self.max_unsent_bytes, |bytes| sock.set_tcp_notsent_lowat(bytes))
    }

    fn apply_buffers(&self, sock: &SockRef<'_>) -> Result<(), SocketOptionError> {
        set("receive-buffer", self.receive_buffer_bytes, |bytes| {
            sock.set_recv_buffer_size(bytes as usize)?;
            check_buffer(bytes, sock.recv_buffer_size()?)
        })?;
        set("send-buffer", self.send_buffer_bytes, |bytes| {
            sock.set_send_buffer_size(bytes as usize)?;
            check_buffer(bytes, sock.send_buffer_size()?)
        })
    }

    /// Tunes a connection within this machine where no option is set: bounds its send buffer to
    /// `send_buffer_bytes` and replaces BBR, whose pacing only helps on a real path, by Reno.
    /// Errors are ignored because only speed depends on it.
    pub fn tune_for_loopback(&self, socket: &impl AsFd, send_buffer_bytes: usize) {
        let sock = SockRef::from(socket);
        if self.send_buffer_bytes.is_none() {
            let _ = crate::socket::bound_send_buffer(socket, send_buffer_bytes);
        }
        if self.congestion_control.is_none()
            && sock.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"))
        {
            let _ = sock.set_tcp_congestion(b"reno");
        }
    }

    /// Reads the options of a socket.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn from_socket(socket: &impl AsFd) -> io::Result<SocketOptions> {
        let sock = SockRef::from(socket);
        let prefers = getsockopt_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL)?;
        let name = sock.tcp_congestion()?;
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        Ok(SocketOptions {
            priority: Some(sock.priority()?),
            type_of_service: Some(type_of_service(socket)?),
            busy_poll_us: Some(sock.busy_poll()?),
            prefer_busy_poll: Some(prefers != 0),
            congestion_control: Some(name),
            receive_buffer_bytes: Some((sock.recv_buffer_size()? / DOUBLED) as u32),
            send_buffer_bytes: Some((sock.send_buffer_size()? / DOUBLED) as u32),
            max_unsent_bytes: Some(sock.tcp_notsent_lowat()?),
        })
    }
}

fn set<V: ToString + Clone>(
    option: &'static str,
    value: Option<V>,
    call: impl FnOnce(V) -> io::Result<()>,
) -> Result<(), SocketOptionError> {
    let Some(value) = value else { return Ok(()) };
    call(value.clone()).map_err(|error| SocketOptionError::new(option, value.to_string(), error))
}

fn set_type_of_service(socket: &impl AsFd, tos: u8) -> io::Result<()> {
    match sockopt::socket_domain(socket)? {
        AddressFamily::INET6 => Ok(sockopt::set_ipv6_tclass(socket, u32::from(tos))?),
        _ => Ok(sockopt::set_ip_tos(socket, tos)?),
    }
}

fn type_of_service(socket: &impl AsFd) -> io::Result<u8> {
    match sockopt::socket_domain(socket)? {
        AddressFamily::INET6 => Ok(sockopt::ipv6_tclass(socket)? as u8),
        _ => Ok(sockopt::ip_tos(socket)?),
    }
}

/// Rejects a buffer size that the kernel silently reduced.
fn check_buffer(requested: u32, granted: usize) -> io::Result<()> {
    if granted / DOUBLED >= requested as usize {
        Ok(())
    } else {
        Err(io::Error::other(format!("the kernel grants {} bytes", granted / DOUBLED)))
    }
}

/// The kernel doubles the requested size for its bookkeeping (socket(7)).
const DOUBLED: usize = 2;

#[cfg(test)]
mod tests;
