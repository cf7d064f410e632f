//! Asynchronous requests: each owns its memory until librbd calls back.
//!
//! librbd reads and writes our pages, without a copy. It calls back in one of its threads, also after the volume was
//! dropped.
//!
//! Invariant: [`Finish::finish`] is called exactly once for each started request, unless the cluster never responds.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use isolane_memory::Buffer;
use libc::iovec;
use smallvec::SmallVec;

use super::image::Image;
use super::library::Handle;
use super::{Errno, check};

/// One request to librbd. Offsets and lengths are in bytes.
pub(crate) enum Operation {
    Read {
        offset: u64,
        buffer: Buffer,
    },
    Write {
        offset: u64,
        buffer: Buffer,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        /// Space for the zeroes stays allocated.
        keep_space: bool,
    },
    /// Make completed writes durable.
    Flush,
}

impl Operation {
    /// Whether it concerns no bytes.
    pub fn is_empty(&self) -> bool {
        match self {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => buffer.is_empty(),
            Operation::Discard { len, .. } | Operation::WriteZeroes { len, .. } => *len == 0,
            Operation::Flush => false,
        }
    }

    /// Limits a discard or zeroing to `max` bytes, and returns the rest.
    pub fn split_off(&mut self, max: u64) -> Option<Operation> {
        match self {
            Operation::Discard { offset, len } if *len > max => {
                let rest = Operation::Discard { offset: *offset + max, len: *len - max };
                *len = max;
                Some(rest)
            }
            Operation::WriteZeroes { offset, len, keep_space } if *len > max => {
                let (offset, rest) = (*offset + max, *len - max);
                *len = max;
                Some(Operation::WriteZeroes { offset, len: rest, keep_space: *keep_space })
            }
            _ => None,
        }
    }
}

/// Receives the result of an operation, and its buffer.
pub(crate) trait Finish: Send + 'static {
    /// `result` is the number of bytes of a read.
    fn finish(self, result: Result<usize, Errno>, buffer: Option<Buffer>);
}

/// A request that librbd has.
struct InFlight<F> {
    finish: F,
    /// Open until the request completes.
    image: Arc<Image>,
    buffer: Option<Buffer>,
    /// Slices of the buffer. librbd uses this list until the request completes.
    slices: SmallVec<[iovec; 8]>,
}

/// Starts an operation. An operation that cannot start finishes before this function returns.
pub(crate) fn start<F: Finish>(image: &Arc<Image>, operation: Operation, finish: F) {
    let (library, handle) = image.raw();
    let rbd = &library.rbd;
    let in_flight = InFlight { finish, image: Arc::clone(image), buffer: None, slices: SmallVec::new() };
    let argument = Box::into_raw(Box::new(in_flight));
    let mut completion = ptr::null_mut();
    // SAFETY: `completion` is valid during the call. Only the callback uses the argument.
    let created =
        unsafe { (rbd.rbd_aio_create_completion)(argument.cast(), on_complete::<F>, &mut completion) };
    let started = check(created).and_then(|_| {
        // SAFETY: `argument` is a valid request, which nothing else refers to before an operation is started. The
        // request, its buffer, and its list of slices stay until the callback, which takes the request.
        let result = unsafe {
            match operation {
                Operation::Read { offset, buffer } => {
                    let (slices, count) = (*argument).hold(buffer);
                    (rbd.rbd_aio_readv)(handle, slices, count, offset, completion)
                }
                Operation::Write { offset, buffer } => {
                    let (slices, count) = (*argument).hold(buffer);
                    (rbd.rbd_aio_writev)(handle, slices, count, offset, completion)
                }
                Operation::Discard { offset, len } => (rbd.rbd_aio_discard)(handle, offset, len, completion),
                Operation::WriteZeroes { offset, len, keep_space } => {
                    let flags = if keep_space { THICK_PROVISION } else { 0 };
                    (rbd.rbd_aio_write_zeroes)(handle, offset, len as usize, completion, flags, 0)
                }
                Operation::Flush => (rbd.rbd_aio_flush)(handle, completion),
            }
        };
        check(result)
    });
    if let Err(error) = started {
        if !completion.is_null() {
            // SAFETY: the completion is not used later.
            unsafe { (rbd.rbd_aio_release)(completion) };
        }
        // SAFETY: librbd rejected the request and does not call back, so this is the only reference.
        let in_flight = unsafe { Box::from_raw(argument) };
        in_flight.end(Err(error));
    }
}

/// Called by a thread of librbd.
extern "C" fn on_complete<F: Finish>(completion: Handle, argument: *mut c_void) {
    // SAFETY: the argument is the request of this completion, which is called back once.
    let in_flight = unsafe { Box::from_raw(argument.cast::<InFlight<F>>()) };
    let rbd = &in_flight.image.raw().0.rbd;
    // SAFETY: the completion is valid until its release, and not used later.
    let result = unsafe {
        let result = (rbd.rbd_aio_get_return_value)(completion);
        (rbd.rbd_aio_release)(completion);
        result
    };
    let error = i32::try_from(result.saturating_neg()).unwrap_or(libc::EIO);
    in_flight.end(usize::try_from(result).map_err(|_| Errno(error)));
}

impl<F: Finish> InFlight<F> {
    /// Keeps a buffer, and returns its slices and their number. Copies one that has more slices than librbd accepts.
    fn hold(&mut self, mut buffer: Buffer) -> (*const iovec, c_int) {
        let len = buffer.len();
        if buffer.raw_parts(0, len).count() > MAX_SLICES {
            let (mut copy, mut at) = (Buffer::contiguous(len), 0);
            buffer.for_each_slice(0, len, |slice| {
                copy.copy_in(at, slice);
                at += slice.len();
            });
            buffer = copy;
        }
        let slices = buffer.raw_parts(0, len);
        self.slices
            .extend(slices.map(|(start, len)| iovec { iov_base: start.cast_mut().cast(), iov_len: len }));
        self.buffer = Some(buffer);
        (self.slices.as_ptr(), self.slices.len() as c_int)
    }

    fn end(self, result: Result<usize, Errno>) {
        self.finish.finish(result, self.buffer);
    }
}

/// Slices that librbd accepts (IOV_MAX).
const MAX_SLICES: usize = 1024;
const THICK_PROVISION: c_int = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_operations_are_split() {
        let mut first = Operation::Discard { offset: 512, len: 2048 };
        let mut second = first.split_off(1024).unwrap();
        assert!(matches!(first, Operation::Discard { offset: 512, len: 1024 }));
        assert!(matches!(second, Operation::Discard { offset: 1536, len: 1024 }));
        assert!(second.split_off(1024).is_none());

        let mut first = Operation::WriteZeroes { offset: 0, len: 5, keep_space: true };
        let rest = first.split_off(4);
        assert!(matches!(first, Operation::WriteZeroes { offset: 0, len: 4, keep_space: true }));
        assert!(matches!(rest, Some(Operation::WriteZeroes { offset: 4, len: 1, keep_space: true })));
        assert!(Operation::Flush.split_off(1).is_none());
    }
}
