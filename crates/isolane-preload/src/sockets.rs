//! Calls of the kernel on sockets of the program.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use libc::{SOL_SOCKET, TCP_NOTSENT_LOWAT};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::real;

/// Whether the engine can take a socket.
pub(crate) enum Adoptable {
    /// It has received and sent so many segments with data.
    Now {
        segments: (u32, u32),
    },
    /// It is not connected yet, or an option is in the way that can change.
    Later,
    Never,
}

/// Borrows a descriptor of the program.
pub(crate) fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: a program that closes the descriptor at the same time gets the error of another call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Returns the identity of a TCP socket, or `None` for another descriptor, and for those of `stdin`, `stdout`, and
/// `stderr`, on which the C library works without calls of this one.
pub(crate) fn tcp_cookie(fd: c_int) -> Option<u64> {
    if fd <= libc::STDERR_FILENO || option::<c_int>(fd, SOL_SOCKET, libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return None;
    }
    option(fd, SOL_SOCKET, libc::SO_COOKIE)
}

/// Checks a socket before its adoption.
pub(crate) fn adoptable(fd: c_int, cookie: u64) -> Adoptable {
    if tcp_cookie(fd) != Some(cookie) {
        return Adoptable::Never;
    }
    let is_set = |(level, name)| option::<c_int>(fd, level, name).is_some_and(|value| value != 0);
    if INHERITED.into_iter().any(is_set) {
        return Adoptable::Never;
    }
    let info: Option<[u32; TCP_INFO_WORDS]> = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    // The first byte of the structure is the state.
    let state = info.map(|info| info[0].to_ne_bytes()[0]);
    let linger: Option<[c_int; 2]> = option(fd, SOL_SOCKET, libc::SO_LINGER);
    let space = send_buffer(fd);
    if state != Some(ESTABLISHED) || linger.is_none_or(|linger| linger[0] != 0) || space < MIN_SEND_BUFFER {
        return Adoptable::Later;
    }
    let segments = info.map_or((0, 0), |info| (info[DATA_SEGS_IN], info[DATA_SEGS_IN + 1]));
    Adoptable::Now { segments }
}

/// Returns `true` if the kernel has data that the program has not read.
pub(crate) fn has_data(fd: c_int) -> bool {
    rustix::io::ioctl_fionread(borrow(fd)).unwrap_or(0) > 0
}

/// Returns the size of the kernel's send buffer in bytes.
pub(crate) fn send_buffer(fd: c_int) -> usize {
    option::<c_int>(fd, SOL_SOCKET, libc::SO_SNDBUF).and_then(|bytes| bytes.try_into().ok()).unwrap_or(0)
}

/// Returns the program's limit of unsent bytes, and sets another.
pub(crate) fn replace_unsent_limit(fd: c_int, limit: c_int) -> c_int {
    let old = option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT).unwrap_or(0);
    set_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit);
    old
}

/// Returns a timeout of the socket in nanoseconds; 0 means none.
pub(crate) fn timeout(fd: c_int, name: c_int) -> u64 {
    let time: Option<[i64; 2]> = option(fd, SOL_SOCKET, name);
    time.map_or(0, |[seconds, microseconds]| {
        (seconds as u64).saturating_mul(1_000_000_000).saturating_add(microseconds as u64 * 1000)
    })
}

/// Returns `true` if the file has O_NONBLOCK, and `None` if it has O_ASYNC.
pub(crate) fn is_nonblocking(fd: c_int) -> Option<bool> {
    // SAFETY: the command has no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    (flags >= 0 && flags & libc::O_ASYNC == 0).then_some(flags & libc::O_NONBLOCK != 0)
}

/// Returns `true` if programs that this process starts have the descriptor.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    // SAFETY: the command has no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags & libc::FD_CLOEXEC == 0
}

/// Returns an option of the socket.
fn option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let status =
        unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast::<c_void>(), &raw mut length) };
    // SAFETY: all bytes are zero or written, and the types used here have no invalid values.
    (status == 0).then(|| unsafe { value.assume_init() })
}

fn set_option<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> bool {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is readable.
    let status = unsafe { real::setsockopt(fd, level, name, (&raw const *value).cast::<c_void>(), length) };
    status == 0
}

/// Sends the tail of a ring after the engine has released the socket. If it does not fit in the kernel's buffer, because
/// the network is down, the buffer is enlarged for it. It waits for the peer only if that does not suffice.
pub(crate) fn send_all(fd: c_int, mut bytes: &[u8]) {
    let mut is_enlarged = false;
    while !bytes.is_empty() {
        match send(borrow(fd), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::AGAIN) if !is_enlarged => {
                is_enlarged = true;
                let Some(locks) = option::<c_int>(fd, SOL_SOCKET, SO_BUF_LOCK) else { continue };
                let old = send_buffer(fd);
                // The kernel doubles a new size, and packets take up to twice that of their bytes.
                let large = (old + 4 * bytes.len()).min(c_int::MAX as usize / 2) as c_int;
                if !set_option(fd, SOL_SOCKET, libc::SO_SNDBUFFORCE, &large) {
                    set_option(fd, SOL_SOCKET, libc::SO_SNDBUF, &large);
                }
                if let Ok(count) = send(borrow(fd), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    bytes = &bytes[count..];
                }
                set_option(fd, SOL_SOCKET, libc::SO_SNDBUF, &((old / 2) as c_int));
                set_option(fd, SOL_SOCKET, SO_BUF_LOCK, &locks);
            }
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(borrow(fd), PollFlags::OUT)], None);
            }
            Err(Errno::INTR) => {}
            // The peer has reset the connection: the program's next call gets the error.
            Err(_) => return,
        }
    }
}

/// Resets a connection whose position is unknown. The descriptor stays open for the program.
pub(crate) fn reset(fd: c_int) {
    let address = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the address is readable. An address without a family ends the connection.
    unsafe { real::connect(fd, &raw const address, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// Returns the time of a `timespec`, or `None` for an invalid one.
pub(crate) fn duration(time: &libc::timespec) -> Option<Duration> {
    let nanoseconds = u32::try_from(time.tv_nsec).ok().filter(|count| *count < 1_000_000_000)?;
    Some(Duration::new(time.tv_sec.try_into().ok()?, nanoseconds))
}

/// Option with which buffers have a size of the program (linux/socket.h).
const SO_BUF_LOCK: c_int = 72;
/// Part of `struct tcp_info` up to `tcpi_data_segs_out` (linux/tcp.h).
const TCP_INFO_WORDS: usize = 40;
const DATA_SEGS_IN: usize = 38;
/// Options for messages about received data, which a connection also has from its listener (linux/tcp.h,
/// asm-generic/socket.h).
const INHERITED: [(c_int, c_int); 7] = [
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (SOL_SOCKET, libc::SO_TIMESTAMPING),
    // The same with 64-bit times.
    (SOL_SOCKET, 63),
    (SOL_SOCKET, 64),
    (SOL_SOCKET, 65),
    (libc::IPPROTO_TCP, TCP_INQ),
];
const TCP_INQ: c_int = 36;
/// State of a connection in the kernel.
const ESTABLISHED: u8 = 1;
/// The ring of an adopted socket is smaller than the send buffer, so that its contents fit.
const MIN_SEND_BUFFER: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn tail_fits_in_a_full_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let fd = near.as_raw_fd();
        assert!(set_option(fd, SOL_SOCKET, libc::SO_SNDBUF, &20_000));
        let locks: c_int = option(fd, SOL_SOCKET, SO_BUF_LOCK).unwrap();
        let size = send_buffer(fd);
        let mut sent = 0;
        while let Ok(count) = send(&near, &[1; 1000], SendFlags::DONTWAIT) {
            sent += count;
        }
        let tail: Vec<u8> = (0..5000).map(|index| index as u8).collect();
        // Nothing reads before it returns.
        send_all(fd, &tail);
        assert_eq!((send_buffer(fd), option(fd, SOL_SOCKET, SO_BUF_LOCK)), (size, Some(locks)));
        drop(near);
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).unwrap();
        assert!(seen[..sent].iter().all(|byte| *byte == 1) && seen[sent..] == tail);
    }

    #[test]
    fn counts_segments_of_adoptable_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let fd = far.as_raw_fd();
        for _ in 0..3 {
            send(&near, b"message", SendFlags::empty()).unwrap();
            far.read_exact(&mut [0; 7]).unwrap();
        }
        send(&far, b"reply", SendFlags::empty()).unwrap();
        let adoptable = adoptable(fd, tcp_cookie(fd).unwrap());
        assert!(matches!(adoptable, Adoptable::Now { segments: (3, 1) }));
    }

    #[test]
    fn standard_descriptors_are_not_of_interest() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(tcp_cookie(listener.as_raw_fd()).is_some());
        assert!((-1..=2).all(|fd| tcp_cookie(fd).is_none()));
    }
}
