//! Access to memory that may be unmapped, without a system call: the signal of a fault ends the access.
//!
//! Each function that accesses such memory does that with its first instruction. A handler of SIGSEGV and SIGBUS continues
//! with [`failed`] in its place, and passes all other signals to the handler that was installed before.
//!
//! Invariant: an access is guarded only if the handler is installed, and the thread does not block its signals.

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
    /// Whether the thread receives the signals, and the number of accesses for which that is known.
    static RECEIVES: Cell<(bool, u16)> = const { Cell::new((false, 0)) };
}

/// Installs the handler, unless it was installed before. If the program has replaced it since, copies are no longer
/// guarded.
pub fn guard_copies() {
    let handler = on_fault as *const ();
    FORMER.get_or_init(|| {
        let former = SIGNALS.map(action);
        for (signal, former) in SIGNALS.into_iter().zip(&former) {
            // Without SA_RESETHAND: the handler stays.
            let inherited = former.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
            let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | inherited;
            let new = sigaction { sa_sigaction: handler.expose_provenance(), sa_flags: flags, ..*former };
            // SAFETY: the handler runs at any point of the program, and calls only functions that allow that.
            unsafe { sigaction(signal, &new, null_mut()) };
        }
        former
    });
    check_installed();
}

/// Checks whether the program has replaced the handler.
fn check_installed() {
    let handler = (on_fault as *const ()).addr();
    let is_installed = SIGNALS.iter().all(|signal| action(*signal).sa_sigaction == handler);
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

/// Copies bytes to or from `shared`. An aligned word of 4 or 8 bytes is copied at once, otherwise the last byte last.
/// Returns `false` if memory is missing, and `None` if the copy would not be guarded.
///
/// # Safety
/// The ranges do not overlap, and each is valid or not mapped. No other reference to them is in use.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, shared: *const u8) -> Option<bool> {
    if !is_guarded() {
        return None;
    }
    let is_word = shared.addr().is_multiple_of(len.max(1));
    // SAFETY: guaranteed by the caller.
    let has_failed = unsafe {
        match len {
            0 => false,
            4 if is_word => move_4(to, from),
            8 if is_word => move_8(to, from),
            _ => {
                let last = len - 1;
                move_bytes(to, from, 0, last)
                    || move_bytes(to.wrapping_add(last), from.wrapping_add(last), 0, 1)
            }
        }
    };
    Some(!has_failed)
}

/// Replaces 8 bytes by `new` if they are `expected`. Returns the value before as [`copy`].
///
/// # Safety
/// The address is a multiple of 8, and the bytes are valid or not mapped.
pub(crate) unsafe fn compare_swap(word: *mut u8, expected: u64, new: u64) -> Option<Option<u64>> {
    let mut found = 0;
    // SAFETY: guaranteed by the caller.
    is_guarded().then(|| (!unsafe { exchange(word, expected, new, &mut found) }).then_some(found))
}

/// Adds to 8 bytes, modulo 2⁶⁴. Returns the value before as [`copy`].
///
/// # Safety
/// As [`compare_swap`].
pub(crate) unsafe fn fetch_add(word: *mut u8, add: u64) -> Option<Option<u64>> {
    let mut found = 0;
    // SAFETY: guaranteed by the caller.
    is_guarded().then(|| (!unsafe { exchange_add(word, add, &mut found) }).then_some(found))
}

/// Whether accesses of the calling thread are guarded.
#[inline]
pub(crate) fn is_guarded() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed) && receives_signals()
}

/// Whether the calling thread receives the signals of faults.
#[inline]
fn receives_signals() -> bool {
    match RECEIVES.get() {
        (_, 0) => check(),
        (receives, left) => {
            RECEIVES.set((receives, left - 1));
            receives
        }
    }
}

/// Checks whether accesses of the calling thread are guarded.
#[cold]
fn check() -> bool {
    check_installed();
    // SAFETY: the set is valid.
    let receives = unsafe {
        let mut blocked = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked);
        SIGNALS.iter().all(|signal| libc::sigismember(&blocked, *signal) == 0)
    };
    RECEIVES.set((receives, CHECK_INTERVAL));
    receives && IS_INSTALLED.load(Ordering::Relaxed)
}

/// Number of accesses of a thread between two checks: the program can have changed the signals.
const CHECK_INTERVAL: u16 = 1000;

/// Copies bytes. Returns whether it has failed, as all of these functions.
#[unsafe(naked)]
unsafe extern "sysv64" fn move_bytes(to: *mut u8, from: *const u8, _unused: usize, len: usize) -> bool {
    naked_asm!("rep movsb", "xor eax, eax", "ret")
}

#[unsafe(naked)]
unsafe extern "sysv64" fn move_4(to: *mut u8, from: *const u8) -> bool {
    naked_asm!("mov eax, [rsi]", "jmp {}", sym store_4)
}

#[unsafe(naked)]
unsafe extern "sysv64" fn move_8(to: *mut u8, from: *const u8) -> bool {
    naked_asm!("mov rax, [rsi]", "jmp {}", sym store_8)
}

/// The second half of [`move_4`].
#[unsafe(naked)]
unsafe extern "sysv64" fn store_4() {
    naked_asm!("mov [rdi], eax", "xor eax, eax", "ret")
}

/// The second half of [`move_8`].
#[unsafe(naked)]
unsafe extern "sysv64" fn store_8() {
    naked_asm!("mov [rdi], rax", "xor eax, eax", "ret")
}

#[unsafe(naked)]
unsafe extern "sysv64" fn exchange(word: *mut u8, expected: u64, new: u64, found: &mut u64) -> bool {
    naked_asm!("mov rax, rsi", "jmp {}", sym exchange_rax)
}

/// The second half of [`exchange`].
#[unsafe(naked)]
unsafe extern "sysv64" fn exchange_rax() {
    naked_asm!("lock cmpxchg [rdi], rdx", "mov [rcx], rax", "xor eax, eax", "ret")
}

#[unsafe(naked)]
unsafe extern "sysv64" fn exchange_add(word: *mut u8, add: u64, found: &mut u64) -> bool {
    naked_asm!("lock xadd [rdi], rsi", "mov [rdx], rsi", "xor eax, eax", "ret")
}

/// Returns from a function whose first instruction has failed.
#[unsafe(naked)]
unsafe extern "sysv64" fn failed() {
    naked_asm!("mov eax, 1", "ret")
}

/// Whether an instruction can access memory that is not mapped.
fn is_guarded_instruction(address: usize) -> bool {
    let functions = [
        move_bytes as *const (),
        move_4 as *const (),
        move_8 as *const (),
        store_4 as *const (),
        store_8 as *const (),
        exchange_rax as *const (),
        exchange_add as *const (),
    ];
    functions.iter().any(|function| function.addr() == address)
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers.
    let (code, machine) = unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext) };
    let next = &mut machine.gregs[libc::REG_RIP as usize];
    let is_fault = code > 0;
    if is_fault && is_guarded_instruction(*next as usize) {
        *next = (failed as *const ()).addr() as i64;
        return;
    }
    let at = SIGNALS.iter().position(|known| *known == signal);
    let Some(former) = at.zip(FORMER.get()).map(|(at, former)| &former[at]) else { return };
    if former.sa_flags & libc::SA_RESETHAND != 0 {
        IS_INSTALLED.store(false, Ordering::Relaxed);
        // SAFETY: the action that the kernel would set.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
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
