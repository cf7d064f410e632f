//! System calls without a library wrapper: block device requests, open file description locks, and
//! some socket options.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;

/// Discards a range of a block device. The range may read as anything afterwards.
pub(crate) fn discard(device: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers, start and length in bytes, and writes nothing here.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Zeroes a range of a block device.
pub(crate) fn zero(device: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two 64-bit numbers, start and length in bytes, and writes nothing here.
    let request = unsafe { Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len]) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Locks the whole file for this open file description until it is closed (`F_OFD_SETLK`). Returns
/// `false` if another lock conflicts. An exclusive lock needs a file open for writing, a shared
/// lock one open for reading.
///
/// # Errors
/// The error of the system call.
pub fn lock(file: &File, exclusive: bool) -> io::Result<bool> {
    match set_lock(file, if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the lock of this open file description, also if a child of `fork` has the descriptor.
///
/// # Errors
/// The error of the system call.
pub fn unlock(file: &File) -> io::Result<()> {
    set_lock(file, libc::F_UNLCK)
}

fn set_lock(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `flock`: the whole file, from its start, no process.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and the request outlives the call, which reads it only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the bytes queued in the kernel and never sent (`SIOCOUTQNSD`).
///
/// # Errors
/// The error of the system call.
pub fn unsent_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQNSD writes one `c_int` and reads nothing.
    let request = unsafe { Getter::<SIOCOUTQNSD, libc::c_int>::new() };
    // SAFETY: as above.
    let count = unsafe { ioctl(socket, request) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns the bytes queued in the kernel that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// The error of the system call.
pub fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ writes one `c_int` and reads nothing.
    let request = unsafe { Getter::<{ libc::TIOCOUTQ as Opcode }, libc::c_int>::new() };
    // SAFETY: as above.
    let count = unsafe { ioctl(socket, request) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Whether busy polling is preferred.
pub(crate) fn prefer_busy_poll(socket: &impl AsFd) -> io::Result<bool> {
    getsockopt(socket, libc::SO_PREFER_BUSY_POLL).map(|value| value != 0)
}

/// Whether automatic tuning is disabled.
#[cfg(test)]
pub(crate) fn is_buffer_size_locked(socket: &impl AsFd) -> io::Result<bool> {
    getsockopt(socket, libc::SO_BUF_LOCK).map(|locks| locks != 0)
}

/// Sets a socket option with an integer value.
pub(crate) fn set_socket_option(socket: &impl AsFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (descriptor, len) = (socket.as_fd().as_raw_fd(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and the kernel reads one `c_int`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn getsockopt(socket: &impl AsFd, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to `value`, and the length to
    // `len`.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// `linux/fs.h`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);
/// `linux/sockios.h`.
const SIOCOUTQNSD: Opcode = 0x894b;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discard_and_zero_reject_regular_files() {
        let file = tempfile::tempfile().expect("a file");
        for result in [discard(&file, 0, 4096), zero(&file, 0, 4096)] {
            assert_eq!(result.expect_err("refused").raw_os_error(), Some(25), "ENOTTY");
        }
    }
}
