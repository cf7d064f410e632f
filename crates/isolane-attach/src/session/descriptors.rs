//! Numbers of a session's descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Returns a duplicate whose number is at least `first`.
///
/// # Errors
/// The system's, for example if `first` exceeds the limit of this process.
pub(super) fn duplicate(descriptor: BorrowedFd<'_>, first: u32) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(descriptor, first.try_into().unwrap_or(i32::MAX))?)
}

/// Gives a descriptor a number of at least `first`.
///
/// # Errors
/// As [`duplicate`].
pub(super) fn renumber(descriptor: OwnedFd, first: u32) -> io::Result<OwnedFd> {
    if first == 0 { Ok(descriptor) } else { duplicate(descriptor.as_fd(), first) }
}

pub(super) const DUPLICATE: &str = "cannot duplicate a descriptor";
