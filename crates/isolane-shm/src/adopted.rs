//! System calls on a TCP socket that another process also holds: they move bytes between it and a ring.
//!
//! The file flags of such a socket belong to every process that holds it. No call here waits for the peer, whatever
//! `O_NONBLOCK` is set to ([`Writer::peek_from`] and [`Reader::send_to`] pass `MSG_DONTWAIT`), and none raises SIGPIPE.
//! Calls do wait for the socket's lock while another process is inside a call. Peeked data stays in the kernel until
//! [`discard`]. The caller decides about the order of calls and about publishing.
//!
//! Invariant: the bytes of a ring are passed to the kernel by address, never by reference.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::c_int;
use rustix::io::Errno;

use crate::bytes::{Reader, Writer};
use crate::index::InvalidIndex;
use crate::memory::RawSlice;
use crate::sockopt::{cvt, getsockopt, getsockopt_int, setsockopt};

/// Result of [`Writer::peek_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekResult {
    /// Number of bytes written to the ring, not yet published.
    Bytes(usize),
    /// The ring is full; the socket was not read.
    Full,
    /// The socket has no data now.
    WouldBlock,
    /// The peer sent FIN, or the connection is closed.
    End,
}

/// Result of [`Reader::send_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// Number of bytes consumed from the ring, not yet published.
    Bytes(usize),
    /// The ring is empty; nothing was sent.
    Empty,
    /// The socket's send buffer is full.
    WouldBlock,
}

impl Writer {
    /// Copies up to `max` bytes from the socket's peek offset into the ring and leaves them in the kernel. Advances the
    /// offset ([`set_peek_offset`]) accordingly.
    ///
    /// # Errors
    /// [`InvalidIndex`]; inside, the kernel's.
    #[inline]
    pub fn peek_from(
        &mut self,
        socket: BorrowedFd<'_>,
        max: usize,
    ) -> Result<Result<PeekResult, Errno>, InvalidIndex> {
        let mut iovecs = IoVecs::new(self.spare_slices()?, max);
        let len = iovecs.len();
        if len == 0 {
            return Ok(Ok(PeekResult::Full));
        }
        let (mut message, flags) = (iovecs.message(), libc::MSG_PEEK | libc::MSG_DONTWAIT);
        // SAFETY: `self` holds the mapping; the kernel may write to it, because no references to its bytes exist.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        Ok(match cvt(result) {
            Ok(0) => Ok(PeekResult::End),
            Ok(count) => {
                self.advance(count.min(len));
                Ok(PeekResult::Bytes(count.min(len)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(PeekResult::WouldBlock),
            Err(error) => Err(error),
        })
    }
}

impl Reader {
    /// Sends up to `max` bytes of the ring, as far as the socket accepts them.
    ///
    /// # Errors
    /// [`InvalidIndex`]; inside, the kernel's.
    #[inline]
    pub fn send_to(
        &mut self,
        socket: BorrowedFd<'_>,
        max: usize,
    ) -> Result<Result<SendResult, Errno>, InvalidIndex> {
        let mut iovecs = IoVecs::new(self.pending()?, max);
        let len = iovecs.len();
        if len == 0 {
            return Ok(Ok(SendResult::Empty));
        }
        let (message, flags) = (iovecs.message(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: `self` holds the mapping; the kernel copies the bytes, whatever they are by then.
        let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        Ok(match cvt(result) {
            Ok(count) => {
                self.consume(count.min(len));
                Ok(SendResult::Bytes(count.min(len)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(SendResult::WouldBlock),
            Err(error) => Err(error),
        })
    }
}

/// Scatter-gather list of a part of a ring.
struct IoVecs([libc::iovec; 2]);

impl IoVecs {
    /// Covers the first `max` bytes of `slices`.
    fn new(slices: [RawSlice; 2], max: usize) -> IoVecs {
        let mut remaining = max;
        IoVecs(slices.map(|slice| {
            let iov_len = slice.len().min(remaining);
            remaining -= iov_len;
            libc::iovec { iov_base: slice.as_ptr().cast(), iov_len }
        }))
    }

    fn len(&self) -> usize {
        self.0[0].iov_len + self.0[1].iov_len
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeroes is a valid, empty value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = 1 + usize::from(self.0[1].iov_len > 0);
        message
    }
}

/// Discards up to `count` received bytes, and lowers the peek offset accordingly. Returns the number of bytes
/// discarded: fewer if the socket has fewer, or up to an urgent mark.
///
/// # Errors
/// The kernel's; `WouldBlock` if the socket has none.
pub fn discard(socket: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC the kernel writes nothing, whatever the address.
    let result = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), count, flags) };
    Ok(cvt(result)?)
}

/// Sets the offset of the next peek in the unread bytes; each peek advances it. With -1, each peek starts at the first
/// unread byte.
///
/// # Errors
/// `Unsupported` before Linux 6.9, where TCP has no peek offset.
pub fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
    match setsockopt(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset) {
        Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::INVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no peek offset for TCP; streams through an engine need Linux 6.9",
        )),
        other => Ok(other?),
    }
}

/// Returns the offset of the next peek, as for [`set_peek_offset`].
///
/// # Errors
/// The kernel's.
pub fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(getsockopt_int(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF)?)
}

/// Returns the number of unread bytes from which on the socket is readable.
///
/// # Errors
/// The kernel's.
pub fn receive_low_water(socket: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(getsockopt_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?)
}

/// Returns `true` if an upper-layer protocol, such as kernel TLS, sits between the socket's calls and TCP.
///
/// # Errors
/// The kernel's.
pub fn has_ulp(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut name = [0; 16];
    Ok(getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name)? != 0)
}

/// Returns `true` if the kernel queues errors, timestamps, or zero-copy notifications separately; no code here reads
/// that queue.
///
/// # Errors
/// The kernel's.
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
/// The kernel's.
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
/// The kernel's.
pub fn all_acked(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(unacknowledged(socket)? == 0 || TcpInfo::read(socket)?.state == TcpState::Closed)
}

/// Reads the kernel's counters. This takes several calls, which are repeated if an acknowledgment arrived in between.
///
/// # Errors
/// The kernel's, if `socket` is not a TCP socket; `TimedOut` if acknowledgments kept arriving in between.
pub fn counters(socket: BorrowedFd<'_>) -> io::Result<TcpCounters> {
    let mut before = TcpInfo::read(socket)?;
    for _ in 0..MAX_RETRIES {
        // SIOCOUTQ fails on a listening socket.
        if before.state == TcpState::Other {
            return Ok(TcpCounters { state: TcpState::Other, written: 0, received: 0 });
        }
        let unsent = unacknowledged(socket)?;
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

/// Returns the bytes written that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// The kernel's.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut count: c_int = 0;
    // SAFETY: the call writes one integer to `count`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    cvt(result as isize)?;
    Ok(u64::from(count.unsigned_abs()))
}

/// Attempts to read two consistent counters.
const MAX_RETRIES: usize = 64;
/// Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` (`include/uapi/linux/tcp.h`): after 8 bytes, 24 words of 4
/// bytes, and two rates.
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;
const TCP_INFO_BYTES: usize = 136;

// Not supported by Miri.
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
