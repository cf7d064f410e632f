//! Options of a TCP socket that a user may choose: for each listener of a target, for each connection of a
//! host (H5, V6).
//!
//! Invariant: an option is set as asked for, or the error names it, the kernel's reason and the remedy; what
//! the kernel would silently make less of is read back and refused.

mod error;
mod text;

pub use error::SocketOptionError;
pub use text::OptionSyntaxError;

use crate::kernel;
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, sockopt};
use socket2::SockRef;
use std::io;

/// The choices; `None` leaves the kernel's default. As text: `priority=5,tos=0x68,congestion=bbr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `priority=N`: by it the queueing discipline and the network card choose a queue set (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// `tos=N`: DSCP and two zero bits, in every IP header (`IP_TOS`, `IPV6_TCLASS`).
    pub type_of_service: Option<u8>,
    /// `busy-poll=US`: a receive that finds nothing asks the network card for so long (`SO_BUSY_POLL`).
    pub busy_poll_us: Option<u32>,
    /// `prefer-busy-poll=on|off`: the card's interrupts stay off while there is polling
    /// (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: Option<bool>,
    /// `congestion=NAME` (`TCP_CONGESTION`). Without it targets and hosts use Reno instead of BBR on
    /// connections within one machine: [`SocketOptions::suit_within_machine`].
    pub congestion_control: Option<String>,
    /// `receive-buffer=BYTES`, without the kernel's own doubling (`SO_RCVBUF`); ends its automatic tuning.
    pub receive_buffer_bytes: Option<u32>,
    /// `send-buffer=BYTES`, likewise (`SO_SNDBUF`). Without it targets and hosts bound those of connections
    /// within one machine: [`SocketOptions::suit_within_machine`].
    pub send_buffer_bytes: Option<u32>,
    /// `unsent-max=BYTES`: the socket takes no more while so much waits in it that was never sent
    /// (`TCP_NOTSENT_LOWAT`). What waits there cannot be passed by anything; what waits with us can.
    pub unsent_bytes_max: Option<u32>,
}

impl SocketOptions {
    /// Sets what was chosen. Buffers count for the TCP handshake only if they are set before it.
    ///
    /// # Errors
    /// The first option that the kernel does not set as asked for.
    pub fn apply(&self, socket: &impl AsFd) -> Result<(), SocketOptionError> {
        let sock = SockRef::from(socket);
        // With IPv4 the type of service chooses a priority, too: the explicit one comes after it.
        set("tos", self.type_of_service, |tos| set_type_of_service(socket, tos))?;
        set("priority", self.priority, |priority| sock.set_priority(priority))?;
        set("busy-poll", self.busy_poll_us, |us| sock.set_busy_poll(us))?;
        set("prefer-busy-poll", self.prefer_busy_poll, |on| kernel::set_prefer_busy_poll(socket, on))?;
        set("congestion", self.congestion_control.as_deref(), |name| {
            sock.set_tcp_congestion(name.as_bytes())
        })?;
        self.apply_buffers(&sock)?;
        set("unsent-max", self.unsent_bytes_max, |bytes| sock.set_tcp_notsent_lowat(bytes))
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

    /// Suits a connection that does not leave the machine, as far as nothing was chosen: its send buffer is
    /// bounded to `send_buffer_bytes`, and BBR, which spaces packets by timers for the sake of a path that is
    /// not there, makes way for Reno. Only speed hangs on it, so what the kernel refuses is left as it is.
    pub fn suit_within_machine(&self, socket: &impl AsFd, send_buffer_bytes: usize) {
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

    /// What the kernel says about a socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(socket: &impl AsFd) -> io::Result<SocketOptions> {
        let sock = SockRef::from(socket);
        let name = sock.tcp_congestion()?;
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        Ok(SocketOptions {
            priority: Some(sock.priority()?),
            type_of_service: Some(type_of_service(socket)?),
            busy_poll_us: Some(sock.busy_poll()?),
            prefer_busy_poll: Some(kernel::prefer_busy_poll(socket)?),
            congestion_control: Some(name),
            receive_buffer_bytes: Some((sock.recv_buffer_size()? / DOUBLED) as u32),
            send_buffer_bytes: Some((sock.send_buffer_size()? / DOUBLED) as u32),
            unsent_bytes_max: Some(sock.tcp_notsent_lowat()?),
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

/// The kernel makes less of what exceeds its limit, and says nothing.
fn check_buffer(asked: u32, granted: usize) -> io::Result<()> {
    match granted / DOUBLED >= asked as usize {
        true => Ok(()),
        false => Err(io::Error::other(format!("the kernel grants {} bytes", granted / DOUBLED))),
    }
}

/// The kernel counts its own bookkeeping among a buffer's bytes and takes twice what it is asked for
/// (socket(7)).
const DOUBLED: usize = 2;

#[cfg(test)]
mod tests;
