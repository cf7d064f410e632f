//! The one place where a caller's borrowed memory becomes a [`Buffer`].
//!
//! Only for calls that wait. Invariant: control does not come back to the caller, not even by a panic, while
//! any buffer or payload made here may still be alive.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use isolane_memory::Buffer;

use crate::error::RequestError;

/// What a loan ends with; no buffer can leave inside of it.
type Outcome = Result<(), RequestError>;

/// Lets `work` read into `memory`. `work` returns only when the buffer is back or dropped.
pub(crate) fn lend_mut(memory: &mut [u8], work: impl FnOnce(Buffer) -> Outcome) -> Outcome {
    let guard = Abort;
    let len = memory.len();
    // SAFETY: `memory` is borrowed exclusively, and not looked at any more, until this function returns.
    // `work` returns only when the buffer is given back or dropped (see `blocking`), and a panic in it ends
    // the process instead of unwinding past the loan.
    let buffer = unsafe { Buffer::lend(NonNull::from(memory).cast(), len) };
    let result = work(buffer);
    std::mem::forget(guard);
    result
}

/// Lets `work` write from `memory`. `work` returns only when the buffer is back or dropped, and writes
/// nothing to it.
pub(crate) fn lend(memory: &[u8], work: impl FnOnce(Buffer) -> Outcome) -> Outcome {
    let guard = Abort;
    // SAFETY: `memory` is borrowed, so nobody writes it until this function returns; the client only reads
    // the buffer of a write. `work` returns only when the buffer is given back or dropped (see `blocking`),
    // and a panic in it ends the process instead of unwinding past the loan.
    let buffer = unsafe { Buffer::lend(NonNull::from(memory).cast(), memory.len()) };
    let result = work(buffer);
    std::mem::forget(guard);
    result
}

/// Ends the process when it is dropped: unwinding would free memory that a lane may still fill.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_placed_into_a_loan_is_in_the_caller_s_memory() {
        let mut memory = vec![0; 1024];
        let result = lend_mut(&mut memory, |mut buffer| {
            buffer.place(512, &[7; 512]);
            Ok(())
        });
        assert!(result.is_ok());
        assert_eq!((memory[511], memory[512]), (0, 7));
    }

    #[test]
    fn a_loan_reads_as_the_caller_s_memory() {
        let memory = vec![9; 512];
        let result = lend(&memory, |buffer| {
            assert_eq!(buffer.to_vec(), [9; 512]);
            Ok(())
        });
        assert!(result.is_ok());
    }
}
