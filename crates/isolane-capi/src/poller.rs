//! One thread that waits for many streams.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use isolane_attach::Session;
use isolane_attach::stream::{self, StreamOptions};
use isolane_shm::process_id;
use parking_lot::Mutex;

use crate::border::{give, own, shared, timeout};
use crate::call::{call, close};
use crate::failure::Failure;
use crate::options::or_default;
use crate::stream::{Stream, adopt, hand_out};

/// A poller, and its streams.
pub struct Poller {
    poller: stream::Poller,
    members: Arc<Members>,
}

/// Which streams a poller tells of, by their ids. Looked at once a notice.
pub(crate) struct Members {
    streams: Mutex<HashMap<u32, AtomicPtr<Stream>>>,
    /// The process whose they are.
    process: u64,
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_new(session: *mut Session, streams: u32) -> *mut Poller {
    call("isolane_poller_new", || {
        // SAFETY: as the header says.
        let poller = stream::Poller::new(unsafe { shared(session)? }, streams)?;
        Ok(give(Poller { poller, members: Arc::new(Members::new()) }))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_adopt(
    poller: *mut Poller,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_poller_adopt", || {
        // SAFETY: as the header says.
        let (Poller { poller, members }, options) = unsafe { (own(poller)?, or_default(options)) };
        // SAFETY: as the header says.
        let stream = unsafe { adopt(fd, |socket| poller.adopt(socket, options))? };
        Ok(hand_out(stream, Some(Arc::clone(members))))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_wait(
    poller: *mut Poller,
    stream: *mut *mut Stream,
    timeout_ns: i64,
) -> c_int {
    call("isolane_poller_wait", || {
        // SAFETY: as the header says.
        let (poller, stream) = unsafe { (own(poller)?, own(stream)?) };
        told(stream, || poller.wait(timeout(timeout_ns)))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_take(poller: *mut Poller, stream: *mut *mut Stream) -> c_int {
    call("isolane_poller_take", || {
        // SAFETY: as the header says.
        let (poller, stream) = unsafe { (own(poller)?, own(stream)?) };
        told(stream, || poller.take())
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_arm(poller: *mut Poller) -> c_int {
    // SAFETY: as the header says.
    call("isolane_poller_arm", || Ok(unsafe { own(poller)? }.poller.arm()?.into()))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_disarm(poller: *mut Poller) -> c_int {
    call("isolane_poller_disarm", || {
        // SAFETY: as the header says.
        unsafe { own(poller)? }.poller.disarm()?;
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_fd(poller: *const Poller) -> c_int {
    // SAFETY: as the header says.
    call("isolane_poller_fd", || Ok(unsafe { shared(poller)? }.poller.as_fd().as_raw_fd()))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_poller_close(poller: *mut Poller) {
    // SAFETY: as the header says.
    unsafe { close("isolane_poller_close", poller) };
}

impl Poller {
    /// The next notice about a stream that is still there.
    fn take(&mut self) -> Result<Option<*mut Stream>, Failure> {
        while let Some(id) = self.poller.try_next()? {
            if let Some(stream) = self.members.find(id) {
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<*mut Stream>, Failure> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let Some(id) = self.poller.next(left)? else { return Ok(None) };
            if let Some(stream) = self.members.find(id) {
                return Ok(Some(stream));
            }
        }
    }
}

impl Members {
    fn new() -> Members {
        Members { streams: Mutex::default(), process: process_id() }
    }

    pub(crate) fn add(&self, id: u32, stream: *mut Stream) {
        self.streams.lock().insert(id, AtomicPtr::new(stream));
    }

    pub(crate) fn remove(&self, id: u32) {
        // In a child, a thread that it does not have may hold the lock.
        if self.process == process_id() {
            self.streams.lock().remove(&id);
        }
    }

    fn find(&self, id: u32) -> Option<*mut Stream> {
        self.streams.lock().get(&id).map(|stream| stream.load(Ordering::Relaxed))
    }
}

/// Tells C of the next notice.
fn told(
    place: &mut *mut Stream,
    next: impl FnOnce() -> Result<Option<*mut Stream>, Failure>,
) -> Result<c_int, Failure> {
    *place = ptr::null_mut();
    let stream = next()?;
    *place = stream.unwrap_or(ptr::null_mut());
    Ok(stream.is_some().into())
}

/// It goes from thread to thread.
const _: fn() = || {
    fn is_sent<T: Send>() {}
    is_sent::<Poller>();
};

#[cfg(test)]
mod tests {
    use isolane_shm::testing;

    use super::*;

    #[test]
    fn forked_child_closes_stream_under_lock_of_its_parent() {
        let members = Members::new();
        let held = members.streams.lock();
        assert!(testing::finishes_in_child(|| members.remove(1)), "the child waits for the lock");
        drop(held);
    }
}
