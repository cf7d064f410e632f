//! Lengths and system calls of I/O slices, some in memory shared with another process: their bytes
//! are never accessed, and no reference to them is formed.

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::SendFlags;
use std::io::{self, IoSlice, IoSliceMut};

const _: () = assert!(size_of::<IoSlice<'_>>() == size_of::<libc::iovec>());
const _: () = assert!(size_of::<IoSliceMut<'_>>() == size_of::<libc::iovec>());

/// Returns the total length of the slices.
#[inline]
pub fn bytes(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| vector(slice).iov_len).sum()
}

/// Returns the total length of the slices.
#[inline]
pub fn bytes_mut(slices: &[IoSliceMut<'_>]) -> usize {
    slices.iter().map(|slice| vector_mut(slice).iov_len).sum()
}

/// Reads into one slice.
#[inline]
pub(crate) fn read(socket: impl AsFd, slice: &mut IoSliceMut<'_>) -> io::Result<usize> {
    let vector = vector_mut(slice);
    // SAFETY: the slice is borrowed exclusively for its length.
    let count = unsafe { libc::read(socket.as_fd().as_raw_fd(), vector.iov_base, vector.iov_len) };
    check(count)
}

/// Sends one slice.
#[inline]
pub(crate) fn send(socket: impl AsFd, slice: &IoSlice<'_>, flags: SendFlags) -> io::Result<usize> {
    let (vector, flags) = (vector(slice), flags.bits() as i32);
    // SAFETY: the slice is borrowed for its length.
    let count = unsafe { libc::send(socket.as_fd().as_raw_fd(), vector.iov_base, vector.iov_len, flags) };
    check(count)
}

#[inline]
fn check(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[inline]
fn vector(slice: &IoSlice<'_>) -> libc::iovec {
    // SAFETY: an `IoSlice` has the layout of an `iovec`.
    unsafe { std::ptr::from_ref(slice).cast::<libc::iovec>().read() }
}

#[inline]
fn vector_mut(slice: &IoSliceMut<'_>) -> libc::iovec {
    // SAFETY: an `IoSliceMut` has the layout of an `iovec`.
    unsafe { std::ptr::from_ref(slice).cast::<libc::iovec>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn sends_and_reads_one_slice() {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut memory = [0; 8];
        let mut slice = IoSliceMut::new(&mut memory);
        assert_eq!(read(&far, &mut slice).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(&near, &IoSlice::new(b"abcde"), SendFlags::NOSIGNAL).unwrap(), 5);
        assert_eq!(read(&far, &mut slice).unwrap(), 5);
        assert_eq!(&memory[..6], b"abcde\0");
        drop(far);
        assert!(send(&near, &IoSlice::new(b"abcde"), SendFlags::NOSIGNAL).is_err());
        assert_eq!(bytes(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]), 3);
    }
}
