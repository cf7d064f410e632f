//! Addresses of a server: Unix sockets and TCP.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use isolane_reactor::retry::retry_while_held;
pub use isolane_reactor::unix_listener::ListenError;
use isolane_reactor::unix_listener::UnixListener;
use rustix::io::Errno;
use rustix::net::SocketFlags;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// A TCP address; port 0 selects a free one.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses `127.0.0.1:10809`, `[::1]:10809`, `10809`, a name with a port, or the path of a socket. A name can have
    /// several addresses.
    ///
    /// # Errors
    /// The cause and the remedy.
    pub fn parse_all(text: &str) -> Result<Vec<Address>, String> {
        let tcp = |ip| vec![Address::Tcp(SocketAddr::new(ip, DEFAULT_PORT))];
        let invalid = || Err(format!("{text:?} is not an address; use the form {FORMS}"));
        if text.contains("://") || text.starts_with("unix:") {
            return invalid();
        }
        if text.contains('/') {
            return Ok(vec![Address::Unix(PathBuf::from(text))]);
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(vec![Address::Tcp(address)]);
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(tcp(ip));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        match port.parse::<u16>() {
            Ok(port) if host.is_empty() => {
                Ok(vec![Address::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))])
            }
            Ok(_) if host.contains(':') => invalid(),
            Ok(port) => resolve(host, port),
            Err(_) if text.is_empty() || text.contains(':') || is_number(text) => invalid(),
            Err(_) => Ok(vec![Address::Unix(PathBuf::from(text))]),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the addresses of a name that this machine has.
fn resolve(host: &str, port: u16) -> Result<Vec<Address>, String> {
    let resolved = (host, port).to_socket_addrs();
    let resolved =
        resolved.map_err(|error| format!("{host}: {error}; use a name of this machine, or {FORMS}"))?;
    let mut addresses: Vec<_> =
        resolved.filter(|address| TcpListener::bind((address.ip(), 0)).is_ok()).collect();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(format!("{host} has no address of this machine; use another name"));
    }
    Ok(addresses.into_iter().map(Address::Tcp).collect())
}

/// As a URI of the default export.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "nbd://{address}"),
            Address::Unix(path) => {
                f.write_str("nbd+unix:///?socket=")?;
                for byte in path.as_os_str().as_encoded_bytes() {
                    match byte {
                        b'/' | b'.' | b'-' | b'_' | b'~' => write!(f, "{}", char::from(*byte))?,
                        byte if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(*byte))?,
                        byte => write!(f, "%{byte:02X}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// A listening socket. Dropping it removes the file of a Unix socket, unless another program has replaced it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub address: Address,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(OwnedFd),
}

impl Listener {
    /// Binds the address. Waits up to `timeout` for one that is in use, perhaps by a killed process.
    pub fn bind(address: &Address, timeout: Duration) -> Result<Listener, ListenError> {
        match address {
            Address::Unix(path) => {
                let socket = Socket::Unix(UnixListener::bind(path, timeout)?);
                Ok(Listener { address: address.clone(), socket })
            }
            Address::Tcp(address) => {
                let attempt = || bind_tcp(*address);
                let is_held = |bound: &io::Result<Listener>| bound.as_ref().is_err_and(is_in_use);
                let notify = || log::warn!("{address} is in use; waiting up to {timeout:?} for it");
                retry_while_held(timeout, attempt, is_held, notify).map_err(|error| {
                    let remedy =
                        if is_in_use(&error) { "stop the program that uses it, or choose" } else { "choose" };
                    let reason = format!("{error}; {remedy} another address");
                    ListenError { address: address.to_string(), reason }
                })
            }
        }
    }

    /// Returns a connection, or `None` if none is waiting.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match &self.socket {
            Socket::Unix(listener) => listener.accept(),
            Socket::Tcp(socket) => {
                match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(socket) => Ok(Some(socket)),
                    Err(Errno::AGAIN) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(listener) => listener.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

fn bind_tcp(address: SocketAddr) -> io::Result<Listener> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let address = Address::Tcp(socket.local_addr()?);
    Ok(Listener { address, socket: Socket::Tcp(socket.into()) })
}

/// The port of NBD.
const DEFAULT_PORT: u16 = 10809;
const FORMS: &str = "127.0.0.1:10809, [::1]:10809, or ./SOCKET";

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(address: &Address) -> Result<Listener, ListenError> {
        Listener::bind(address, Duration::ZERO)
    }

    fn tcp(text: &str) -> Vec<Address> {
        vec![Address::Tcp(text.parse().unwrap())]
    }

    #[test]
    fn parses_addresses_and_paths() {
        for (text, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("127.0.0.1", "127.0.0.1:10809"),
            ("::1", "[::1]:10809"),
            ("[::1]", "[::1]:10809"),
            ("[::1]:7", "[::1]:7"),
            ("10810", "127.0.0.1:10810"),
            (":0", "127.0.0.1:0"),
        ] {
            assert_eq!(Address::parse_all(text), Ok(tcp(expected)), "{text}");
        }
        for path in ["./a:1", "/run/nbd.sock", "nbd.sock"] {
            assert_eq!(Address::parse_all(path), Ok(vec![Address::Unix(path.into())]));
        }
        assert!(Address::parse_all("localhost:9").unwrap().contains(&tcp("127.0.0.1:9")[0]));
        for text in [
            "",
            "70000",
            "host:port",
            "127.0.0.1:70000",
            "[::1]:x",
            "127.0.0.1:1:2",
            "nbd://127.0.0.1:1",
            "nbd+unix:///?socket=/a",
            "unix:/a",
        ] {
            assert!(
                Address::parse_all(text).unwrap_err().contains("is not an address; use the form"),
                "{text}"
            );
        }
    }

    #[test]
    fn shows_uris() {
        assert_eq!(tcp("[::1]:7")[0].to_string(), "nbd://[::1]:7");
        let path = Address::Unix("/run/a b?&ä.sock".into());
        assert_eq!(path.to_string(), "nbd+unix:///?socket=/run/a%20b%3F%26%C3%A4.sock");
    }

    #[test]
    fn names_unusable_addresses() {
        let refuse = |address| bind(&address).unwrap_err().to_string();
        assert!(refuse(Address::Unix("/nowhere/nbd".into())).contains("its directory does not exist"));
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = refuse(Address::Tcp(taken.local_addr().unwrap()));
        assert!(error.contains("stop the program that uses it, or choose another address"), "{error}");
    }
}
