//! Signal state of programs and threads that this process starts.
//!
//! A child inherits the signal mask of the thread that starts it and all ignored signals. A service must start with
//! neither, because it is controlled by signals.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `program` start with no signal blocked and none ignored, whatever the calling thread has blocked or ignored.
pub fn start_with_default_signals(program: &mut Command) -> &mut Command {
    let reset = || {
        // SAFETY: plain C structures, for which all bits zero is a valid value; the kernel only reads them. Both calls
        // are safe to make in a child between fork and exec. A signal whose action cannot be set is not valid here.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            for signal in 1..=libc::SIGRTMAX() {
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigprocmask(libc::SIG_SETMASK, &action.sa_mask, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { program.pre_exec(reset) }
}

/// Runs code that can start threads. They start with all signals blocked, so that only the program's own threads
/// handle signals.
pub fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    let _restored = BlockedSignals::new(&[]);
    f()
}

/// Runs code as [`with_signals_blocked`], but the threads handle their own faults: they access memory of the program,
/// which it can unmap.
pub fn with_only_faults_unblocked<T>(f: impl FnOnce() -> T) -> T {
    let _restored = BlockedSignals::new(&[libc::SIGSEGV, libc::SIGBUS]);
    f()
}

struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new(exceptions: &[libc::c_int]) -> Self {
        // SAFETY: `sigset_t` is plain bits; the functions write both local sets before this code reads them.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            for signal in exceptions {
                libc::sigdelset(&mut all, *signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the system wrote this set in `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// A mask or a set of ignored signals of `program`, as `/proc` shows it.
    fn signals(program: &mut Command, field: &str) -> u64 {
        let output = program.args(["/proc/self/status"]).output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_else(|| panic!("{status}"));
        // The C library reserves signals 32 and 33.
        u64::from_str_radix(line[field.len()..].trim(), 16).unwrap() & !(0b11 << 31)
    }

    #[test]
    fn threads_receive_no_signal_but_their_faults() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
            [libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS].map(|signal| mask & (1 << (signal - 1)) != 0)
        };
        let thread = || std::thread::spawn(blocked).join().unwrap();
        let before = thread();
        assert_eq!(with_only_faults_unblocked(thread), [true, false, false]);
        assert_eq!(with_signals_blocked(thread), [true; 3]);
        assert_eq!(thread(), before);
    }

    #[test]
    fn started_program_has_no_blocked_or_ignored_signals() {
        // SAFETY: as above. The mask belongs to the test's own thread; SIGURG is ignored by default.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            libc::signal(libc::SIGURG, libc::SIG_IGN);
        }
        assert_ne!(signals(&mut Command::new("cat"), "SigBlk:"), 0, "the test blocks nothing");
        assert_ne!(signals(&mut Command::new("cat"), "SigIgn:"), 0, "the test ignores nothing");
        for field in ["SigBlk:", "SigIgn:"] {
            assert_eq!(signals(start_with_default_signals(&mut Command::new("cat")), field), 0, "{field}");
        }
    }
}
