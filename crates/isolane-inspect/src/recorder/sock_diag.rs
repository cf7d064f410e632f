//! State of single TCP sockets, by their addresses: netlink sock_diag.
//!
//! A request names one socket, so the kernel visits no other socket of the system.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use isolane_observe::snapshot::Tcp;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// `INET_DIAG_INFO` of linux/inet_diag.h.
const INET_DIAG_INFO: u16 = 2;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Header and `inet_diag_msg`, before the attributes.
const MESSAGE_BYTES: usize = HEADER_BYTES + 72;
/// Offset of the port of the peer in a response.
const PEER_PORT: usize = HEADER_BYTES + 6;
const TIMEOUT: Duration = Duration::from_millis(200);

/// Socket for requests.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

impl SockDiag {
    /// Opens the socket.
    ///
    /// # Errors
    /// The error of the system, as in a service that may not use AF_NETLINK.
    pub fn open() -> io::Result<SockDiag> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(SockDiag { socket, sequence: 0 })
    }

    /// Returns the state of the socket with these addresses, or `None` if there is no such socket.
    ///
    /// # Errors
    /// The error of the system.
    pub fn tcp_info(&mut self, local: SocketAddr, peer: SocketAddr) -> io::Result<Option<Tcp>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = encode(local, peer, self.sequence);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut response = [0; 4096];
        loop {
            let (len, _) = recv(&self.socket, &mut response[..], RecvFlags::empty())?;
            let response = &response[..len.min(4096)];
            // A response to an earlier request can arrive late.
            if number(response, 8, u32::from_ne_bytes) == Some(self.sequence) {
                // Without such a connection, the kernel returns the listener of the local address.
                let port = number(response, PEER_PORT, u16::from_be_bytes);
                return Ok(decode(response).filter(|_| port == Some(peer.port())));
            }
        }
    }
}

/// `nlmsghdr` and `inet_diag_req_v2`.
fn encode(local: SocketAddr, peer: SocketAddr, sequence: u32) -> [u8; REQUEST_BYTES] {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    put(HEADER_BYTES, &[family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    // Sockets in any state, with any cookie.
    put(HEADER_BYTES + 4, &u32::MAX.to_ne_bytes());
    let id = HEADER_BYTES + 8;
    put(id, &local.port().to_be_bytes());
    put(id + 2, &peer.port().to_be_bytes());
    put(id + 4, address(&local.ip()).as_slice());
    put(id + 20, address(&peer.ip()).as_slice());
    let interface = if let SocketAddr::V6(local) = local { local.scope_id() } else { 0 };
    put(id + 36, &interface.to_ne_bytes());
    put(id + 40, &u64::MAX.to_ne_bytes());
    bytes
}

fn address(ip: &IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns the state in a response. Errors, and responses without a state, have none.
fn decode(response: &[u8]) -> Option<Tcp> {
    if number(response, 4, u16::from_ne_bytes)? != BY_FAMILY {
        return None;
    }
    let mut attributes = response.get(MESSAGE_BYTES..)?;
    loop {
        let len = usize::from(number(attributes, 0, u16::from_ne_bytes)?);
        if number(attributes, 2, u16::from_ne_bytes)? == INET_DIAG_INFO {
            return decode_info(attributes.get(4..len)?);
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// Fields of `tcp_info` of linux/tcp.h. Old kernels lack the last ones.
fn decode_info(info: &[u8]) -> Option<Tcp> {
    let short = |at| number(info, at, u32::from_ne_bytes).map(u64::from);
    let long = |at| number(info, at, u64::from_ne_bytes).unwrap_or(0);
    Some(Tcp {
        busy_us: long(168),
        rwnd_limited_us: long(176),
        sndbuf_limited_us: long(184),
        retransmits: short(100)?,
        segments: short(136).unwrap_or(0),
        rtt_us: short(68)?,
        min_rtt_us: short(148).unwrap_or(0),
        unsent_bytes: short(144).unwrap_or(0),
        cwnd: short(80)?,
        mss: short(16)?,
    })
}

fn number<T, const N: usize>(bytes: &[u8], at: usize, convert: fn([u8; N]) -> T) -> Option<T> {
    Some(convert(bytes.get(at..at + N)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns the state of a connection over which 100,000 bytes went.
    fn state_of(address: &str) -> Tcp {
        use std::io::{Read, Write};
        let listener = TcpListener::bind(address).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || client.read_exact(&mut [0; 100_000]).map(|()| client));
        server.write_all(&[0; 100_000]).unwrap();
        let _client = reader.join().unwrap().unwrap();
        let mut diag = SockDiag::open().unwrap();
        let other = SocketAddr::new(peer.ip(), 1);
        assert_eq!(diag.tcp_info(server.local_addr().unwrap(), other).unwrap(), None);
        diag.tcp_info(server.local_addr().unwrap(), peer).unwrap().expect("the socket")
    }

    #[test]
    fn finds_a_socket_by_its_addresses() {
        let tcp = state_of("127.0.0.1:0");
        assert!(tcp.segments > 1 && tcp.mss > 500 && tcp.cwnd > 0 && tcp.rtt_us > 0, "{tcp:?}");
        if TcpListener::bind("[::1]:0").is_ok() {
            assert!(state_of("[::1]:0").mss > 500);
        }
    }

    #[test]
    fn short_responses_have_no_state() {
        let mut response = [0_u8; MESSAGE_BYTES + 4 + 192];
        response[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        response[MESSAGE_BYTES..][..2].copy_from_slice(&196_u16.to_ne_bytes());
        response[MESSAGE_BYTES + 2..][..2].copy_from_slice(&INET_DIAG_INFO.to_ne_bytes());
        assert_eq!(decode(&response), Some(Tcp::default()));
        for len in 0..response.len() {
            assert_eq!(decode(&response[..len]), None, "{len}");
        }
        // Another attribute of length 0 cannot repeat forever.
        response[MESSAGE_BYTES..][..4].fill(0);
        assert_eq!(decode(&response), None);
    }
}
