//! System calls without a library wrapper: block device requests and open file description locks.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
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

/// `linux/fs.h`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);

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
