//! Signals to eventfds that other processes hold.
//!
//! A write to an eventfd blocks while its counter is full, unless `O_NONBLOCK` is set. That flag belongs to every process
//! that holds the eventfd, and one of them can clear it at any time; `RWF_NOWAIT` is not supported. The kernel's own
//! signals never block: a full counter stays full. Asynchronous I/O sends one for each completion, so [`EventfdSignals`]
//! submits a read of an empty file, which completes at once.
//!
//! Invariant: a signal never waits for another process.

#![allow(unsafe_code)]

use std::io;
use std::ptr;

use libc::{c_long, c_ulong};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};

/// Sender of signals to eventfds.
#[derive(Debug)]
pub struct EventfdSignals {
    context: c_ulong,
    /// An empty file.
    source: OwnedFd,
}

impl EventfdSignals {
    /// Allocates the kernel's part.
    ///
    /// # Errors
    /// A kernel without asynchronous I/O, or a limit.
    pub fn new() -> io::Result<EventfdSignals> {
        let source = memfd_create("isolane-signals", MemfdFlags::CLOEXEC)?;
        let mut context: c_ulong = 0;
        // SAFETY: `io_setup` writes one word to `context`, which is 0 as required.
        check(unsafe { libc::syscall(libc::SYS_io_setup, c_ulong::from(REQUESTS), &raw mut context) })?;
        Ok(EventfdSignals { context, source })
    }

    /// Adds 1 to the counter of an eventfd, unless it is full.
    ///
    /// # Errors
    /// Another kind of descriptor, or no memory in the kernel.
    pub fn signal(&self, eventfd: impl AsFd) -> io::Result<()> {
        let request = Iocb {
            fildes: self.source.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            resfd: eventfd.as_fd().as_raw_fd() as u32,
            ..Iocb::default()
        };
        match self.submit(request) {
            // Each completion takes an entry until it is fetched.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.discard_completions()?;
                self.submit(request)
            }
            result => result,
        }
    }

    fn submit(&self, mut request: Iocb) -> io::Result<()> {
        let mut requests = [&raw mut request];
        // SAFETY: the array has one pointer, to a request that the kernel reads, and whose key it writes, during the call.
        // The read has no bytes, and ends in the call, so that the kernel keeps no address.
        let submitted = unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, c_long::from(1u8), requests.as_mut_ptr())
        };
        check(submitted)
    }

    fn discard_completions(&self) -> io::Result<()> {
        let mut completions = [IoEvent::default(); BATCH];
        let (min, max) = (c_long::from(0u8), BATCH as c_long);
        loop {
            let timeout = ptr::null_mut::<libc::timespec>();
            // SAFETY: the array has space for `max` completions. With a minimum of 0, the call does not wait.
            let count = unsafe {
                let target = completions.as_mut_ptr();
                libc::syscall(libc::SYS_io_getevents, self.context, min, max, target, timeout)
            };
            check(count)?;
            if count < max {
                return Ok(());
            }
        }
    }
}

impl Drop for EventfdSignals {
    fn drop(&mut self) {
        // SAFETY: the context is not used after this.
        let destroyed = check(unsafe { libc::syscall(libc::SYS_io_destroy, self.context) });
        debug_assert!(destroyed.is_ok(), "the context exists: {destroyed:?}");
    }
}

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct iocb` of `linux/aio_abi.h`. The halves of `key_and_flags`, which is 0, have an order by endianness.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key_and_flags: u64,
    /// `IOCB_CMD_PREAD` is 0.
    opcode: u16,
    priority: i16,
    fildes: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32);

const IOCB_FLAG_RESFD: u32 = 1;
/// Entries for completions that are not fetched yet. The kernel allows more.
const REQUESTS: u32 = 128;
const BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn counter(eventfd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(eventfd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn signals_count() {
        const COUNT: u64 = 20 * REQUESTS as u64;
        let (signals, eventfd) = (EventfdSignals::new().unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        for _ in 0..COUNT {
            signals.signal(&eventfd).unwrap();
        }
        assert_eq!(counter(&eventfd), COUNT);
    }

    #[test]
    fn full_counter_of_a_blocking_eventfd_does_not_block() {
        let (signals, eventfd) = (EventfdSignals::new().unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            signals.signal(&eventfd).unwrap();
        }
        assert_eq!(counter(&eventfd), u64::MAX);
    }

    #[test]
    fn other_descriptor_is_an_error() {
        let (signals, eventfd) = (EventfdSignals::new().unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        // More than the entries: a failure takes none.
        for _ in 0..20 * REQUESTS {
            let error = signals.signal(&signals.source).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        signals.signal(&eventfd).unwrap();
        assert_eq!(counter(&eventfd), 1);
    }
}
