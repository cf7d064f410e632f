//! Pollers: one thread that waits for many streams.
//!
//! Invariant: a poller returns no stream that was closed.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use isolane_attach::stream::{self, StreamOptions};
use isolane_attach::{AttachError, Session};

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_mut, as_ref, into_raw, timeout};
use crate::options::or_default;
use crate::stream::{Members, Stream, adopt, into_raw_stream};

/// A poller and its streams.
pub struct Poller {
    poller: stream::Poller,
    members: Arc<Members>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_new(session: *mut Session, streams: u32) -> *mut Poller {
    call("isolane_poller_new", || {
        // SAFETY: the header states the requirements.
        let poller = stream::Poller::new(unsafe { as_ref(session)? }, streams)?;
        Ok(into_raw(Poller { poller, members: Arc::new(Members::new()) }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_adopt(
    poller: *mut Poller,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_poller_adopt", || {
        // SAFETY: the header states the requirements.
        let (Poller { poller, members }, options) = unsafe { (as_mut(poller)?, or_default(options)) };
        // SAFETY: the header states the requirements.
        let stream = unsafe { adopt(fd, |socket| poller.adopt(socket, options))? };
        Ok(into_raw_stream(stream, Some(Arc::clone(members))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_wait(
    poller: *mut Poller,
    stream: *mut *mut Stream,
    timeout_ns: i64,
) -> c_int {
    call("isolane_poller_wait", || {
        // SAFETY: the header states the requirements.
        let (poller, stream) = unsafe { (as_mut(poller)?, as_mut(stream)?) };
        let deadline = timeout(timeout_ns).and_then(|timeout| Instant::now().checked_add(timeout));
        let remaining = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        poller.next(stream, |poller| poller.next(remaining()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_take(poller: *mut Poller, stream: *mut *mut Stream) -> c_int {
    call("isolane_poller_take", || {
        // SAFETY: the header states the requirements.
        let (poller, stream) = unsafe { (as_mut(poller)?, as_mut(stream)?) };
        poller.next(stream, stream::Poller::try_next)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_arm(poller: *mut Poller) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_poller_arm", || Ok(unsafe { as_mut(poller)? }.poller.arm()?.into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_disarm(poller: *mut Poller) -> c_int {
    call("isolane_poller_disarm", || {
        // SAFETY: the header states the requirements.
        unsafe { as_mut(poller)? }.poller.disarm()?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_fd(poller: *const Poller) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_poller_fd", || Ok(unsafe { as_ref(poller)? }.poller.as_fd().as_raw_fd()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_close(poller: *mut Poller) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_poller_close", poller) };
}

impl Poller {
    /// Stores the stream of the next notification in `result`, and returns 1, or 0 without one. Skips closed streams.
    fn next(
        &mut self,
        result: &mut *mut Stream,
        mut poll: impl FnMut(&mut stream::Poller) -> Result<Option<u32>, AttachError>,
    ) -> Result<c_int, Failure> {
        *result = ptr::null_mut();
        while let Some(id) = poll(&mut self.poller)? {
            if let Some(stream) = self.members.find(id) {
                *result = stream;
                return Ok(1);
            }
        }
        Ok(0)
    }
}

/// A poller can move between threads.
const _: fn() = || {
    fn is_sent<T: Send>() {}
    is_sent::<Poller>();
};
