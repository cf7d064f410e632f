//! Forks of the program, and the descriptors of this library that a child must not keep.

use std::ffi::c_int;

use parking_lot::Mutex;

use crate::forks::Report;
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
        table::sets().for_each(|(_, set)| {
            set.set_shared(true);
            set.withdraw();
        });
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

/// Returns all sockets to the kernel for good, because another process will have them.
pub(crate) fn share_everything() {
    table::release_all(Reason::Fork, |_| table::PINNED);
    table::sets().for_each(|(fd, _)| table::demote(fd));
}

/// Before a program is started that inherits descriptors: those without FD_CLOEXEC.
pub(crate) fn share_inherited() {
    forks::report(Report::Exec);
    table::release_all(Reason::Exec, |fd| {
        if sockets::is_inherited(fd) { table::PINNED } else { table::CANDIDATE }
    });
}

/// Returns a descriptor to the kernel for good, because another one will refer to the same file, or to the same socket in
/// a program that this process starts.
pub(crate) fn share(fd: c_int) {
    table::release(fd, Reason::Duplicate, table::PINNED);
    table::demote(fd);
    report_duplicate(fd);
}

/// Tells the process that has started this one that a socket of its connections may outlast this process.
pub(crate) fn report_duplicate(fd: c_int) {
    if forks::has_ancestors()
        && table::slot(fd).is_some_and(|slot| slot.state() == table::OTHER)
        && sockets::tcp_cookie(fd).is_some()
    {
        forks::report(Report::Duplicate);
    }
}
