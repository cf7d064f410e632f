//! Listening addresses of a target, with their socket options.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use isolane_reactor::SocketOptions;
use isolane_reactor::retry::{self, HELD_TIMEOUT};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::StartError;

/// An address to listen on. As text: `127.0.0.1:4420`, `[::1]:4420`, or `localhost:4420`; `:4420` or `4420`
/// for 127.0.0.1; followed by socket options, as in `10.0.0.1:4420,priority=5,congestion=bbr`.
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

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let (address, options) = text.split_once(',').unwrap_or((text, ""));
        Ok(Listen {
            address: listen_address(address)?,
            options: options.parse().map_err(|error| format!("{error}"))?,
        })
    }
}

/// Parses the address in `text`. A port without a host means the loopback address: hosts are not
/// authenticated, so other machines must be admitted explicitly. Prefers the first IPv4 address of a name.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    match port.parse::<u16>() {
        Ok(port) if host.is_empty() => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Ok(_) if !host.contains([':', '[']) => {
            let resolved = text.to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
            let addresses: Vec<_> = resolved.collect();
            let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
            first.copied().ok_or_else(|| format!("{host} has no address; write the address itself"))
        }
        _ => parse_address(text),
    }
}

/// Parses the address and port in `text`.
///
/// # Errors
/// The cause, with an example of a valid address.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| "not an address with a port; use the form 127.0.0.1:4420 or [::1]:4420";
    Ok(text.parse().map_err(wrong)?)
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.options == SocketOptions::default() { "" } else { "," };
        write!(f, "{}{comma}{}", self.address, self.options)
    }
}

impl Listen {
    /// Opens the listener with its options, so that an unsupported option fails now and the TCP handshake
    /// announces the buffer sizes. Waits for an address in use: the kernel releases the io_uring of a killed
    /// program late, and keeps its listeners until then.
    pub(crate) fn open(&self) -> Result<TcpListener, StartError> {
        bind_with_retry(self.address, HELD_TIMEOUT, || self.try_open())
    }

    fn try_open(&self) -> Result<TcpListener, StartError> {
        let address = self.address;
        let failed = |error| StartError::Listen { address, error };
        let socket = self.socket().map_err(failed)?;
        self.options.apply(&socket).map_err(|error| StartError::SocketOption { address, error })?;
        socket.listen(BACKLOG).map_err(failed)?;
        Ok(TcpListener::from(socket))
    }

    fn socket(&self) -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if self.address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&self.address.into())?;
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
        assert!(error("localhost").contains("not an address with a port"));
        assert!(error("127.0.0.1:4420,size=1").contains("unknown socket option"));
    }

    #[test]
    fn takes_a_name_and_a_port_alone() {
        let address = |text: &str| text.parse::<Listen>().expect(text).address.to_string();
        assert_eq!(address("4433"), "127.0.0.1:4433");
        assert_eq!(address(":4433"), "127.0.0.1:4433");
        assert_eq!(address("4433,priority=5"), "127.0.0.1:4433");
        assert_eq!(address("localhost:4433"), "127.0.0.1:4433");
        let error = |text: &str| text.parse::<Listen>().expect_err(text);
        assert!(error("no-such-host.invalid:1").contains("no-such-host.invalid"));
        assert!(error("70000").contains("[::1]:4420"));
    }

    #[test]
    fn waits_for_address_of_killed_program() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = Listen::from(held.local_addr().expect("it is bound"));
        let is_refused = |result: Result<_, StartError>| is_in_use(&result);
        assert!(is_refused(listen.try_open()), "the address is held");
        let mut held = Some(held);
        let result = bind_with_retry(listen.address, HELD_TIMEOUT, || {
            let result = listen.try_open();
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
        let error =
            bind_with_retry(listen.address, timeout, || listen.try_open()).expect_err("the address is held");
        let (text, port) = (error.to_string(), listen.address.port().to_string());
        assert!(text.contains(&port) && text.contains("stop the program that uses it"), "{text}");
    }

    #[test]
    fn rejects_unavailable_socket_option() {
        let listen: Listen = "127.0.0.1:0,congestion=nosuch".parse().expect("well formed");
        let error = listen.open().expect_err("no such algorithm").to_string();
        assert!(error.contains("127.0.0.1:0") && error.contains("congestion=nosuch"), "{error}");
    }
}
