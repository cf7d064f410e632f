//! Forks of the program, and the descriptors of this library that a child must not keep.

use parking_lot::Mutex;

use crate::stats::{self, Reason};
use crate::{engine, forks, gate, own, sockets, table};

/// Held during a fork: the C library runs these functions of several threads at the same time.
static FORK: Mutex<()> = Mutex::new(());

/// Registers for all forks, those in the C library included.
pub(crate) fn watch_forks() {
    // SAFETY: the functions stay loaded. Fails only without memory, when no program starts.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
}

/// Sockets that exist at a fork are shared with the child, and so are epoll sets, until the child has ended or called
/// exec.
extern "C" fn before_fork() {
    std::mem::forget(FORK.lock());
    gate::close();
    table::check_children();
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
    gate::open();
    // SAFETY: this thread has locked it before the fork.
    unsafe { FORK.force_unlock() };
}

extern "C" fn after_fork_in_child() {
    forks::in_child();
    table::reset_in_child();
    engine::reset_in_child();
    stats::reset();
    own::reset_in_child();
    gate::reset_in_child();
    // SAFETY: no other thread exists, and this one has locked it before the fork.
    unsafe { FORK.force_unlock() };
}

/// Returns all sockets, and adopts none in this process and its children any longer.
pub(crate) fn stop_adoption() {
    if gate::close_for_good() {
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
    table::release_all(Reason::Exec, |fd| {
        if sockets::is_inherited(fd) { table::PINNED } else { table::CANDIDATE }
    });
}
