//! Where a target listens, and what the sockets there are like.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use isolane_reactor::SocketOptions;
use isolane_reactor::retry::{self, HELD_TIMEOUT};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::StartError;

/// A place to listen at. As text: `127.0.0.1:4420`, `[::1]:4420` or `localhost:4420`; `:4420` or `4420` for
/// 127.0.0.1; and socket options behind commas, as in `10.0.0.1:4420,priority=5,congestion=bbr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address; port 0 picks a free one.
    pub address: SocketAddr,
    /// Options of the listener's socket and of each connection that comes in there.
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
            options: options.parse().map_err(|why| format!("{why}"))?,
        })
    }
}

/// The address to listen at in `text`. A port without a host means this machine alone: there is no
/// authentication, so every other machine must be let in by name. Of a name with several addresses it is the
/// first of IPv4.
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

/// The address and port in `text`.
///
/// # Errors
/// What is wrong with it, and how to write it.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| "it is no address with a port; write it as in 127.0.0.1:4420 or [::1]:4420";
    Ok(text.parse().map_err(wrong)?)
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.options == SocketOptions::default() { "" } else { "," };
        write!(f, "{}{comma}{}", self.address, self.options)
    }
}

impl Listen {
    /// Opens the listener, with its options: what cannot be had is found out now, and the TCP handshake tells
    /// every host how large the buffers are. An address in use is waited for: the kernel tears a killed
    /// program's ring down on its own time, and keeps the listeners that the ring accepted from until then.
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

/// Tries again while the address is in use, for a bounded time. Whether its user still lives cannot be known:
/// other users' programs are not seen.
fn bind_with_retry<T>(
    address: SocketAddr,
    timeout: Duration,
    attempt: impl FnMut() -> Result<T, StartError>,
) -> Result<T, StartError> {
    retry::retry_while_held(timeout, attempt, is_in_use, || {
        log::warn!(
            "{address} is in use; trying for {timeout:?} whether a program that was killed lets go of it"
        );
    })
}

fn is_in_use<T>(outcome: &Result<T, StartError>) -> bool {
    matches!(outcome, Err(StartError::Listen { error, .. }) if error.kind() == ErrorKind::AddrInUse)
}

/// Connections that may wait to be accepted.
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
    fn a_mistake_in_the_address_and_one_in_an_option_are_told_apart() {
        let error = |text: &str| text.parse::<Listen>().expect_err(text);
        assert!(error("localhost").contains("no address with a port"));
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
    fn an_address_that_a_dead_program_still_holds_is_waited_for() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = Listen::from(held.local_addr().expect("it is bound"));
        let is_refused = |outcome: Result<_, StartError>| is_in_use(&outcome);
        assert!(is_refused(listen.try_open()), "it is held");
        let mut held = Some(held);
        let outcome = bind_with_retry(listen.address, HELD_TIMEOUT, || {
            let outcome = listen.try_open();
            drop(held.take());
            outcome
        });
        assert_eq!(outcome.expect("it is free").local_addr().ok(), Some(listen.address));
    }

    #[test]
    fn an_address_that_stays_in_use_is_refused_with_the_remedy() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = Listen::from(held.local_addr().expect("it is bound"));
        let timeout = Duration::from_millis(50);
        let error = bind_with_retry(listen.address, timeout, || listen.try_open()).expect_err("it is held");
        let (text, port) = (error.to_string(), listen.address.port().to_string());
        assert!(text.contains(&port) && text.contains("stop the program that uses it"), "{text}");
    }

    #[test]
    fn an_option_that_cannot_be_had_is_an_error_of_the_start() {
        let listen: Listen = "127.0.0.1:0,congestion=nosuch".parse().expect("well formed");
        let error = listen.open().expect_err("no such algorithm").to_string();
        assert!(error.contains("127.0.0.1:0") && error.contains("congestion=nosuch"), "{error}");
    }
}
