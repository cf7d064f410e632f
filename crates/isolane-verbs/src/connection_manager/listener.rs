//! Ports of listeners, and the acceptance of their peers.
//!
//! RDMA and TCP have separate ports: another program can use the same number for TCP. A listener uses the
//! TCP port of its number, or if that is in use, the number with another highest bit. An abstract socket address, which
//! names the port, keeps a second listener from that number.

use std::ffi::c_int;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socket_with, sockopt};

use super::handler::HandlerRef;
use super::watch::Watch;
use crate::SharedKey;
use crate::message_proof::MessageProofs;
use crate::wire::connection_manager::{GREETING_LEN, greeting};

/// A bound port.
pub struct Bound {
    socket: OwnedFd,
    reservation: UnixDatagram,
}

/// A listener of the agent.
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) handler: HandlerRef,
    backlog: usize,
    /// Nothing is accepted until this time.
    pub(super) paused_until: Option<Instant>,
    greeting: [u8; GREETING_LEN],
    /// Key that peers must prove; the port and the port space of the greeting.
    key: Option<Arc<SharedKey>>,
    port: (u16, bool),
    _reservation: UnixDatagram,
}

/// Addresses at which a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scope {
    address: IpAddr,
    /// `[::]` also accepts at all addresses of version 4.
    is_dual: bool,
}

impl Scope {
    fn overlaps(self, other: Scope) -> bool {
        let is_same_family = self.address.is_ipv4() == other.address.is_ipv4();
        let is_wildcard = self.address.is_unspecified() || other.address.is_unspecified();
        self.address == other.address || self.is_dual || other.is_dual || is_same_family && is_wildcard
    }

    fn encode(self) -> String {
        format!("{}{}", self.address, if self.is_dual { "*" } else { "" })
    }

    fn decode(text: &str) -> Option<Scope> {
        let address = text.trim_end_matches('*').parse().ok()?;
        Some(Scope { address, is_dual: text.ends_with('*') })
    }
}

/// Binds a port for a listener. Returns it with the address that the program knows.
///
/// # Errors
/// `EADDRINUSE` if another listener has the port, or if other programs have both TCP ports of it.
pub fn bind(
    address: SocketAddr,
    is_v6_only: Option<bool>,
    is_datagram: bool,
) -> io::Result<(Bound, SocketAddr)> {
    let port = address.port();
    if port != 0 {
        let reservation = reserve(port, scope(address, is_v6_only)?, is_datagram)?;
        let socket = match bind_tcp(address, is_v6_only) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bind_tcp(SocketAddr::new(address.ip(), port ^ OTHER_PORT), is_v6_only)?
            }
            bound => bound?,
        };
        return Ok((Bound { socket, reservation }, address));
    }
    let mut refused = Vec::new();
    loop {
        let socket = bind_tcp(address, is_v6_only)?;
        let bound = SocketAddr::try_from(getsockname(&socket)?).map_err(io::Error::other)?;
        let address = SocketAddr::new(address.ip(), bound.port());
        match reserve(bound.port(), scope(address, is_v6_only)?, is_datagram) {
            // A listener of that number uses the other port. Hold this one, so that the system chooses another.
            Err(error) if error.kind() == ErrorKind::AddrInUse && refused.len() < MAX_PORTS_TRIED => {
                refused.push(socket);
            }
            reservation => return Ok((Bound { socket, reservation: reservation? }, address)),
        }
    }
}

fn bind_tcp(address: SocketAddr, is_v6_only: Option<bool>) -> io::Result<OwnedFd> {
    let socket = socket_for(address, is_v6_only)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    // A program that listens at the number makes this fail, not the bind.
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

fn socket_for(address: SocketAddr, is_v6_only: Option<bool>) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let (AddressFamily::INET6, Some(is_v6_only)) = (family, is_v6_only) {
        sockopt::set_ipv6_v6only(&socket, is_v6_only)?;
    }
    Ok(socket)
}

/// Returns the addresses at which a listener of an address accepts.
fn scope(address: SocketAddr, is_v6_only: Option<bool>) -> io::Result<Scope> {
    let is_wildcard = address.is_ipv6() && address.ip().is_unspecified();
    // Without an option, the system decides.
    let is_dual = is_wildcard && !sockopt::ipv6_v6only(socket_for(address, is_v6_only)?)?;
    Ok(Scope { address: address.ip(), is_dual })
}

/// Reserves a port for a listener.
fn reserve(port: u16, scope: Scope, is_datagram: bool) -> io::Result<UnixDatagram> {
    let prefix = format!("isolane-cm/{}/{port}/", if is_datagram { "udp" } else { "tcp" });
    let name = format!("{prefix}{}", scope.encode());
    let reservation = UnixDatagram::bind_addr(&unix::SocketAddr::from_abstract_name(&name)?)?;
    // The names of all abstract sockets; without this file, only the same address is found in use.
    let names = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let others = names.lines().filter_map(|line| line.split_once('@')?.1.strip_prefix(&prefix));
    let mut others = others.filter_map(Scope::decode).filter(|other| *other != scope);
    if others.any(|other| other.overlaps(scope)) { Err(Errno::ADDRINUSE.into()) } else { Ok(reservation) }
}

impl Bound {
    /// Listens for peers of a port, and of datagrams or not, that prove `key` if there is one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(
        self,
        backlog: c_int,
        port: (u16, bool),
        key: Option<Arc<SharedKey>>,
        handler: HandlerRef,
    ) -> io::Result<Listener> {
        // As in the kernel, a program that sets none has the largest one.
        let backlog = if backlog > 0 { backlog.clamp(MIN_BACKLOG, MAX_BACKLOG) } else { MAX_BACKLOG };
        // Calling it again changes the backlog.
        rustix::net::listen(&self.socket, backlog)?;
        let socket = TcpListener::from(self.socket);
        socket.set_nonblocking(true)?;
        let backlog = backlog as usize;
        Ok(Listener {
            socket,
            handler,
            backlog,
            paused_until: None,
            greeting: greeting(port.0, port.1),
            key,
            port,
            _reservation: self.reservation,
        })
    }
}

impl Listener {
    /// Number of accepted peers whose request can be missing, and of requests that the program has not taken.
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// Accepts and greets the next peer. Returns `None` if no peer waits.
    ///
    /// # Errors
    /// If the process can have no further socket.
    pub(super) fn accept(&self) -> io::Result<Option<(TcpStream, Option<MessageProofs>)>> {
        loop {
            match self.socket.accept() {
                Ok((mut stream, _)) => {
                    let is_prepared =
                        stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok();
                    let proofs = match &self.key {
                        Some(key) => Some(MessageProofs::listen(Arc::clone(key), self.port.0, self.port.1)?),
                        None => None,
                    };
                    let greeting = proofs.as_ref().map_or(&self.greeting[..], |proofs| proofs.greeting());
                    // The greeting fits into the buffer of a new socket.
                    if is_prepared && stream.write_all(greeting).is_ok() {
                        return Ok(Some((stream, proofs)));
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Leaves further peers in the queue of the kernel for a moment.
    pub(super) fn pause(&mut self, watch: &Watch, number: u64) {
        self.paused_until = Some(Instant::now() + PAUSE);
        let _ = watch.pause(&self.socket, number);
    }

    /// Ends a pause that is over. Returns whether peers can be accepted.
    pub(super) fn resume(&mut self, watch: &Watch, number: u64) -> bool {
        if self.paused_until.is_some_and(|until| until > Instant::now()) {
            return false;
        }
        if self.paused_until.take().is_some() {
            let _ = watch.resume(&self.socket, number);
        }
        true
    }
}

/// Changes the port of a listener whose number another program uses.
pub const OTHER_PORT: u16 = 0x8000;
const MAX_PORTS_TRIED: usize = 64;
/// Limits of the queue of connections. The kernel drops the last packet of a handshake that finds the queue full, and the
/// client, which waits for the greeting, does not send another one.
const MIN_BACKLOG: c_int = 128;
const MAX_BACKLOG: c_int = 4096;
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_overlap_as_addresses_do() {
        let scopes = ["10.0.0.1", "10.0.0.2", "0.0.0.0", "fd00::1", "::", "::*"].map(|text| {
            let scope = Scope::decode(text).unwrap();
            assert_eq!(scope.encode(), text);
            scope
        });
        let found = scopes.map(|one| scopes.map(|other| u8::from(one.overlaps(other))));
        assert_eq!(
            found,
            [
                [1, 0, 1, 0, 0, 1],
                [0, 1, 1, 0, 0, 1],
                [1, 1, 1, 0, 0, 1],
                [0, 0, 0, 1, 1, 1],
                [0, 0, 0, 1, 1, 1],
                [1, 1, 1, 1, 1, 1],
            ]
        );
        assert_eq!(Scope::decode("name"), None);
    }
}
