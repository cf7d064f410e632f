//! Conversion of borrowed memory into a [`Buffer`], for blocking calls.
//!
//! Invariant: control does not return to the caller, not even by a panic, while a buffer or payload made here
//! may exist.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use isolane_memory::Buffer;

use crate::error::RequestError;

/// Result of a call; no buffer can leave with it.
type Outcome = Result<(), RequestError>;

/// Calls `work` with a buffer that reads into `memory`. `work` must return only after the buffer is returned
/// or dropped.
pub(crate) fn with_borrowed_mut(memory: &mut [u8], work: impl FnOnce(Buffer) -> Outcome) -> Outcome {
    let guard = Abort;
    let len = memory.len();
    // SAFETY: `memory` is borrowed exclusively, and not accessed until this function returns. `work` returns
    // only after the buffer is returned or dropped (see `blocking`), and a panic in it aborts the process
    // instead of unwinding past the borrow.
    let buffer = unsafe { Buffer::from_raw_parts(NonNull::from(memory).cast(), len) };
    let result = work(buffer);
    std::mem::forget(guard);
    result
}

/// Calls `work` with a buffer that writes from `memory`. `work` must not write to it, and must return only
/// after the buffer is returned or dropped.
pub(crate) fn with_borrowed(memory: &[u8], work: impl FnOnce(Buffer) -> Outcome) -> Outcome {
    let guard = Abort;
    // SAFETY: `memory` is borrowed, so no thread writes it until this function returns; the client only reads
    // the buffer of a write. `work` returns only after the buffer is returned or dropped (see `blocking`),
    // and a panic in it aborts the process instead of unwinding past the borrow.
    let buffer = unsafe { Buffer::from_raw_parts(NonNull::from(memory).cast(), memory.len()) };
    let result = work(buffer);
    std::mem::forget(guard);
    result
}

/// Aborts the process when dropped: unwinding would free memory that the client may still fill.
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
    fn placed_data_is_in_borrowed_memory() {
        let mut memory = vec![0; 1024];
        let result = with_borrowed_mut(&mut memory, |mut buffer| {
            buffer.copy_in(512, &[7; 512]);
            Ok(())
        });
        assert!(result.is_ok());
        assert_eq!((memory[511], memory[512]), (0, 7));
    }

    #[test]
    fn buffer_reads_borrowed_memory() {
        let memory = vec![9; 512];
        let result = with_borrowed(&memory, |buffer| {
            assert_eq!(buffer.to_vec(), [9; 512]);
            Ok(())
        });
        assert!(result.is_ok());
    }
}
