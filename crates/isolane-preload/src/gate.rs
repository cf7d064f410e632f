//! Whether sockets may be adopted, and whether a thread is in `isolane-attach`.

use std::cell::Cell;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU32, Ordering};

use isolane_shm::seccomp_filters;

/// Forks in progress, and calls of exec. No socket is adopted in the meantime.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// 1 once no socket of this process and its children is adopted any longer.
static STOPPED: AtomicU32 = AtomicU32::new(0);

/// Threads in [`inside`], so that most calls read no thread-local variable.
static THREADS_INSIDE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread is in `isolane-attach`, whose calls reach the kernel.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` while no socket can be adopted.
pub(crate) fn is_closed() -> bool {
    FORKING.load(Ordering::SeqCst) > 0
}

/// Prevents adoptions until [`open`].
pub(crate) fn close() {
    FORKING.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn open() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Prevents adoptions in a program that was started below other filters of system calls than those of `isolane engine
/// run`, of which `ISOLANE_PRELOAD_FILTERS` has the number: they may end the process for a call of this library.
pub(crate) fn read_environment() {
    let expected = std::env::var_os("ISOLANE_PRELOAD_FILTERS");
    let is_expected = |expected: &OsString| {
        seccomp_filters().is_some_and(|filters| expected.to_str() == Some(filters.to_string().as_str()))
    };
    if expected.is_some_and(|expected| !is_expected(&expected)) {
        close_for_good();
    }
}

/// Prevents adoptions for good. Returns `false` if they were prevented already.
pub(crate) fn close_for_good() -> bool {
    let is_first = STOPPED.swap(1, Ordering::SeqCst) == 0;
    if is_first {
        close();
    }
    is_first
}

/// In a forked child, where no other thread has closed the gate.
pub(crate) fn reset_in_child() {
    FORKING.store(STOPPED.load(Ordering::SeqCst), Ordering::SeqCst);
    THREADS_INSIDE.store(INSIDE.get().into(), Ordering::Relaxed);
}

/// Runs `work`, whose calls on descriptors of the program reach the kernel.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> T {
    THREADS_INSIDE.fetch_add(1, Ordering::Relaxed);
    let outer = INSIDE.replace(true);
    let result = work();
    INSIDE.set(outer);
    THREADS_INSIDE.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Returns `true` in such work.
#[inline]
pub(crate) fn is_inside() -> bool {
    THREADS_INSIDE.load(Ordering::Relaxed) > 0 && is_this_inside()
}

#[cold]
#[inline(never)]
fn is_this_inside() -> bool {
    INSIDE.get()
}
