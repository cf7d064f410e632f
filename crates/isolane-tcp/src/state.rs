//! Options, counters, and state of a socket.

use std::io;
use std::os::fd::BorrowedFd;

use isolane_shm::sockopt::{getsockopt, getsockopt_int};
use rustix::io::Errno;

use crate::socket::unacknowledged_bytes;

/// Returns the number of unread bytes from which on the socket is readable.
///
/// # Errors
/// Error of the system call.
pub fn receive_low_water(socket: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(getsockopt_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?)
}

/// Returns `true` if an upper-layer protocol, such as kernel TLS, sits between the socket's calls and TCP.
///
/// # Errors
/// Error of the system call.
pub fn has_ulp(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut name = [0; 16];
    Ok(getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name)? != 0)
}

/// Returns `true` if the kernel queues errors, timestamps, or zero-copy notifications separately; no code here reads
/// that queue.
///
/// # Errors
/// Error of the system call.
pub fn has_error_queue(socket: BorrowedFd<'_>) -> io::Result<bool> {
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ] {
        match getsockopt_int(socket, level, name) {
            Ok(value) if value != 0 => return Ok(true),
            // An option of the other address family fails.
            Ok(_) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Returns the number of received bytes that were not read. The peer's FIN does not count.
///
/// # Errors
/// Error of the system call.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(socket)?)
}

/// The kernel's counters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpCounters {
    /// State of the connection.
    pub state: TcpState,
    /// Bytes ever written to the socket, plus one for each SYN and FIN sent: only differences are meaningful.
    pub written: u64,
    /// Bytes received in sequence, read or not, plus one for the peer's FIN.
    pub received: u64,
}

/// State of a connection, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// ESTABLISHED: both sides can send.
    Established,
    /// CLOSE_WAIT: the peer sent FIN.
    CloseWait,
    /// FIN_WAIT1, FIN_WAIT2, CLOSING, LAST_ACK, TIME_WAIT: this side sent FIN.
    Closing,
    /// CLOSE: the connection has ended, cleanly or not.
    Closed,
    /// SYN_SENT, SYN_RECV, LISTEN: not connected yet.
    Other,
}

/// Returns `true` if the peer acknowledged everything written, or cannot any longer because the connection is closed.
///
/// # Errors
/// Error of the system call.
pub fn all_acked(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(unacknowledged_bytes(socket)? == 0 || TcpInfo::read(socket)?.state == TcpState::Closed)
}

/// Reads the kernel's counters. This takes several calls, which are repeated if an acknowledgment arrived in between.
///
/// # Errors
/// Error of the system call, if `socket` is not a TCP socket; `TimedOut` if acknowledgments kept arriving in between.
pub fn counters(socket: BorrowedFd<'_>) -> io::Result<TcpCounters> {
    let mut before = TcpInfo::read(socket)?;
    for _ in 0..MAX_RETRIES {
        // SIOCOUTQ fails on a listening socket.
        if before.state == TcpState::Other {
            return Ok(TcpCounters { state: TcpState::Other, written: 0, received: 0 });
        }
        let unsent = unacknowledged_bytes(socket)? as u64;
        let after = TcpInfo::read(socket)?;
        // `received` comes from a single call, so it may have changed.
        if (before.state, before.acked) == (after.state, after.acked) {
            let written = after.acked.wrapping_add(unsent);
            return Ok(TcpCounters { state: after.state, written, received: after.received });
        }
        before = after;
    }
    let reason = "the kernel's counters of a connection change faster than they can be read";
    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
}

/// Part of `struct tcp_info`, of which `libc` declares only the beginning.
#[derive(Clone, Copy)]
struct TcpInfo {
    state: TcpState,
    acked: u64,
    received: u64,
}

impl TcpInfo {
    fn read(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let mut bytes = [0u8; TCP_INFO_BYTES];
        if getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)? < TCP_INFO_BYTES {
            let reason = "this kernel does not count the bytes of a connection; streams need Linux 6.9";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let state = match bytes[0] {
            1 => TcpState::Established,
            8 => TcpState::CloseWait,
            4 | 5 | 6 | 9 | 11 => TcpState::Closing,
            7 => TcpState::Closed,
            _ => TcpState::Other,
        };
        Ok(TcpInfo { state, acked: word(ACKED_AT), received: word(RECEIVED_AT) })
    }
}

/// Attempts to read two consistent counters.
const MAX_RETRIES: usize = 64;
/// Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` (`include/uapi/linux/tcp.h`): after 8 bytes, 24 words of 4
/// bytes, and two rates.
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;
const TCP_INFO_BYTES: usize = 136;
