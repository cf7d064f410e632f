//! Forks of the program, and the descriptors of this library that a child must not keep.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::stats::{self, Reason};
use crate::{calls, engine, forks, real, table};

/// Forks in progress, and calls of exec. No socket is adopted in the meantime.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// 1 after [`stop_adoption`].
static STOPPED: AtomicU32 = AtomicU32::new(0);
/// Descriptors of the session, or -1.
static INHERITED: [AtomicI32; MAX_INHERITED] = [const { AtomicI32::new(-1) }; MAX_INHERITED];
/// A session has a descriptor for each core of the engine, and a few others.
const MAX_INHERITED: usize = 1 << 12;

/// Returns `true` while no socket can be adopted.
pub(crate) fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) > 0
}

/// Prevents adoptions until [`allow_adoption`].
pub(crate) fn forbid_adoption() {
    FORKING.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn allow_adoption() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Registers for all forks, those in the C library included.
pub(crate) fn watch_forks() {
    // SAFETY: the functions stay loaded. Fails only without memory, when no program starts.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
}

/// Sockets that exist at a fork are shared with the child, and so are epoll sets, until the child has ended or called
/// exec.
extern "C" fn before_fork() {
    forbid_adoption();
    if table::is_empty() {
        // Most programs that start others have no connections.
    } else if forks::before() {
        table::release_all(Reason::Fork, |_| table::SHARED);
        table::sets().for_each(|(_, set)| set.set_shared(true));
    } else {
        share_everything();
    }
    engine::lock_for_fork();
}

extern "C" fn after_fork_in_parent() {
    engine::unlock_in_parent();
    forks::in_parent();
    allow_adoption();
}

extern "C" fn after_fork_in_child() {
    forks::in_child();
    table::reset_in_child();
    engine::reset_in_child();
    calls::reset_in_child();
    stats::reset();
    for descriptor in &INHERITED {
        let fd = descriptor.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor belongs to the session, which this process does not use.
            unsafe { real::close(fd) };
        }
    }
    FORKING.store(STOPPED.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Returns all sockets, and adopts none in this process and its children any longer.
pub(crate) fn stop_adoption() {
    if STOPPED.swap(1, Ordering::SeqCst) == 0 {
        forbid_adoption();
        table::release_all(Reason::Call, |_| table::PINNED);
    }
}

/// Returns all sockets to the kernel for good, because another process will have them.
pub(crate) fn share_everything() {
    table::release_all(Reason::Fork, |_| table::PINNED);
    table::sets().for_each(|(fd, _)| table::demote(fd));
}

/// Before a program is started that inherits descriptors: those without FD_CLOEXEC.
pub(crate) fn share_inherited() {
    forks::report_exec();
    table::release_all(Reason::Exec, |fd| if is_inherited(fd) { table::PINNED } else { table::CANDIDATE });
}

/// Returns `true` if programs that this process starts have the descriptor.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    // SAFETY: the command has no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags & libc::FD_CLOEXEC == 0
}

/// Records the session's descriptors.
pub(crate) fn set_inherited(descriptors: impl Iterator<Item = c_int>) {
    let descriptors: Vec<_> = descriptors.take(MAX_INHERITED).collect();
    for (slot, fd) in INHERITED.iter().zip(descriptors.into_iter().chain(std::iter::repeat(-1))) {
        slot.store(fd, Ordering::Relaxed);
    }
}

/// Gives a descriptor of this library a number that programs do not assign themselves.
pub(crate) fn raise(descriptor: OwnedFd) -> OwnedFd {
    let first = engine::first_descriptor() as c_int;
    rustix::io::fcntl_dupfd_cloexec(descriptor.as_fd(), first).unwrap_or(descriptor)
}
