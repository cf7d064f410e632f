//! Calls on a kernel's TCP socket that another process has, too: bytes go between it and a ring.
//!
//! The flags of such a socket belong to all who have it, so that no call here waits for the peer, whatever O_NONBLOCK
//! says ([`Writer::peek_from`] and [`Reader::send_to`] ask for that alone), and none raises SIGPIPE. Calls do wait
//! for the socket's lock, as long as another one is in the middle of a call of its own. What is peeked
//! stays in the kernel until [`discard`]. It is not a stream: who calls what when, and what is published, is
//! the caller's.
//!
//! Invariant: the bytes of a ring are named to the kernel by address, and never by a reference.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use libc::c_int;
use rustix::io::Errno;

use crate::bytes::{Reader, Writer};
use crate::index::Impossible;
use crate::memory::Piece;

/// What a socket had for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// So many bytes, which are in the ring, but not published.
    Bytes(usize),
    /// The ring has no room; the socket was not asked.
    Full,
    /// Nothing now.
    Nothing,
    /// The peer sends nothing more, or the connection is over.
    End,
}

/// What a socket took from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many bytes, which are consumed, but that is not published.
    Bytes(usize),
    /// The ring has nothing; the socket was not asked.
    Empty,
    /// Nothing now: the kernel's buffer is full.
    Blocked,
}

impl Writer {
    /// Copies what the socket has from its peek offset on to all the room there is, `most` bytes at most, and
    /// leaves it in the kernel. The offset ([`set_peek_offset`]) moves on by as much.
    ///
    /// # Errors
    /// [`Impossible`], if the other side of the ring is hostile; inside, the kernel's.
    #[inline]
    pub fn peek_from(
        &mut self,
        socket: BorrowedFd<'_>,
        most: usize,
    ) -> Result<Result<Peeked, Errno>, Impossible> {
        let mut pieces = Pieces::of(self.vacant()?, most);
        let wanted = pieces.len();
        if wanted == 0 {
            return Ok(Ok(Peeked::Full));
        }
        let (mut message, flags) = (pieces.message(), libc::MSG_PEEK | libc::MSG_DONTWAIT);
        // SAFETY: the pieces are mapped as long as `self` is there, and the kernel may write to them: nobody has a
        // reference to shared memory.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        let count = counted(count);
        Ok(match count {
            Ok(0) => Ok(Peeked::End),
            Ok(count) => {
                self.fill(count.min(wanted));
                Ok(Peeked::Bytes(count.min(wanted)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Peeked::Nothing),
            Err(error) => Err(error),
        })
    }
}

impl Reader {
    /// Sends all there is, `most` bytes at most, as far as the socket takes it.
    ///
    /// # Errors
    /// [`Impossible`], if the other side of the ring is hostile; inside, the kernel's.
    #[inline]
    pub fn send_to(
        &mut self,
        socket: BorrowedFd<'_>,
        most: usize,
    ) -> Result<Result<Sent, Errno>, Impossible> {
        let mut pieces = Pieces::of(self.pending()?, most);
        let wanted = pieces.len();
        if wanted == 0 {
            return Ok(Ok(Sent::Empty));
        }
        let (message, flags) = (pieces.message(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the pieces are mapped as long as `self` is there; the kernel copies them, whatever they hold then.
        let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        Ok(match counted(count) {
            Ok(count) => {
                self.consume(count.min(wanted));
                Ok(Sent::Bytes(count.min(wanted)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Sent::Blocked),
            Err(error) => Err(error),
        })
    }
}

/// What the kernel is to copy to or from a part of a ring.
struct Pieces([libc::iovec; 2]);

impl Pieces {
    /// Of these pieces, `most` bytes at most.
    fn of(pieces: [Piece; 2], most: usize) -> Pieces {
        let mut left = most;
        Pieces(pieces.map(|piece| {
            let iov_len = piece.len().min(left);
            left -= iov_len;
            libc::iovec { iov_base: piece.as_ptr().cast(), iov_len }
        }))
    }

    fn len(&self) -> usize {
        self.0[0].iov_len + self.0[1].iov_len
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeroes say that there is nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = 1 + usize::from(self.0[1].iov_len > 0);
        message
    }
}

/// Takes so many bytes out of the socket and looks at none. The peek offset goes back by as much. Returns how
/// many it had, or how many there were before an urgent mark.
///
/// # Errors
/// The kernel's; `WouldBlock` if there is nothing.
pub fn discard(socket: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC the kernel writes nothing, wherever that is.
    let count = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), count, flags) };
    Ok(counted(count)?)
}

/// From how many bytes behind what was taken out on the next peek begins; it moves with each peek. -1: each
/// peek begins with the first byte, and nothing moves.
///
/// # Errors
/// `Unsupported` where TCP has no such offset: before Linux 6.9.
pub fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
    match set_option(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset) {
        Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::INVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel cannot peek into TCP from an offset on: streams through an engine need Linux 6.9",
        )),
        other => Ok(other?),
    }
}

/// Where the next peek begins, as for [`set_peek_offset`].
///
/// # Errors
/// The kernel's.
pub fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut value = [0; size_of::<c_int>()];
    option(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

/// From how many bytes on the kernel says that there is something to read.
///
/// # Errors
/// The kernel's.
pub fn receive_low_water(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut value = [0; size_of::<c_int>()];
    option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

/// Whether something sits between the socket's calls and its TCP, as the kernel's TLS does.
///
/// # Errors
/// The kernel's.
pub fn has_upper_protocol(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut name = [0; 16];
    Ok(option(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name)? != 0)
}

/// Whether errors, or notices of what was sent, are kept in a queue of their own, which nobody empties here.
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
        let mut value = [0; size_of::<c_int>()];
        match option(socket, level, name, &mut value) {
            Ok(_) if c_int::from_ne_bytes(value) != 0 => return Ok(true),
            // Of the other family.
            Ok(_) | Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Bytes received that nobody has taken out. The peer's FIN is none.
///
/// # Errors
/// The kernel's.
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(socket)?)
}

/// What the kernel has counted on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Its state.
    pub state: State,
    /// Bytes that were ever written to it, and one more for each of its SYN and FIN that its peer was sent: only
    /// differences mean anything.
    pub written: u64,
    /// Bytes that its peer sent in order, taken out or not, and one for its FIN.
    pub received: u64,
}

/// The state of a connection, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// ESTABLISHED: both may send.
    Established,
    /// CLOSE_WAIT: the peer has said that it sends nothing more.
    CloseWait,
    /// FIN_WAIT1, FIN_WAIT2, CLOSING, LAST_ACK, TIME_WAIT: we have said that.
    Shut,
    /// CLOSE: it is over, in order or not.
    Closed,
    /// SYN_SENT, SYN_RECV, LISTEN: it is no connection yet.
    Other,
}

/// Whether the peer has acknowledged all that was written, or never will, for the connection is over.
///
/// # Errors
/// The kernel's.
pub fn is_acknowledged(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(unacknowledged(socket)? == 0 || Information::of(socket)?.state == State::Closed)
}

/// What the kernel has counted. It takes two calls, so that it looks again if something was acknowledged
/// between them.
///
/// # Errors
/// The kernel's, for what is no TCP socket. `TimedOut` if acknowledgements came between them again and again.
pub fn counters(socket: BorrowedFd<'_>) -> io::Result<Counters> {
    let mut before = Information::of(socket)?;
    for _ in 0..LOOKS_MAX {
        // One that listens has no such number.
        if before.state == State::Other {
            return Ok(Counters { state: State::Other, written: 0, received: 0 });
        }
        let unsent = unacknowledged(socket)?;
        let after = Information::of(socket)?;
        // What was received comes from one call, so that it may change meanwhile.
        if (before.state, before.acked) == (after.state, after.acked) {
            let written = after.acked.wrapping_add(unsent);
            return Ok(Counters { state: after.state, written, received: after.received });
        }
        before = after;
    }
    let told = "the kernel's counters of a connection change faster than they can be read";
    Err(io::Error::new(io::ErrorKind::TimedOut, told))
}

/// The part of `struct tcp_info` that matters here. libc knows only its beginning.
#[derive(Clone, Copy)]
struct Information {
    state: State,
    acked: u64,
    received: u64,
}

impl Information {
    fn of(socket: BorrowedFd<'_>) -> io::Result<Information> {
        let mut bytes = [0u8; INFORMATION_BYTES];
        if option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)? < INFORMATION_BYTES {
            let told = "this kernel does not count the bytes of a connection: streams need Linux 6.9";
            return Err(io::Error::new(io::ErrorKind::Unsupported, told));
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let state = match bytes[0] {
            1 => State::Established,
            8 => State::CloseWait,
            4 | 5 | 6 | 9 | 11 => State::Shut,
            7 => State::Closed,
            _ => State::Other,
        };
        Ok(Information { state, acked: word(ACKED_AT), received: word(RECEIVED_AT) })
    }
}

/// Bytes that were written and that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// The kernel's.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut count: c_int = 0;
    // SAFETY: the call writes one integer to where it is told.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    counted(outcome as isize)?;
    Ok(u64::from(count.unsigned_abs()))
}

/// Returns how many bytes the option has.
fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut [u8]) -> Result<usize, Errno> {
    let mut length = value.len() as libc::socklen_t;
    let target = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes no more than `length` bytes there.
    let outcome =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, target, &raw mut length) };
    counted(outcome as isize)?;
    Ok(length as usize)
}

fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one integer there.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    counted(outcome as isize).map(drop)
}

/// What a call returned, or why it failed.
fn counted(outcome: isize) -> Result<usize, Errno> {
    usize::try_from(outcome).map_err(|_| {
        let error = io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Looks at two counters that belong together.
const LOOKS_MAX: usize = 64;
/// Where `tcpi_bytes_acked` and `tcpi_bytes_received` are (`include/uapi/linux/tcp.h`): behind 8 bytes, 24
/// words of 4 bytes, and two rates.
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;
const INFORMATION_BYTES: usize = 136;

// Miri has no such sockets.
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
