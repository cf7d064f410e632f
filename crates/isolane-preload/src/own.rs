//! Descriptors of this library: their numbers, eventfds, and those that a child closes.

use std::ffi::c_int;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use crate::{real, sockets};

/// Descriptors of the session, or -1.
static SESSION: [AtomicI32; MAX_SESSION] = [const { AtomicI32::new(-1) }; MAX_SESSION];
/// A session has a descriptor for each core of the engine, and a few others.
const MAX_SESSION: usize = 1 << 12;
/// Eventfds that no thread uses.
static EVENTS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

/// Returns a number above those that programs assign themselves, which start from 0.
pub(crate) fn first_descriptor() -> u32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    (limit - limit / 4).min(1 << 20) as u32
}

/// Gives a descriptor of this library a number that programs do not assign themselves.
pub(crate) fn raise(descriptor: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(descriptor.as_fd(), first_descriptor() as c_int).unwrap_or(descriptor)
}

/// Returns `true` if no limit of the process forbids a session with `bytes` of sparse memory, and none of it is locked.
pub(crate) fn has_space(bytes: u64) -> bool {
    let is_locked = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        !status.lines().any(|line| line.split_whitespace().eq(["VmLck:", "0", "kB"]))
    };
    // A larger file ends the process with a signal, and the program may need all of its address space.
    getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= bytes)
        && getrlimit(Resource::As).current.is_none()
        && !is_locked()
}

/// Returns the number of cores that this process may use, or that are among `others`.
pub(crate) fn cores(others: &[u32]) -> usize {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return usize::MAX };
    let others = others.iter().filter(|core| !allowed.is_set(**core as usize));
    allowed.count() as usize + others.count()
}

/// Records the session's descriptors.
pub(crate) fn set_session(descriptors: impl Iterator<Item = c_int>) {
    let descriptors: Vec<_> = descriptors.take(MAX_SESSION).collect();
    for (slot, fd) in SESSION.iter().zip(descriptors.into_iter().chain(std::iter::repeat(-1))) {
        slot.store(fd, Ordering::Relaxed);
    }
}

/// Closes the descriptors of the parent's session, and forgets its eventfds.
pub(crate) fn reset_in_child() {
    // SAFETY: no other thread exists.
    unsafe { std::ptr::write((&raw const EVENTS).cast_mut(), Mutex::new(Vec::new())) };
    for descriptor in &SESSION {
        let fd = descriptor.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor belongs to the session, which this process does not use.
            unsafe { real::close(fd) };
        }
    }
}

/// Returns an eventfd for one wait.
pub(crate) fn take_event() -> Option<c_int> {
    let unused = EVENTS.lock().pop();
    unused.or_else(new_event)
}

/// Ends the use of an eventfd by a wait.
pub(crate) fn put_event(event: c_int) {
    clear(event);
    EVENTS.lock().push(event);
}

/// Creates an eventfd.
pub(crate) fn new_event() -> Option<c_int> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    Some(raise(event).into_raw_fd())
}

/// Makes an eventfd readable.
pub(crate) fn signal(event: c_int) {
    // Fails only if the counter is full, which is readable as well.
    let _ = rustix::io::write(sockets::borrow(event), &1u64.to_ne_bytes());
}

/// Empties an eventfd.
pub(crate) fn clear(event: c_int) {
    if event >= 0 {
        let _ = rustix::io::read(sockets::borrow(event), &mut [0u8; 8]);
    }
}
