//! Frame of every exported function: converts its result for C.
//!
//! Invariant: no panic unwinds into C.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::error::Failure;
use crate::ffi::from_raw;
use crate::fork::Busy;

/// A type that an exported function can return.
pub(crate) trait Outcome {
    /// The value that reports a failure.
    const FAILED: Self;
}

/// Runs the body of the function `name`. Stores a failure or panic as the thread's last error.
#[inline]
pub(crate) fn call<T: Outcome>(name: &'static str, body: impl FnOnce() -> Result<T, Failure>) -> T {
    // A panic can leave one stream, poller, or session inconsistent, but no state of this library.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failed(name, &failure),
        Err(panic) => failed(name, &Failure::bug(panic_message(&*panic))),
    }
}

/// Body of the function `name`, which closes or frees an object.
///
/// # Safety
/// The requirements of [`from_raw`].
pub(crate) unsafe fn close<T>(name: &'static str, object: *mut T) {
    call(name, || {
        let _busy = Busy::enter();
        // SAFETY: this function has the same requirements.
        drop(unsafe { from_raw(object) });
        Ok(())
    });
}

#[cold]
fn failed<T: Outcome>(name: &'static str, failure: &Failure) -> T {
    failure.store(name);
    T::FAILED
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}

impl Outcome for c_int {
    const FAILED: c_int = -1;
}

impl Outcome for isize {
    const FAILED: isize = -1;
}

impl Outcome for i64 {
    const FAILED: i64 = -1;
}

impl<T> Outcome for *const T {
    const FAILED: *const T = ptr::null();
}

impl<T> Outcome for *mut T {
    const FAILED: *mut T = ptr::null_mut();
}

impl Outcome for () {
    const FAILED: () = ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{error_number, error_text};

    #[test]
    fn reports_panic_message() {
        let result: c_int = call("isolane_example", || panic!("three is not {}", 4));
        assert_eq!((result, error_number()), (-1, libc::EIO));
        assert_eq!(error_text(), "isolane_example: bug in libisolane, please report: three is not 4");
        let result: *mut u8 = call("isolane_example", || std::panic::panic_any(7));
        assert!(result.is_null() && error_text().contains("panic without a message"));
    }

    #[test]
    fn success_keeps_the_last_error() {
        let _: isize = call("isolane_first", || Err(Failure::Argument("a is wrong: pass another")));
        assert_eq!(call("isolane_second", || Ok(7 as c_int)), 7);
        assert_eq!(error_text(), "isolane_first: a is wrong: pass another");
    }
}
