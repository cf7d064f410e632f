//! Zero-copy completions from a socket's error queue. `unsafe` because no library reads it.

#![allow(unsafe_code)]

use crate::zerocopy_tracker::ZeroCopyCompletion;
use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// Returns the next completion, if any. Discards all other messages in the queue.
pub(crate) fn next(socket: &impl AsFd) -> io::Result<Option<ZeroCopyCompletion>> {
    for _ in 0..MAX_SKIPPED {
        let mut control = [0u64; CONTROL_WORDS];
        // SAFETY: all zeroes is a valid `msghdr`: no name, no data, no control.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the descriptor is open; the kernel writes to `message` and to `control`, whose lengths
        // are set and which outlive the call.
        if unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) } < 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            };
        }
        if let Some(notice) = parse(&message) {
            return Ok(Some(notice));
        }
    }
    Ok(None)
}

/// Parses the completion in a message's control data. The control buffer must still be alive.
fn parse(message: &libc::msghdr) -> Option<ZeroCopyCompletion> {
    // SAFETY: the kernel has filled in `msg_control` and `msg_controllen`, and the buffer lives in the
    // caller.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: a non-null header is entirely in the buffer.
    while let Some(control) = unsafe { header.as_ref() } {
        let kind = (control.cmsg_level, control.cmsg_type);
        // The width of `cmsg_len` depends on the C library.
        #[allow(clippy::unnecessary_cast)]
        let is_long_enough = control.cmsg_len as usize >= ERROR_LEN;
        if (kind == (libc::SOL_IP, libc::IP_RECVERR) || kind == (libc::SOL_IPV6, libc::IPV6_RECVERR))
            && is_long_enough
        {
            // SAFETY: the data of this header is at least one `sock_extended_err` long.
            let error: libc::sock_extended_err =
                unsafe { libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned() };
            if error.ee_origin == ORIGIN_ZEROCOPY && error.ee_errno == 0 {
                let kernel_copied = error.ee_code & CODE_COPIED != 0;
                return Some(ZeroCopyCompletion { first: error.ee_info, last: error.ee_data, kernel_copied });
            }
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

/// Minimum `cmsg_len` of a header with one error.
// SAFETY: it only counts.
const ERROR_LEN: usize = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
/// Space for an error, the address of its sender, and more.
const CONTROL_WORDS: usize = 32;
/// Other messages discarded per call.
const MAX_SKIPPED: usize = 16;
/// `linux/errqueue.h`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;
