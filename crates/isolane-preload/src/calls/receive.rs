//! Receiving.

use std::ffi::{c_int, c_uint, c_void};

use libc::{
    EINVAL, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, iovec, mmsghdr, msghdr,
    sockaddr, socklen_t, timespec,
};

use super::{Transfer, exported, fail, finish, kernel, single, transfer, transfers, value, vector};
use crate::adopted::{Adopted, Outcome, Receive};
use crate::buffers::{self, Buffers};
use crate::stats::{self, Reason};
use crate::table::{self, Slot};

/// Receives through the engine, as long as it has the socket. `Err`: the caller calls the kernel, then [`finish`].
#[inline(never)]
fn receive(slot: &'static Slot, fd: c_int, parts: Option<&[iovec]>, flags: c_int) -> Result<isize, ()> {
    // Buffers are often larger than the messages, so that their length says nothing about these.
    match transfer(slot, fd, 1, |adopted, done| attempt(adopted, parts, flags, done)) {
        Transfer::Done(result) => Ok(value(result)),
        Transfer::Kernel { done: 0 } => Err(()),
        Transfer::Kernel { done } => Ok(finish(slot, receive_rest(fd, parts, flags, done))),
    }
}

#[inline(never)]
fn attempt(adopted: &Adopted, parts: Option<&[iovec]>, flags: c_int, done: &mut usize) -> Outcome {
    let how = Receive {
        dontwait: flags & MSG_DONTWAIT != 0,
        peek: flags & MSG_PEEK != 0,
        wait_all: flags & MSG_WAITALL != 0,
    };
    match parts.and_then(Buffers::new).filter(|_| flags & !KNOWN == 0 && flags & PEEK_ALL != PEEK_ALL) {
        Some(buffers) => adopted.receive(buffers, how, done),
        None => Outcome::Unknown,
    }
}

/// Receives by the kernel after the first `done` bytes, which the engine had: the call waits for all. Returns the number
/// of all bytes that are received.
#[cold]
fn receive_rest(fd: c_int, parts: Option<&[iovec]>, flags: c_int, mut done: usize) -> isize {
    let Some(buffers) = parts.and_then(Buffers::new) else { return done as isize };
    for (start, length) in buffers.after(done) {
        let count = kernel!(recv(fd, start.cast(), length, flags));
        done += count.max(0) as usize;
        if count != length as isize {
            break;
        }
    }
    done as isize
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
        Ok(result) => result,
        Err(()) => finish(slot, call()),
    }
}

/// Receives into one buffer by [`receive_or`], or directly if data is available.
#[inline(never)]
fn receive_single_or(
    slot: &'static Slot,
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    if (1..=MAX_COUNT).contains(&count) && !buffer.is_null() && flags & !SIMPLE == 0 {
        let received = slot.transfer(1, |adopted| adopted.try_receive(buffer.cast(), count));
        if let Some(received) = received {
            stats::through_engine(received);
            return received as isize;
        }
    }
    receive_or(slot, fd, Some(&single(buffer, count)), flags, call)
}

transfers! {
    fn read = __read(fd: c_int, buffer: *mut c_void, count: usize), 1, |slot| {
        // Without space, the kernel does not look at the socket.
        if count == 0 {
            return kernel!(read(fd, buffer, count));
        }
        receive_single_or(slot, fd, buffer, count, 0, || kernel!(read(fd, buffer, count)))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int), 1, |slot| {
        let vector = vector(parts, count as usize);
        if vector.is_some_and(|parts| buffers::total(parts) == 0) {
            return kernel!(readv(fd, parts, count));
        }
        receive_or(slot, fd, vector, 0, || kernel!(readv(fd, parts, count)))
    }

    fn recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int), 1, |slot| {
        receive_single_or(slot, fd, buffer, count, flags, || kernel!(recv(fd, buffer, count, flags)))
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        count: usize,
        flags: c_int,
        from: *mut sockaddr,
        length: *mut socklen_t,
    ), 1, |slot| {
        // SAFETY: the program passes a length, or null.
        if !from.is_null() && unsafe { length.as_ref() }.is_some_and(|length| (*length as c_int) < 0) {
            return fail(EINVAL) as isize;
        }
        match receive(slot, fd, Some(&single(buffer, count)), flags) {
            Ok(result) => {
                if result >= 0 && !from.is_null() && !length.is_null() {
                    // SAFETY: the program passes both or none. A connection has no address here.
                    unsafe { length.write(0) };
                }
                result
            }
            Err(()) => finish(slot, kernel!(recvfrom(fd, buffer, count, flags, from, length))),
        }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int), 1, |slot| {
        // SAFETY: the program passes a valid message, or null.
        let Some(header) = (unsafe { message.as_mut() }) else { return kernel!(recvmsg(fd, message, flags)) };
        match receive(slot, fd, vector(header.msg_iov, header.msg_iovlen), flags) {
            Ok(result) => {
                if result >= 0 {
                    (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
                }
                result
            }
            Err(()) => finish(slot, kernel!(recvmsg(fd, message, flags))),
        }
    }
}

exported! {
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: usize, size: usize) -> isize {
        check(count, size);
        // SAFETY: as for `read`.
        unsafe { read(fd, buffer, count) }
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: usize, size: usize, flags: c_int) -> isize {
        check(count, size);
        // SAFETY: as for `recv`.
        unsafe { recv(fd, buffer, count, flags) }
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

/// Larger buffers are invalid, or rare.
const MAX_COUNT: usize = 1 << 30;
/// Flags without an effect on a transfer that does not wait.
const SIMPLE: c_int = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;
const KNOWN: c_int = MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;
const PEEK_ALL: c_int = MSG_PEEK | MSG_WAITALL;
