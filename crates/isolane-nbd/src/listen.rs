//! Addresses of a server: Unix sockets and TCP.
//!
//! A Unix socket has mode 0600, so that only processes of its user and of root can connect. A socket that a killed
//! server has left is replaced.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use isolane_reactor::retry::retry_while_held;
use rustix::fs::{Mode, fchmod};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

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
            Ok(port) => resolve(host, port),
            Err(_) if text.is_empty() || text.contains(':') || is_number(text) => Err(format!(
                "{text:?} is not an address; use the form 127.0.0.1:10809, [::1]:10809, or ./SOCKET"
            )),
            Err(_) => Ok(vec![Address::Unix(PathBuf::from(text))]),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the addresses of a name that this machine has.
fn resolve(host: &str, port: u16) -> Result<Vec<Address>, String> {
    let resolved = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
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

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct ListenError {
    /// The address.
    pub address: String,
    /// Reason and remedy.
    pub reason: String,
}

/// A listening socket. Dropping it removes the file of a Unix socket, unless another program has replaced it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub address: Address,
    socket: OwnedFd,
    /// Device and inode of the file of a Unix socket.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Binds the address. Waits up to `timeout` for one that is in use, perhaps by a killed process.
    pub fn bind(address: &Address, timeout: Duration) -> Result<Listener, ListenError> {
        let name = match address {
            Address::Unix(path) => path.display().to_string(),
            Address::Tcp(address) => address.to_string(),
        };
        let attempt = || match address {
            Address::Unix(path) => bind_unix(path),
            Address::Tcp(address) => bind_tcp(*address),
        };
        let is_held =
            |bound: &Result<Listener, Refused>| bound.as_ref().is_err_and(|refused| refused.is_held);
        let notify = || log::warn!("{name} is in use; waiting up to {timeout:?} for it");
        let bound = retry_while_held(timeout, attempt, is_held, notify);
        bound.map_err(|Refused { reason, .. }| ListenError { address: name.clone(), reason })
    }

    /// Returns a connection, or `None` if none is waiting.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address
            && self.file.is_some()
            && identity(path) == self.file
        {
            // Another process can have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

/// A failure to bind: reason with its remedy, and whether another process may be about to release the address.
struct Refused {
    reason: String,
    is_held: bool,
}

fn bind_tcp(address: SocketAddr) -> Result<Listener, Refused> {
    let bound = TcpListener::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok((socket.local_addr()?, OwnedFd::from(socket)))
    });
    match bound {
        Ok((address, socket)) => Ok(Listener { address: Address::Tcp(address), socket, file: None }),
        Err(error) => {
            let is_held = error.kind() == io::ErrorKind::AddrInUse;
            let remedy = if is_held { "stop the program that uses it, or choose" } else { "choose" };
            Err(Refused { reason: format!("{error}; {remedy} another address"), is_held })
        }
    }
}

fn bind_unix(path: &Path) -> Result<Listener, Refused> {
    let refuse = |reason: String| Refused { reason, is_held: false };
    let bound = match try_bind_unix(path) {
        Err(Errno::ADDRINUSE) if is_socket(path) && connect(path) == Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|error| refuse(format!("{error}; remove the dead socket")))?;
            try_bind_unix(path)
        }
        result => result,
    };
    let socket = bound.map_err(|error| match error {
        Errno::ADDRINUSE if is_socket(path) => Refused {
            reason: "another program listens there; stop it, or choose another path".to_owned(),
            is_held: true,
        },
        Errno::ADDRINUSE => refuse("the file is not a socket; remove it, or choose another path".to_owned()),
        Errno::NAMETOOLONG => refuse("the path is longer than 107 bytes; shorten it".to_owned()),
        Errno::NOENT => refuse("its directory does not exist; create it".to_owned()),
        error => refuse(format!("{}; choose another path", io::Error::from(error))),
    })?;
    Ok(Listener { address: Address::Unix(path.to_owned()), socket, file: identity(path) })
}

fn try_bind_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode of the socket, so that it never has another one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Connects to a socket without waiting, to test whether a program listens.
fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The port of NBD.
const DEFAULT_PORT: u16 = 10809;
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

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
        for text in ["", "70000", "host:port", "127.0.0.1:70000", "[::1]:x"] {
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
    fn socket_is_private_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd");
        let address = Address::Unix(path.clone());
        let listener = bind(&address).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn replaces_only_dead_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd");
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let listener = bind(&address).unwrap();
        let error = bind(&address).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "cannot listen on {}: another program listens there; stop it, or choose another path",
                path.display()
            )
        );
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        drop(listener);
        assert!(bind(&address).unwrap_err().reason.contains("not a socket; remove it"));
        assert_eq!(fs::read(&path).unwrap(), b"data", "a file of another program was removed");
    }

    #[test]
    fn names_unusable_addresses() {
        let refuse = |address| bind(&address).unwrap_err().to_string();
        assert!(refuse(Address::Unix("/nowhere/nbd".into())).contains("its directory does not exist"));
        assert!(refuse(Address::Unix("x".repeat(200).into())).contains("longer than 107 bytes"));
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = refuse(Address::Tcp(taken.local_addr().unwrap()));
        assert!(error.contains("stop the program that uses it, or choose another address"), "{error}");
    }
}
