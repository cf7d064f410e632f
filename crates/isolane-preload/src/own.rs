//! Descriptors of this library: their numbers, eventfds, and those that a child closes.

use std::collections::HashSet;
use std::ffi::c_int;
use std::mem::MaybeUninit;
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
/// Eventfds of this process and its parents, or -1.
static EVENTFDS: [AtomicI32; MAX_EVENTFDS] = [const { AtomicI32::new(-1) }; MAX_EVENTFDS];
/// More than threads in waits and sets of epoll with adopted members.
const MAX_EVENTFDS: usize = 1 << 12;
/// Eventfds of waits.
static EVENTS: Mutex<Events> = Mutex::new(Events { unused: Vec::new(), used: Vec::new() });

struct Events {
    unused: Vec<c_int>,
    /// Eventfds with the waits that use them.
    used: Vec<(c_int, Wait)>,
}

/// A wait, known by its thread and the address of its frame.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    thread: usize,
    frame: usize,
}

impl Wait {
    /// Returns the wait of this thread with a variable in its frame.
    pub(crate) fn of_frame<T>(variable: &T) -> Wait {
        // SAFETY: returns the identity of this thread.
        let thread = unsafe { libc::pthread_self() } as usize;
        Wait { thread, frame: (&raw const *variable).addr() }
    }

    /// Returns `true` if a handler of a signal has left this wait by a jump, and `later` follows on the same stack: they grow
    /// downwards.
    fn is_left(self, later: Wait) -> bool {
        self.thread == later.thread && self.frame <= later.frame
    }
}

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
    unsafe {
        std::ptr::write(
            (&raw const EVENTS).cast_mut(),
            Mutex::new(Events { unused: Vec::new(), used: Vec::new() }),
        )
    };
    for descriptor in &SESSION {
        let fd = descriptor.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor belongs to the session, which this process does not use.
            unsafe { real::close(fd) };
        }
    }
}

/// Returns an eventfd for one wait. Waits that were left by a jump out of a handler do not need theirs.
pub(crate) fn take_event(wait: Wait) -> Option<c_int> {
    let mut events = EVENTS.lock();
    let left = events.used.iter_mut().find(|(_, other)| other.is_left(wait));
    // A handler may have its own stack, at any address.
    if let Some((event, user)) = left
        && !is_on_own_stack()
    {
        *user = wait;
        return Some(*event);
    }
    let event = events.unused.pop().or_else(new_event)?;
    events.used.push((event, wait));
    Some(event)
}

/// Ends the use of an eventfd by a wait.
pub(crate) fn put_event(event: c_int) {
    clear(event);
    let mut events = EVENTS.lock();
    events.used.retain(|(used, _)| *used != event);
    events.unused.push(event);
}

/// Returns `true` in a handler with its own stack, and if that is unknown.
fn is_on_own_stack() -> bool {
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: writes the structure, and changes nothing.
    let status = unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: it is written if the call succeeds.
    status != 0 || unsafe { stack.assume_init() }.ss_flags & libc::SS_ONSTACK != 0
}

/// Creates an eventfd.
pub(crate) fn new_event() -> Option<c_int> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let event = raise(event).into_raw_fd();
    replace(-1, event);
    Some(event)
}

/// Closes an eventfd.
pub(crate) fn close_event(event: c_int) {
    replace(event, -1);
    // SAFETY: the caller has the descriptor.
    unsafe { real::close(event) };
}

/// Replaces an entry of [`EVENTFDS`].
fn replace(old: c_int, new: c_int) {
    let is_replaced =
        |slot: &AtomicI32| slot.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    EVENTFDS.iter().any(is_replaced);
}

/// Returns the number after the highest descriptor that is not of this library, or 0 if `/proc` is missing. Without
/// descriptors of this library, the number has no limit.
pub(crate) fn end_of_programs() -> c_int {
    let own =
        || SESSION.iter().chain(&EVENTFDS).map(|slot| slot.load(Ordering::Relaxed)).filter(|fd| *fd >= 0);
    if own().next().is_none() {
        return c_int::MAX;
    }
    let own: HashSet<c_int> = own().collect();
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open = open.filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    open.filter(|fd| !own.contains(fd)).max().map_or(0, |highest| highest.saturating_add(1))
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
