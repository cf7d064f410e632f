//! Transfers between a socket and a ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use isolane_shm::bytes::{Reader, Writer};
use isolane_shm::sockopt::{cvt, getsockopt_int, setsockopt};
use isolane_shm::{InvalidIndex, RawSlice};
use rustix::io::Errno;

/// Result of [`peek_into`].
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

/// Result of [`send_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// Number of bytes consumed from the ring, not yet published.
    Bytes(usize),
    /// The ring is empty; nothing was sent.
    Empty,
    /// The socket's send buffer is full.
    WouldBlock,
}

/// Copies up to `max` bytes from the socket's peek offset into the ring and leaves them in the kernel. Advances the
/// offset ([`set_peek_offset`]) accordingly.
///
/// # Errors
/// [`InvalidIndex`]; in the inner result, the error of the system call.
#[inline]
pub fn peek_into(
    ring: &mut Writer,
    socket: BorrowedFd<'_>,
    max: usize,
) -> Result<Result<PeekResult, Errno>, InvalidIndex> {
    let mut iovecs = IoVecs::new(ring.spare_slices()?, max);
    let len = iovecs.len();
    if len == 0 {
        return Ok(Ok(PeekResult::Full));
    }
    let (mut message, flags) = (iovecs.message(), libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: `ring` holds the mapping; the kernel may write to it, because no references to its bytes exist.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    Ok(match cvt(result) {
        Ok(0) => Ok(PeekResult::End),
        Ok(count) => {
            ring.advance(count.min(len));
            Ok(PeekResult::Bytes(count.min(len)))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(PeekResult::WouldBlock),
        Err(error) => Err(error),
    })
}

/// Sends up to `max` bytes of the ring, as far as the socket accepts them.
///
/// # Errors
/// [`InvalidIndex`]; in the inner result, the error of the system call.
#[inline]
pub fn send_from(
    ring: &mut Reader,
    socket: BorrowedFd<'_>,
    max: usize,
) -> Result<Result<SendResult, Errno>, InvalidIndex> {
    let mut iovecs = IoVecs::new(ring.pending()?, max);
    let len = iovecs.len();
    if len == 0 {
        return Ok(Ok(SendResult::Empty));
    }
    let (message, flags) = (iovecs.message(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: `ring` holds the mapping; the kernel copies the bytes, whatever they are by then.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    Ok(match cvt(result) {
        Ok(count) => {
            ring.consume(count.min(len));
            Ok(SendResult::Bytes(count.min(len)))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(SendResult::WouldBlock),
        Err(error) => Err(error),
    })
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
        message.msg_iovlen = if self.0[1].iov_len > 0 { 2 } else { 1 };
        message
    }
}

/// Discards up to `count` received bytes, and lowers the peek offset accordingly. Returns the number of bytes
/// discarded: fewer if the socket has fewer, or up to an urgent mark.
///
/// # Errors
/// Error of the system call; `WouldBlock` if the socket has no data.
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
/// Error of the system call.
pub fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(getsockopt_int(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF)?)
}
