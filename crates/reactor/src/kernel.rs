//! Requests to the kernel that no library wraps: two for block devices, and locks of open file descriptions. The only `unsafe`
//! besides the ring's.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;

/// Tells a block device that a range is not needed. What it reads as afterwards is anybody's guess.
pub(crate) fn discard(device: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers, start and length in bytes, and writes nothing here.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Makes a range of a block device read as zeroes.
pub(crate) fn zero(device: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two 64-bit numbers, start and length in bytes, and writes nothing here.
    let request = unsafe { Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len]) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Locks a whole file for its open file description. False if somebody else has it.
pub(crate) fn lock(file: &File, is_exclusive: bool) -> io::Result<bool> {
    // SAFETY: all zeroes is a valid `flock`: the whole file, from its start, no process.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = (if is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK }) as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and the request outlives the call, which reads it only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

/// `linux/fs.h`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_block_device_says_so() {
        let file = tempfile::tempfile().expect("a file");
        for answer in [discard(&file, 0, 4096), zero(&file, 0, 4096)] {
            assert_eq!(answer.expect_err("refused").raw_os_error(), Some(25), "ENOTTY");
        }
    }
}
