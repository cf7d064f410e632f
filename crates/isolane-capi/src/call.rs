//! The frame of every function: its outcome for C.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::border::take;
use crate::failure::Failure;

/// What a function returns to C, and which value of it says that it has failed.
pub(crate) trait Outcome {
    const FAILED: Self;
}

/// Runs the body of the function `name`. A failure, or a panic, is kept for the caller to ask for.
#[inline]
pub(crate) fn call<T: Outcome>(name: &'static str, body: impl FnOnce() -> Result<T, Failure>) -> T {
    // What a panic leaves half done is a stream's, a poller's or a session's own.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failed(name, &failure),
        Err(panic) => failed(name, &Failure::bug(words(&*panic))),
    }
}

/// The body of the function `name` that closes an object, or frees it.
///
/// # Safety
/// As of [`take`].
pub(crate) unsafe fn close<T>(name: &'static str, object: *mut T) {
    call(name, || {
        // SAFETY: the same is asked.
        drop(unsafe { take(object) });
        Ok(())
    });
}

#[cold]
fn failed<T: Outcome>(name: &'static str, failure: &Failure) -> T {
    failure.keep(name);
    T::FAILED
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

impl Outcome for c_int {
    const FAILED: c_int = -1;
}

impl Outcome for isize {
    const FAILED: isize = -1;
}

impl<T> Outcome for *mut T {
    const FAILED: *mut T = ptr::null_mut();
}

/// Nothing comes of it either way.
impl Outcome for () {
    const FAILED: () = ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{error_number, error_words};

    #[test]
    fn a_panic_becomes_an_error_that_names_it() {
        let outcome: c_int = call("isolane_example", || panic!("three is not {}", 4));
        assert_eq!((outcome, error_number()), (-1, libc::EIO));
        assert_eq!(error_words(), "isolane_example: a bug in libisolane, to be reported: three is not 4");
        let outcome: *mut u8 = call("isolane_example", || std::panic::panic_any(7));
        assert!(outcome.is_null() && error_words().contains("a panic without words"));
    }

    #[test]
    fn what_succeeds_leaves_the_last_failure_as_it_was() {
        let _: isize = call("isolane_first", || Err(Failure::argument("a is wrong: give another")));
        assert_eq!(call("isolane_second", || Ok(7 as c_int)), 7);
        assert_eq!(error_words(), "isolane_first: a is wrong: give another");
    }
}
