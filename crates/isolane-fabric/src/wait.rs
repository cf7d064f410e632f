//! Descriptors that programs wait for.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::abi;
use crate::ffi::{Errno, Result, output};

/// A descriptor that is readable while it is set.
pub(crate) struct Signal(OwnedFd);

impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        Ok(Signal(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn set(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Waits until it is set, or until a time. A signal of the system also ends the wait.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref());
    }

    /// Answers `FI_GETWAIT` and `FI_GETWAITOBJ` of an object with this descriptor.
    ///
    /// # Safety
    /// `argument` is null or valid for the command.
    pub(crate) unsafe fn control(
        &self,
        wait_obj: c_int,
        command: c_int,
        argument: *mut c_void,
    ) -> Result<()> {
        match command {
            abi::GETWAIT if wait_obj == abi::WAIT_NONE => Err(Errno::NO_FUNCTION),
            abi::GETWAIT => {
                // SAFETY: guaranteed by the caller: a descriptor.
                *unsafe { output(argument.cast::<c_int>()) }? = self.0.as_raw_fd();
                Ok(())
            }
            abi::GETWAITOBJ => {
                // SAFETY: guaranteed by the caller: an `enum fi_wait_obj`.
                *unsafe { output(argument.cast::<c_int>()) }? = wait_obj;
                Ok(())
            }
            _ => Err(Errno::NO_FUNCTION),
        }
    }
}

/// Returns the kind of wait object for a requested one.
///
/// # Errors
/// `ENOSYS` if the provider does not have it.
pub(crate) fn wait_object(requested: c_int) -> Result<c_int> {
    match requested {
        abi::WAIT_NONE => Ok(abi::WAIT_NONE),
        abi::WAIT_UNSPEC | abi::WAIT_FD => Ok(abi::WAIT_FD),
        _ => Err(Errno::NO_FUNCTION),
    }
}

/// Returns the time at which a timeout in milliseconds ends; a negative one never does.
pub(crate) fn deadline(timeout_ms: c_int) -> Option<Instant> {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
