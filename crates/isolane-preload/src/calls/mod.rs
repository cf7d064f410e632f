//! Functions of the C library's names.
//!
//! Their arguments are the program's, and as valid as the C library requires. The path to the kernel drops nothing after
//! a call, because a thread can be canceled in it.

mod descriptors;
mod epoll;
mod options;
mod poll;
mod receive;
mod select;
mod send;
mod start;

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::adopted::{Adopted, Outcome};
use crate::stats::{self, Reason};
use crate::table::{self, Path, Slot};

/// Defines functions that programs call instead of the C library's.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result $body
    )*};
}
pub(crate) use exported;

/// Calls a function of the C library with arguments of the program.
macro_rules! kernel {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the arguments are the program's, or have the same validity.
        unsafe { $crate::real::$name($($argument),*) }
    };
}
pub(crate) use kernel;

/// Stores an error for the program.
pub(crate) fn fail(error: c_int) -> c_int {
    // SAFETY: the location of this thread's error is valid.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Returns the error of the last call.
pub(crate) fn last_error() -> c_int {
    // SAFETY: the location of this thread's error is valid.
    unsafe { *libc::__errno_location() }
}

/// Transfers through the engine. `None`: the caller calls the kernel, then [`finish`].
#[inline]
fn transfer(
    slot: &'static Slot,
    fd: c_int,
    bytes: usize,
    mut attempt: impl FnMut(&Adopted) -> Outcome,
) -> Option<Result<usize, c_int>> {
    loop {
        let Path::Engine(adopted) = table::enter(slot, fd, bytes) else { return None };
        match attempt(&adopted) {
            Outcome::Done(count) => {
                stats::through_engine(count);
                return Some(Ok(count));
            }
            Outcome::Failed(error) => return Some(Err(error)),
            Outcome::Unknown => table::release(fd, Reason::Call, table::PINNED),
            Outcome::Returned => {}
            Outcome::Broken(error) => {
                table::release(fd, Reason::Error, table::PINNED);
                return Some(Err(error));
            }
            Outcome::Lost if adopted.engine().is_lost() => table::abandon(adopted.engine()),
            Outcome::Lost => table::release(fd, Reason::Engine, table::PINNED),
        }
    }
}

/// Ends a call of the kernel on a socket of this process.
fn finish(slot: &Slot, result: isize) -> isize {
    table::leave(slot);
    stats::through_kernel(result);
    result
}

/// Returns the value of a call, or stores its error.
fn value(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(error) => fail(error) as isize,
    }
}

/// Returns the buffers of a program's vector, up to the size that the kernel transfers at once. `None`: the kernel
/// reports the error.
fn buffers(vector: &[iovec]) -> Option<Vec<(*mut u8, usize)>> {
    let mut left = MAX_TRANSFER;
    let mut buffers = Vec::with_capacity(vector.len());
    for part in vector {
        if (part.iov_base.is_null() && part.iov_len > 0) || isize::try_from(part.iov_len).is_err() {
            return None;
        }
        let length = part.iov_len.min(left);
        left -= length;
        if length > 0 {
            buffers.push((part.iov_base.cast(), length));
        }
    }
    Some(buffers)
}

/// Returns a vector of the program. `None`: the kernel reports the error.
fn vector<'a>(start: *const iovec, count: usize) -> Option<&'a [iovec]> {
    match count {
        0 => Some(&[]),
        // SAFETY: the program passes a vector of this length.
        1..=MAX_VECTOR if !start.is_null() => Some(unsafe { std::slice::from_raw_parts(start, count) }),
        _ => None,
    }
}

fn single(buffer: *const c_void, count: usize) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: count }]
}

/// The kernel's limits.
const MAX_VECTOR: usize = 1024;
const MAX_TRANSFER: usize = 0x7fff_f000;
