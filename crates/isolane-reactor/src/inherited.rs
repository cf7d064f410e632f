//! Descriptors that a process has inherited from the program that executed it.
//!
//! Invariant: a number is taken once. A descriptor that this program opens itself is closed on execution, and so is one
//! that was taken; an inherited one is not.
#![allow(unsafe_code)]

use std::io;

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes an inherited descriptor, which is closed on execution from now on.
///
/// # Errors
/// If no descriptor with this number was inherited, or it was taken before.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number <= MAX_STANDARD {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the number is only passed to the kernel, which rejects one that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and nothing else owns it: a descriptor of this program has had the flag before,
    // as has one that was taken.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The number of the last descriptor for text of users.
const MAX_STANDARD: RawFd = 2;

#[cfg(test)]
mod tests {
    use rustix::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn takes_inherited_descriptors_once() {
        let file = tempfile::tempfile().unwrap();
        assert!(take(file.as_raw_fd()).is_err(), "this program owns it");
        // A copy without the flag, as after an execution.
        let inherited = rustix::io::dup(&file).unwrap().into_raw_fd();
        let taken = take(inherited).unwrap();
        assert_eq!(taken.as_raw_fd(), inherited);
        assert!(take(inherited).is_err());
        drop(taken);
        assert!(take(inherited).is_err());
        assert!([-1, 0, 2, 1 << 20].iter().all(|number| take(*number).is_err()));
    }
}
