//! Copies to memory that is not accessible, next to the program's own handlers of the signals.
#![cfg(not(miri))]

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use isolane_memory::{MemoryRegion, Payload, guard_copies};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Installs the program's handler.
fn handle_signals() {
    // SAFETY: the handler only counts.
    unsafe { libc::signal(libc::SIGSEGV, count_signal as *const () as usize) };
}

const PAGE: usize = isolane_memory::PAGE_SIZE;
const ACCESSIBLE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Returns two pages with the given protection.
fn map_pages(protection: [c_int; 2]) -> MemoryRegion {
    // SAFETY: a new mapping that only the region uses.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(null_mut(), 2 * PAGE, ACCESSIBLE, flags, -1, 0);
        for (page, protection) in protection.into_iter().enumerate() {
            assert_eq!(libc::mprotect(start.byte_add(page * PAGE), PAGE, protection), 0);
        }
        MemoryRegion::from_raw(NonNull::new(start.cast()).unwrap(), 2 * PAGE)
    }
}

/// Accesses memory of which only one page can be accessed.
fn access_edges(is_guarded: bool) {
    let region = map_pages([ACCESSIBLE, libc::PROT_NONE]);
    let mut bytes = [0; 100];
    for (offset, len, is_mapped) in [
        (PAGE - 100, 100, true),
        (PAGE - 99, 100, false),
        (PAGE - 8, 8, true),
        (PAGE - 4, 4, true),
        (PAGE - 4, 8, false),
        (PAGE, 8, false),
        (PAGE, 4, false),
        (PAGE, 1, false),
        (0, 0, true),
    ] {
        assert_eq!(region.has_cheap_copies(), is_guarded);
        assert_eq!(region.try_copy_in(offset, &[7; 100][..len]), is_mapped, "{len} bytes at {offset}");
        assert_eq!(region.try_copy_out(offset, &mut bytes[..len]), is_mapped, "{len} bytes at {offset}");
    }
    assert_eq!(bytes, [7; 100]);
    assert_eq!((region.fetch_add(0, 5), region.fetch_add(PAGE, 5)), (Some(0), None));
    assert_eq!((region.compare_swap(0, 4, 9), region.compare_swap(0, 5, 9)), (Some(5), Some(5)));
    assert_eq!((region.compare_swap(PAGE, 0, 9), region.fetch_add(0, 0)), (None, Some(9)));

    let region = map_pages([libc::PROT_NONE, ACCESSIBLE]);
    assert!(!region.try_copy_in(PAGE - 99, &[7; 100]));
    assert!(region.try_copy_out(PAGE, &mut bytes[..1]));
    assert_eq!(bytes[0], 0, "the last byte is not written if others are missing");

    let mut payload = Payload::default();
    payload.push_region(Arc::new(region), PAGE - 1, 2);
    assert_eq!(payload.try_to_vec(), None);
    assert_eq!(payload.slice(1, 1).try_to_vec(), Some(vec![0]));
}

/// Copies a word while another thread accesses it.
fn copy_words_at_once() {
    let region = map_pages([ACCESSIBLE; 2]);
    let address = std::ptr::with_exposed_provenance_mut(region.address() as usize);
    // SAFETY: mapped, and never unmapped.
    let word = unsafe { AtomicU64::from_ptr(address) };
    let is_whole = |word: u64| word == 0 || word == u64::MAX;
    let (is_done, started) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            while !is_done.load(Ordering::Relaxed) {
                assert!(is_whole(word.load(Ordering::Relaxed)));
                word.store(u64::MAX, Ordering::Relaxed);
            }
        });
        started.wait();
        for _ in 0..200_000 {
            let mut bytes = [0; 8];
            assert!(region.try_copy_out(0, &mut bytes) && region.try_copy_in(0, &[0; 8]));
            if !is_whole(u64::from_ne_bytes(bytes)) {
                is_done.store(true, Ordering::Relaxed);
                panic!("{bytes:x?}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Accesses memory that is not mapped in a child with this action of the signal, and guarded copies. Returns the signal that
/// ends the child.
fn fault_in_child(handler: usize, flags: c_int) -> c_int {
    // SAFETY: the child calls nothing that needs another thread.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            libc::sigaction(libc::SIGSEGV, &action, null_mut());
            guard_copies();
            // The child ends if the fault happens again and again.
            libc::alarm(10);
            std::ptr::null::<u8>().wrapping_add(8).read_volatile();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFSIGNALED(status), "status {status:#x}");
        libc::WTERMSIG(status)
    }
}

/// Waits until the copies of the thread are no longer guarded.
fn copy_until_unguarded() {
    let region = map_pages([ACCESSIBLE; 2]);
    assert!((0..2000).all(|_| region.try_copy_in(0, &[1])));
    assert!(!region.has_cheap_copies());
}

#[test]
fn copies_survive_next_to_handlers_of_the_program() {
    let handler = count_signal as *const () as usize;
    assert_eq!(fault_in_child(libc::SIG_DFL, 0), libc::SIGSEGV);
    assert_eq!(fault_in_child(libc::SIG_IGN, 0), libc::SIGSEGV);
    assert_eq!(fault_in_child(handler, libc::SA_RESETHAND), libc::SIGSEGV);
    access_edges(false);
    handle_signals();
    guard_copies();
    access_edges(true);
    copy_words_at_once();
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 0);
    // SAFETY: the handler counts the signal.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 1, "other signals reach the program");
    // The kernel ends a program that blocks the signal of a fault.
    let blocking = std::thread::spawn(|| {
        assert!(map_pages([ACCESSIBLE; 2]).has_cheap_copies());
        // SAFETY: the set is valid.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, null_mut());
        }
        copy_until_unguarded();
        access_edges(false);
    });
    blocking.join().unwrap();
    access_edges(true);
    // The program replaces the handler.
    handle_signals();
    copy_until_unguarded();
    access_edges(false);
    guard_copies();
    access_edges(false);
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 1);
}
