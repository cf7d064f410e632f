//! Pieces of memory for the kernel, of which some may be shared with another process: what they hold is never
//! looked at, and no reference to it is formed.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::SendFlags;
use std::io::{self, IoSlice, IoSliceMut};

const _: () = assert!(size_of::<IoSlice<'_>>() == size_of::<libc::iovec>());
const _: () = assert!(size_of::<IoSliceMut<'_>>() == size_of::<libc::iovec>());

/// Bytes of all pieces.
pub(crate) fn bytes(pieces: &[IoSlice<'_>]) -> usize {
    pieces.iter().map(|piece| vector(piece).iov_len).sum()
}

/// Bytes of all pieces.
pub(crate) fn bytes_mut(pieces: &[IoSliceMut<'_>]) -> usize {
    pieces.iter().map(|piece| vector_mut(piece).iov_len).sum()
}

/// Reads into one piece.
pub(crate) fn read(socket: impl AsFd, piece: &mut IoSliceMut<'_>) -> io::Result<usize> {
    let vector = vector_mut(piece);
    // SAFETY: the piece is borrowed exclusively, and as long as it says.
    let count = unsafe { libc::read(socket.as_fd().as_raw_fd(), vector.iov_base, vector.iov_len) };
    outcome(count)
}

/// Sends one piece.
pub(crate) fn send(socket: impl AsFd, piece: &IoSlice<'_>, flags: SendFlags) -> io::Result<usize> {
    let (vector, flags) = (vector(piece), flags.bits() as i32);
    // SAFETY: the piece is borrowed, and as long as it says.
    let count = unsafe { libc::send(socket.as_fd().as_raw_fd(), vector.iov_base, vector.iov_len, flags) };
    outcome(count)
}

fn outcome(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

fn vector(piece: &IoSlice<'_>) -> libc::iovec {
    // SAFETY: an `IoSlice` has the layout of an `iovec`.
    unsafe { std::ptr::from_ref(piece).cast::<libc::iovec>().read() }
}

fn vector_mut(piece: &IoSliceMut<'_>) -> libc::iovec {
    // SAFETY: an `IoSliceMut` has the layout of an `iovec`.
    unsafe { std::ptr::from_ref(piece).cast::<libc::iovec>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_piece_goes_through_as_it_is() {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut memory = [0; 8];
        let mut piece = IoSliceMut::new(&mut memory);
        assert_eq!(read(&far, &mut piece).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(&near, &IoSlice::new(b"abcde"), SendFlags::NOSIGNAL).unwrap(), 5);
        assert_eq!(read(&far, &mut piece).unwrap(), 5);
        assert_eq!(&memory[..6], b"abcde\0");
        drop(far);
        assert!(send(&near, &IoSlice::new(b"abcde"), SendFlags::NOSIGNAL).is_err());
        assert_eq!(bytes(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]), 3);
    }
}
