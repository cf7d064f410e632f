//! Sending.

use std::ffi::{c_int, c_uint, c_void};

use libc::{
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, EPIPE, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, SCM_RIGHTS,
    SOL_SOCKET, iovec, mmsghdr, msghdr, sockaddr, socklen_t,
};

use super::{Transfer, exported, finish, kernel, single, transfer, transfers, value, vector};
use crate::adopted::{Adopted, Outcome};
use crate::buffers::{self, Buffers};
use crate::process;
use crate::stats::{self, Reason};
use crate::table::{self, Slot};

/// Sends through the engine, as long as it has the socket.
#[inline]
fn submit(slot: &'static Slot, fd: c_int, parts: Option<&[iovec]>, flags: c_int) -> Transfer {
    let bytes = buffers::total(parts.unwrap_or_default());
    let sent = transfer(slot, fd, bytes, |adopted, done| attempt(adopted, parts, flags, done));
    if matches!(sent, Transfer::Done(Err(EPIPE))) && flags & MSG_NOSIGNAL == 0 {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    sent
}

#[inline(never)]
fn attempt(adopted: &Adopted, parts: Option<&[iovec]>, flags: c_int, done: &mut usize) -> Outcome {
    match parts.and_then(Buffers::new).filter(|_| flags & !KNOWN == 0) {
        Some(buffers) => adopted.send(buffers, flags & MSG_DONTWAIT != 0, done),
        None => Outcome::Unknown,
    }
}

/// Sends by the kernel after the first `done` bytes, which the engine had. Returns the number of all bytes that are sent.
#[cold]
fn send_rest(fd: c_int, parts: Option<&[iovec]>, flags: c_int, mut done: usize) -> isize {
    let Some(buffers) = parts.and_then(Buffers::new) else { return done as isize };
    for (start, length) in buffers.after(done) {
        // The call has sent bytes: no error ends it with a signal.
        let count = kernel!(send(fd, start.cast(), length, flags | MSG_NOSIGNAL));
        done += count.max(0) as usize;
        if count != length as isize {
            break;
        }
    }
    done as isize
}

/// Returns sockets that are about to be sent to another process.
fn release_rights(message: *const msghdr) {
    // SAFETY: the program passes a valid message, or null.
    let Some(header) = (unsafe { message.as_ref() }) else { return };
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        return;
    }
    // SAFETY: the macros check the lengths of the parts against the buffer.
    unsafe {
        let mut part = CMSG_FIRSTHDR(message);
        while let Some(found) = part.as_ref() {
            if found.cmsg_level == SOL_SOCKET && found.cmsg_type == SCM_RIGHTS {
                let bytes = found.cmsg_len.saturating_sub(CMSG_LEN(0) as usize);
                let start = CMSG_DATA(part).cast::<c_int>();
                for index in 0..bytes / size_of::<c_int>() {
                    let fd = start.add(index).read_unaligned();
                    process::share(fd);
                }
            }
            part = CMSG_NXTHDR(message, part);
        }
    }
}

/// Sends through the engine, or by the call of the kernel. Separate, so that other descriptors save no registers.
#[inline(never)]
fn submit_or(
    slot: &'static Slot,
    fd: c_int,
    parts: Option<&[iovec]>,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    match submit(slot, fd, parts, flags) {
        Transfer::Done(result) => value(result),
        Transfer::Kernel { done: 0 } => finish(slot, call()),
        Transfer::Kernel { done } => finish(slot, send_rest(fd, parts, flags, done)),
    }
}

/// Sends one buffer by [`submit_or`], or directly if there is space for all of it.
#[inline(never)]
fn submit_single_or(
    slot: &'static Slot,
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    if count > 0 && !buffer.is_null() && flags & !KNOWN == 0 {
        let sent = slot.transfer(count, |adopted| adopted.try_send(buffer.cast(), count));
        if let Some(sent) = sent {
            stats::through_engine(sent);
            return sent as isize;
        }
    }
    submit_or(slot, fd, Some(&single(buffer, count)), flags, call)
}

transfers! {
    fn write(fd: c_int, buffer: *const c_void, count: usize), count, |slot| {
        submit_single_or(slot, fd, buffer, count, 0, || kernel!(write(fd, buffer, count)))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int), total(vector(parts, count as usize)), |slot| {
        let vector = vector(parts, count as usize);
        // Without bytes, the kernel does not look at the socket, other than in `write`.
        if vector.is_some_and(|parts| buffers::total(parts) == 0) {
            return kernel!(writev(fd, parts, count));
        }
        submit_or(slot, fd, vector, 0, || kernel!(writev(fd, parts, count)))
    }

    fn send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int), count, |slot| {
        submit_single_or(slot, fd, buffer, count, flags, || kernel!(send(fd, buffer, count, flags)))
    }

    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        count: usize,
        flags: c_int,
        to: *const sockaddr,
        length: socklen_t,
    ), count, |slot| {
        let call = || kernel!(sendto(fd, buffer, count, flags, to, length));
        submit_single_or(slot, fd, buffer, count, flags, call)
    }
}

exported! {
    fn __write(fd: c_int, buffer: *const c_void, count: usize) -> isize {
        // SAFETY: as for `write`.
        unsafe { write(fd, buffer, count) }
    }

    fn __send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize {
        // SAFETY: as for `send`.
        unsafe { send(fd, buffer, count, flags) }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
        release_rights(message);
        let Some(slot) = table::socket(fd) else { return kernel!(sendmsg(fd, message, flags)) };
        // SAFETY: the program passes a valid message, or null.
        let header = unsafe { message.as_ref() }.filter(|header| header.msg_controllen == 0);
        let parts = header.and_then(|header| vector(header.msg_iov, header.msg_iovlen));
        submit_or(slot, fd, parts, flags, || kernel!(sendmsg(fd, message, flags)))
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        table::release(fd, Reason::Call, table::PINNED);
        for index in 0..count as usize {
            // SAFETY: the program passes so many messages.
            release_rights(unsafe { &raw const (*messages.add(index)).msg_hdr });
        }
        kernel!(sendmmsg(fd, messages, count, flags))
    }
}

fn total(parts: Option<&[iovec]>) -> usize {
    buffers::total(parts.unwrap_or_default())
}

/// Data of a MSG_MORE is sent as soon as other data.
const KNOWN: c_int = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE;
