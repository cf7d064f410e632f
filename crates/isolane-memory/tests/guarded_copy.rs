//! Copies to memory that is not accessible, next to the program's own handlers of the signals.
#![cfg(not(miri))]

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use isolane_memory::{MemoryRegion, guard_copies};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Installs the program's handler.
fn handle_signals() {
    // SAFETY: the handler only counts.
    unsafe { libc::signal(libc::SIGSEGV, count_signal as *const () as usize) };
}

/// Copies to and from memory of which only the first page can be accessed.
fn copy_at_the_edge() {
    const PAGE: usize = isolane_memory::PAGE_SIZE;
    // SAFETY: a new mapping that only the region uses.
    let region = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
        MemoryRegion::from_raw(NonNull::new(start.cast()).unwrap(), 2 * PAGE)
    };
    let mut bytes = [0; 100];
    for (offset, len, is_mapped) in
        [(PAGE - 100, 100, true), (PAGE - 99, 100, false), (PAGE, 1, false), (0, 0, true)]
    {
        assert_eq!(region.try_copy_in(offset, &[7; 100][..len]), is_mapped, "{len} bytes at {offset}");
        assert_eq!(region.try_copy_out(offset, &mut bytes[..len]), is_mapped, "{len} bytes at {offset}");
    }
    assert_eq!(bytes, [7; 100]);
}

/// A child that guards its copies, and accesses memory that is not mapped.
fn other_faults_end_the_program() {
    // SAFETY: the child calls nothing that needs another thread.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            guard_copies();
            std::ptr::null::<u8>().wrapping_add(8).read_volatile();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    }
}

#[test]
fn copies_survive_next_to_handlers_of_the_program() {
    other_faults_end_the_program();
    copy_at_the_edge();
    handle_signals();
    guard_copies();
    copy_at_the_edge();
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 0);
    // SAFETY: the handler counts the signal.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 1, "other signals reach the program");
    // The kernel ends a program that blocks the signal of a fault.
    let blocking = std::thread::spawn(|| {
        // SAFETY: the set is valid.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, null_mut());
        }
        copy_at_the_edge();
    });
    blocking.join().unwrap();
    // The program replaces the handler.
    handle_signals();
    guard_copies();
    copy_at_the_edge();
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 1);
}
