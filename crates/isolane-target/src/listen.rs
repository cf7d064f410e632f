//! Listening addresses of a target, with their socket options.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use isolane_reactor::SocketOptions;
use isolane_reactor::retry::{self, HELD_TIMEOUT};
use rustix::net::netdevice;
use rustix::net::sockopt::set_socket_reuseport;
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::StartError;

/// An address to listen on. As text: an address, as [`parse_address`] takes it, followed by socket options, as
/// in `10.0.0.1:4420,priority=5,congestion=bbr`. A port alone, `:4420` or `4420`, means 127.0.0.1, because
/// hosts are not authenticated and other machines must be admitted explicitly.
///
/// `[::]` also accepts IPv4, unless the target has an IPv4 listener with that port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address; port 0 picks a free one.
    pub address: SocketAddr,
    /// Options of the listening socket and of each connection that it accepts.
    pub options: SocketOptions,
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen { address, options: SocketOptions::default() }
    }
}

/// The port of NVMe/TCP (TCP 1.0 §3.1).
pub const DEFAULT_PORT: u16 = 4420;

/// Text with one address; [`Listen::parse_all`] also takes names with several.
impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match Listen::parse_all(text)?.as_slice() {
            [only] => Ok(only.clone()),
            several => Err(format!("{text} has {} addresses; name one of them", several.len())),
        }
    }
}

/// Parses the address in `text`: `127.0.0.1:4420`, `[::1]:4420`, or `[fe80::1%eth0]:4420`. The default port is
/// [`DEFAULT_PORT`].
///
/// # Errors
/// The cause, with an example of a valid address.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = split_port(text)?;
    numeric(host, port)?.ok_or_else(|| not_an_address(text))
}

/// Returns host and port. Only an IPv6 address in brackets can have a port.
fn split_port(text: &str) -> Result<(&str, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| not_an_address(text))?;
            // Brackets are for IPv6 only.
            if !host.contains(':') || !(port.is_empty() || port.starts_with(':')) {
                return Err(not_an_address(text));
            }
            (host, port.strip_prefix(':'))
        }
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(DEFAULT_PORT), |port| port.parse().map_err(|_| not_an_address(text)))?;
    Ok((host, port))
}

/// Returns the address of a host that is not a name.
fn numeric(host: &str, port: u16) -> Result<Option<SocketAddr>, String> {
    let (ip, zone) = host.split_once('%').map_or((host, None), |(ip, zone)| (ip, Some(zone)));
    let Ok(ip) = ip.parse::<IpAddr>() else { return Ok(None) };
    let IpAddr::V6(ip) = ip else { return Ok(zone.is_none().then(|| SocketAddr::new(ip, port))) };
    if zone.is_none() && ip.is_unicast_link_local() {
        return Err(format!("{ip} is a link-local address; add its interface, as in [{ip}%eth0]:{port}"));
    }
    let scope_id = zone.map_or(Ok(0), interface_index)?;
    Ok(Some(SocketAddrV6::new(ip, port, 0, scope_id).into()))
}

/// Returns the index of an interface, given by its name or index.
fn interface_index(zone: &str) -> Result<u32, String> {
    let by_name = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).ok()?;
        netdevice::name_to_index(&socket, zone).ok()
    };
    let found = zone.parse().ok().or_else(by_name);
    found.ok_or_else(|| format!("{zone}: no such interface; `ip link` shows the interfaces"))
}

/// Returns the addresses of a name, IPv4 first. Without addresses that this machine does not have, such as `::1`
/// without IPv6, unless that leaves none.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let resolved = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    let mut addresses: Vec<_> = resolved.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.dedup();
    if addresses.is_empty() {
        return Err(format!("{host} has no address; write the address itself"));
    }
    let is_present = |address: &SocketAddr| TcpListener::bind((address.ip(), 0)).is_ok();
    let present: Vec<_> = addresses.iter().copied().filter(is_present).collect();
    Ok(if present.is_empty() { addresses } else { present })
}

fn not_an_address(text: &str) -> String {
    format!("{text:?} is not an address; use the form 127.0.0.1:4420, [::1]:4420, or [fe80::1%eth0]:4420")
}

/// Whether the listener at `address` accepts IPv4 and IPv6: `[::]`, unless `all` listeners have one for IPv4
/// with that port.
pub fn is_dual_stack(address: SocketAddr, mut all: impl Iterator<Item = SocketAddr>) -> bool {
    let is_taken = |other: SocketAddr| other.is_ipv4() && other.port() == address.port() && other.port() != 0;
    address.ip() == Ipv6Addr::UNSPECIFIED && !all.any(is_taken)
}

/// Whether two listeners can exclude each other: both have the address, or one has all of them.
pub(crate) fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip() == other.ip())
}

/// Returns an IPv4 address of a dual-stack socket as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.options == SocketOptions::default() { "" } else { "," };
        write!(f, "{}{comma}{}", self.address, self.options)
    }
}

impl Listen {
    /// Parses `text`, which can also have a name instead of an address: returns one listener for each address
    /// of the name.
    ///
    /// # Errors
    /// The cause and the remedy.
    pub fn parse_all(text: &str) -> Result<Vec<Listen>, String> {
        let (address, options) = text.split_once(',').unwrap_or((text, ""));
        let options: SocketOptions = options.parse().map_err(|error| format!("{error}"))?;
        let is_port = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit());
        let (host, port) = split_port(&if is_port { format!(":{address}") } else { address.to_owned() })
            .map(|(host, port)| (host.to_owned(), port))?;
        let addresses = match numeric(&host, port)? {
            Some(address) => vec![address],
            None if host.is_empty() && !address.is_empty() => vec![(Ipv4Addr::LOCALHOST, port).into()],
            None if host.is_empty() || host.contains([':', '%']) => return Err(not_an_address(address)),
            None => resolve(&host, port)?,
        };
        Ok(addresses.into_iter().map(|address| Listen { address, options: options.clone() }).collect())
    }

    /// Opens the listener with its options, so that an unsupported option fails now and the TCP handshake
    /// announces the buffer sizes. Waits for an address in use: the kernel releases the io_uring of a killed
    /// program late, and keeps its listeners until then.
    pub(crate) fn open(&self, is_dual_stack: bool) -> Result<TcpListener, StartError> {
        bind_with_retry(self.address, HELD_TIMEOUT, || self.try_open(is_dual_stack))
    }

    /// Whether `socket` listens on this address.
    pub(crate) fn has_address_of(&self, socket: &TcpListener) -> bool {
        socket.local_addr().is_ok_and(|address| address == self.address)
    }

    /// Uses `socket`, which listens already, with the options of this listener.
    pub(crate) fn take(&self, socket: &TcpListener) -> Result<TcpListener, StartError> {
        let address = self.address;
        let socket = socket.try_clone().map_err(|error| StartError::Listen { address, error })?;
        self.options.apply(&socket).map_err(|error| StartError::SocketOption { address, error })?;
        Ok(socket)
    }

    /// Opens the listener although others that close later have its address. `leaving` has the address of one, and all
    /// of them.
    pub(crate) fn open_beside(
        &self,
        is_dual_stack: bool,
        (other, leaving): (SocketAddr, &[TcpListener]),
    ) -> Result<TcpListener, StartError> {
        let failed = |error: std::io::Error| StartError::Shared { address: self.address, other, error };
        for listener in leaving {
            set_socket_reuseport(listener, true).map_err(|error| failed(error.into()))?;
        }
        let socket = self.socket(is_dual_stack).map_err(|error| self.failed(error))?;
        set_socket_reuseport(&socket, true).map_err(|error| failed(error.into()))?;
        let socket = self.listen_with(socket).map_err(|error| match error {
            StartError::Listen { error, .. } if error.kind() == ErrorKind::AddrInUse => failed(error),
            error => error,
        })?;
        set_socket_reuseport(&socket, false).map_err(|error| failed(error.into()))?;
        Ok(socket)
    }

    fn try_open(&self, is_dual_stack: bool) -> Result<TcpListener, StartError> {
        let socket = self.socket(is_dual_stack).map_err(|error| self.failed(error))?;
        self.listen_with(socket)
    }

    fn listen_with(&self, socket: Socket) -> Result<TcpListener, StartError> {
        let address = self.address;
        socket.bind(&address.into()).map_err(|error| self.failed(error))?;
        self.options.apply(&socket).map_err(|error| StartError::SocketOption { address, error })?;
        socket.listen(BACKLOG).map_err(|error| self.failed(error))?;
        Ok(TcpListener::from(socket))
    }

    fn failed(&self, error: std::io::Error) -> StartError {
        StartError::Listen { address: self.address, error }
    }

    /// Returns a socket that is not bound.
    fn socket(&self, is_dual_stack: bool) -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if self.address.is_ipv6() {
            socket.set_only_v6(!is_dual_stack)?;
        }
        Ok(socket)
    }
}

/// Retries while the address is in use, for a bounded time: processes of other users are not visible, so its
/// owner may have been killed.
fn bind_with_retry<T>(
    address: SocketAddr,
    timeout: Duration,
    attempt: impl FnMut() -> Result<T, StartError>,
) -> Result<T, StartError> {
    retry::retry_while_held(timeout, attempt, is_in_use, || {
        log::warn!("{address} is in use; retrying for {timeout:?} in case a killed program still holds it");
    })
}

fn is_in_use<T>(result: &Result<T, StartError>) -> bool {
    matches!(result, Err(StartError::Listen { error, .. }) if error.kind() == ErrorKind::AddrInUse)
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in ["127.0.0.1:4420", "[::1]:0", "[::]:4420,priority=5,congestion=bbr"] {
            assert_eq!(text.parse::<Listen>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn distinguishes_address_from_option_errors() {
        let error = |text: &str| text.parse::<Listen>().expect_err(text);
        for text in ["", "70000", "127.0.0.1:x", "[::1", "[::1]4420", "[127.0.0.1]:1", "127.0.0.1%lo", ",x=1"]
        {
            let error = error(text);
            assert!(
                error.contains("[::1]:4420") || error.contains("unknown socket option"),
                "{text}: {error}"
            );
        }
        assert!(error("127.0.0.1:4420,size=1").contains("unknown socket option"));
        assert!(error("no-such-host.invalid:1").contains("no-such-host.invalid"));
    }

    #[test]
    fn takes_address_without_port_or_port_alone() {
        let address = |text: &str| text.parse::<Listen>().expect(text).address.to_string();
        for text in ["4433", ":4433", "4433,priority=5", "127.0.0.1:4433"] {
            assert_eq!(address(text), "127.0.0.1:4433");
        }
        assert_eq!(address("10.0.0.1"), "10.0.0.1:4420");
        for text in ["::1", "[::1]", "[::1],priority=5", "[::1]:4420"] {
            assert_eq!(address(text), "[::1]:4420");
        }
        assert_eq!(parse_address("[::1]"), Ok("[::1]:4420".parse().unwrap()));
        assert!(parse_address("localhost:1").is_err());
    }

    #[test]
    fn keeps_zone_of_link_local_address() {
        let loopback = interface_index("lo").expect("every machine has lo");
        for text in ["[fe80::1%lo]:4420", "[fe80::1%lo]", "fe80::1%lo", &format!("[fe80::1%{loopback}]:4420")]
        {
            let listen = text.parse::<Listen>().expect(text);
            let SocketAddr::V6(address) = listen.address else { panic!("{text}") };
            assert_eq!((address.scope_id(), address.port()), (loopback, 4420), "{text}");
            assert_eq!(listen.to_string().parse(), Ok(listen), "{text}");
        }
        let error = |text: &str| text.parse::<Listen>().expect_err(text);
        assert!(error("[fe80::1%none]:4420").contains("ip link"));
        assert!(error("[fe80::1]:4420").contains("[fe80::1%eth0]:4420"));
    }

    /// The addresses that `localhost` has differ between machines.
    #[test]
    fn listens_at_all_addresses_of_name() {
        let addresses = |text: &str| -> Vec<_> {
            Listen::parse_all(text).expect(text).into_iter().map(|listen| listen.address).collect()
        };
        let all: Vec<_> = "localhost:4433".to_socket_addrs().unwrap().collect();
        let found = addresses("localhost:4433");
        assert!(all.iter().all(|one| found.contains(one) || TcpListener::bind((one.ip(), 0)).is_err()));
        assert!(found.is_sorted_by_key(SocketAddr::is_ipv6));
        assert!(addresses("localhost").iter().all(|address| address.port() == DEFAULT_PORT));
    }

    #[test]
    fn wildcard_accepts_both_families_unless_port_is_listed() {
        let is_dual = |text: &str, all: &[&str]| {
            is_dual_stack(text.parse().unwrap(), all.iter().map(|other| other.parse().unwrap()))
        };
        assert!(is_dual("[::]:1", &["[::]:1", "0.0.0.0:2"]));
        assert!(is_dual("[::]:0", &["[::]:0", "0.0.0.0:0"]), "the kernel chooses different ports");
        assert!(!is_dual("[::]:1", &["[::]:1", "0.0.0.0:1"]));
        assert!(!is_dual("[::]:1", &["127.0.0.1:1", "[::]:1"]));
        assert!(!is_dual("[::1]:1", &["[::1]:1"]) && !is_dual("0.0.0.0:1", &[]));
    }

    #[test]
    fn waits_for_address_of_killed_program() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = Listen::from(held.local_addr().expect("it is bound"));
        let is_refused = |result: Result<_, StartError>| is_in_use(&result);
        assert!(is_refused(listen.try_open(false)), "the address is held");
        let mut held = Some(held);
        let result = bind_with_retry(listen.address, HELD_TIMEOUT, || {
            let result = listen.try_open(false);
            drop(held.take());
            result
        });
        assert_eq!(result.expect("it is free").local_addr().ok(), Some(listen.address));
    }

    #[test]
    fn rejects_used_address_with_remedy() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = Listen::from(held.local_addr().expect("it is bound"));
        let timeout = Duration::from_millis(50);
        let error = bind_with_retry(listen.address, timeout, || listen.try_open(false))
            .expect_err("the address is held");
        let (text, port) = (error.to_string(), listen.address.port().to_string());
        assert!(text.contains(&port) && text.contains("stop the program that uses it"), "{text}");
    }

    #[test]
    fn rejects_unavailable_socket_option() {
        let listen: Listen = "127.0.0.1:0,congestion=nosuch".parse().expect("well formed");
        let error = listen.open(false).expect_err("no such algorithm").to_string();
        assert!(error.contains("127.0.0.1:0") && error.contains("congestion=nosuch"), "{error}");
    }
}
