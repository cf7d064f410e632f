//! Copies to and from memory that may be unmapped, without a system call: the signal of a fault ends the copy.
//!
//! The copy is one instruction. A handler of SIGSEGV and SIGBUS continues after this instruction, and passes all other
//! signals to the handler that was installed before.
//!
//! Invariant: a copy is guarded only if the handler is installed, and the thread does not block its signals.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sigaction, siginfo_t, ucontext_t};

/// The signals of a fault.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The actions of the program, in the order of [`SIGNALS`].
static FORMER: OnceLock<[sigaction; 2]> = OnceLock::new();

thread_local! {
    /// Whether the thread receives the signals, once that is known.
    static RECEIVES: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Installs the handler, unless it was installed before. If the program has replaced it since, copies are no longer
/// guarded.
pub fn guard_copies() {
    let handler = on_fault as *const ();
    FORMER.get_or_init(|| {
        let former = SIGNALS.map(action);
        for (signal, former) in SIGNALS.into_iter().zip(&former) {
            let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | former.sa_flags & libc::SA_NODEFER;
            let new = sigaction { sa_sigaction: handler.expose_provenance(), sa_flags: flags, ..*former };
            // SAFETY: the handler runs at any point of the program, and calls only functions that allow that.
            unsafe { sigaction(signal, &new, null_mut()) };
        }
        former
    });
    let is_installed = SIGNALS.iter().all(|signal| action(*signal).sa_sigaction == handler.addr());
    IS_INSTALLED.store(is_installed, Ordering::Relaxed);
}

/// Returns the action of a signal.
fn action(signal: c_int) -> sigaction {
    // SAFETY: all fields are numbers, and the pointers are valid.
    unsafe {
        let mut action: sigaction = zeroed();
        sigaction(signal, std::ptr::null(), &mut action);
        action
    }
}

/// Copies bytes, the last one last. Returns `false` if memory is missing, and `None` if the copy would not be guarded.
///
/// # Safety
/// The ranges do not overlap, and each is valid or not mapped. No other reference to them is in use.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Option<bool> {
    if !is_guarded() {
        return None;
    }
    let last = len.saturating_sub(1);
    // SAFETY: guaranteed by the caller.
    let left = unsafe {
        move_bytes(to, from, 0, last)
            + move_bytes(to.wrapping_add(last), from.wrapping_add(last), 0, len - last)
    };
    Some(left == 0)
}

/// Whether copies of the calling thread are guarded.
#[inline]
pub(crate) fn is_guarded() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed) && receives_signals()
}

/// Whether the calling thread receives the signals of faults.
#[inline]
fn receives_signals() -> bool {
    RECEIVES.get().unwrap_or_else(|| {
        // SAFETY: the set is valid.
        let receives = unsafe {
            let mut blocked = zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked);
            SIGNALS.iter().all(|signal| libc::sigismember(&blocked, *signal) == 0)
        };
        RECEIVES.set(Some(receives));
        receives
    })
}

/// Copies bytes with its first instruction. Returns the number of bytes that are left after a fault.
#[unsafe(naked)]
unsafe extern "sysv64" fn move_bytes(to: *mut u8, from: *const u8, _unused: usize, len: usize) -> usize {
    naked_asm!("rep movsb", "mov rax, rcx", "ret")
}

/// Length of the first instruction of [`move_bytes`].
const MOVE_LEN: i64 = 2;

unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers.
    let (code, machine) = unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext) };
    let next = &mut machine.gregs[libc::REG_RIP as usize];
    let is_fault = code > 0;
    if is_fault && *next == (move_bytes as *const ()).addr() as i64 {
        *next += MOVE_LEN;
        return;
    }
    let at = SIGNALS.iter().position(|known| *known == signal);
    let Some(former) = at.zip(FORMER.get()).map(|(at, former)| &former[at]) else { return };
    match former.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: the default action. The fault happens again after the return, another signal only if it is raised.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        // SAFETY: the handler that the program has installed, with the type that its flags name.
        handler if former.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            transmute::<usize, unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
                signal, info, context,
            );
        },
        // SAFETY: as above.
        handler => unsafe { transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal) },
    }
}
