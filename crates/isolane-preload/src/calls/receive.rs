//! Receiving.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use libc::{
    MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, iovec, mmsghdr, msghdr, sockaddr,
    socklen_t, timespec,
};

use super::{buffers, exported, finish, kernel, single, transfer, value, vector};
use crate::adopted::{Adopted, Outcome, Receive};
use crate::stats::Reason;
use crate::table::{self, Slot};

/// Receives through the engine. `None`: the caller calls the kernel.
#[inline]
fn receive(slot: &'static Slot, fd: c_int, parts: Option<&[iovec]>, flags: c_int) -> Option<isize> {
    // Buffers are often larger than the messages, so that their length says nothing about these.
    transfer(slot, fd, 1, |adopted| attempt(adopted, parts, flags)).map(value)
}

#[inline(never)]
fn attempt(adopted: &Adopted, parts: Option<&[iovec]>, flags: c_int) -> Outcome {
    let parts = parts.and_then(buffers).filter(|_| flags & !KNOWN == 0 && flags & PEEK_ALL != PEEK_ALL);
    let Some(parts) = parts else { return Outcome::Unknown };
    let how = Receive {
        dontwait: flags & MSG_DONTWAIT != 0,
        peek: flags & MSG_PEEK != 0,
        wait_all: flags & MSG_WAITALL != 0,
    };
    // SAFETY: the program passes buffers of these lengths.
    let parts = parts.iter().map(|(start, length)| unsafe { slice::from_raw_parts_mut(*start, *length) });
    adopted.receive(&mut parts.collect::<Vec<_>>(), how)
}

/// Receives through the engine, or by the call of the kernel. Separate, so that other descriptors save no registers.
#[inline(never)]
fn receive_or(
    slot: &'static Slot,
    fd: c_int,
    parts: Option<&[iovec]>,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    match receive(slot, fd, parts, flags) {
        Some(result) => result,
        None => finish(slot, call()),
    }
}

exported! {
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
        let Some(slot) = table::socket(fd) else { return kernel!(read(fd, buffer, count)) };
        receive_or(slot, fd, Some(&single(buffer, count)), 0, || kernel!(read(fd, buffer, count)))
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, count: usize, size: usize) -> isize {
        check(count, size);
        // SAFETY: as for `read`.
        unsafe { read(fd, buffer, count) }
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize {
        let Some(slot) = table::socket(fd) else { return kernel!(readv(fd, parts, count)) };
        receive_or(slot, fd, vector(parts, count as usize), 0, || kernel!(readv(fd, parts, count)))
    }

    fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize {
        let Some(slot) = table::socket(fd) else { return kernel!(recv(fd, buffer, count, flags)) };
        receive_or(slot, fd, Some(&single(buffer, count)), flags, || kernel!(recv(fd, buffer, count, flags)))
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: usize, size: usize, flags: c_int) -> isize {
        check(count, size);
        // SAFETY: as for `recv`.
        unsafe { recv(fd, buffer, count, flags) }
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        count: usize,
        flags: c_int,
        from: *mut sockaddr,
        length: *mut socklen_t,
    ) -> isize {
        let Some(slot) = table::socket(fd) else {
            return kernel!(recvfrom(fd, buffer, count, flags, from, length));
        };
        match receive(slot, fd, Some(&single(buffer, count)), flags) {
            Some(result) => {
                if result >= 0 && !from.is_null() && !length.is_null() {
                    // SAFETY: the program passes both or none. A connection has no address here.
                    unsafe { length.write(0) };
                }
                result
            }
            None => finish(slot, kernel!(recvfrom(fd, buffer, count, flags, from, length))),
        }
    }

    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        count: usize,
        size: usize,
        flags: c_int,
        from: *mut sockaddr,
        length: *mut socklen_t,
    ) -> isize {
        check(count, size);
        // SAFETY: as for `recvfrom`.
        unsafe { recvfrom(fd, buffer, count, flags, from, length) }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
        let Some(slot) = table::socket(fd).filter(|_| !message.is_null()) else {
            return kernel!(recvmsg(fd, message, flags));
        };
        // SAFETY: the program passes a valid message.
        let header = unsafe { &mut *message };
        match receive(slot, fd, vector(header.msg_iov, header.msg_iovlen), flags) {
            Some(result) => {
                if result >= 0 {
                    (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
                }
                result
            }
            None => finish(slot, kernel!(recvmsg(fd, message, flags))),
        }
    }

    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int {
        table::release(fd, Reason::Call, table::PINNED);
        kernel!(recvmmsg(fd, messages, count, flags, timeout))
    }
}

/// Ends a program whose buffer is shorter than it says, as the C library does.
fn check(count: usize, size: usize) {
    if count > size {
        std::process::abort();
    }
}

const KNOWN: c_int = MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;
const PEEK_ALL: c_int = MSG_PEEK | MSG_WAITALL;
