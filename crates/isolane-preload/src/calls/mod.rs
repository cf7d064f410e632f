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

/// Defines functions that programs call instead of the C library's, also under its other names for them.
macro_rules! exported {
    (@ [$($name:ident)+] $arguments:tt $result:ty $body:block) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name $arguments -> $result $body
    )+};
    ($(fn $name:ident $(= $alias:ident)? ($($arguments:tt)*) -> $result:ty $body:block)*) => {
        $($crate::calls::exported! { @ [$name $($alias)?] ($($arguments)*) $result $body })*
    };
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

/// Defines functions that transfer bytes by the C library's, or by the block if the engine may have the socket. Functions of
/// their own leave the arguments in their registers on the paths to the kernel.
macro_rules! transfers {
    ($(fn $name:ident($fd:ident: c_int, $($argument:ident: $type:ty),* $(,)?), $bytes:expr, |$slot:ident| $engine:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($fd: c_int, $($argument: $type),*) -> isize {
            #[inline(never)]
            fn counted($fd: c_int, $($argument: $type),*, slot: &Slot) -> isize {
                finish(slot, kernel!($name($fd, $($argument),*)))
            }
            #[inline(never)]
            fn unknown($fd: c_int, $($argument: $type),*, $slot: &'static Slot) -> isize {
                if $slot.is_inside() {
                    return kernel!($name($fd, $($argument),*));
                }
                if table::stays($slot, $fd, $bytes) {
                    return counted($fd, $($argument),*, $slot);
                }
                $engine
            }
            match table::route($fd, || $bytes) {
                table::Route::Kernel => kernel!($name($fd, $($argument),*)),
                table::Route::Counted(slot) => counted($fd, $($argument),*, slot),
                table::Route::Unknown(slot) => unknown($fd, $($argument),*, slot),
            }
        }
    )*};
}
pub(crate) use transfers;

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

/// Result of a transfer through the engine.
enum Transfer {
    Done(Result<usize, c_int>),
    /// The caller transfers the bytes after the first `done` ones by the kernel, then calls [`finish`].
    Kernel {
        done: usize,
    },
}

/// Transfers through the engine, while it has the socket. `attempt` adds the bytes that it has transferred.
#[inline]
fn transfer(
    slot: &'static Slot,
    fd: c_int,
    bytes: usize,
    mut attempt: impl FnMut(&Adopted, &mut usize) -> Outcome,
) -> Transfer {
    let mut done = 0;
    loop {
        let Path::Engine(adopted) = table::enter(slot, fd, bytes) else { return Transfer::Kernel { done } };
        match attempt(&adopted, &mut done) {
            Outcome::Done => {
                stats::through_engine(done);
                return Transfer::Done(Ok(done));
            }
            // The next call gets the error, if it lasts.
            Outcome::Failed(_) | Outcome::Broken(_) if done > 0 => {
                stats::through_engine(done);
                return Transfer::Done(Ok(done));
            }
            Outcome::Failed(error) => return Transfer::Done(Err(error)),
            Outcome::Unknown => table::release(fd, Reason::Call, table::PINNED),
            Outcome::Returned => {}
            Outcome::Broken(error) => {
                table::release(fd, Reason::Error, table::PINNED);
                return Transfer::Done(Err(error));
            }
            Outcome::Lost if adopted.engine().is_lost() => table::abandon(adopted.engine()),
            Outcome::Lost => table::release(fd, Reason::Engine, table::PINNED),
        }
    }
}

/// Ends a call of the kernel on a socket of this process.
#[inline(always)]
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

/// The kernel's limit.
const MAX_VECTOR: usize = 1024;
