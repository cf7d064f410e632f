//! Errors and warnings on stderr, because the program has no other log of the library.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use isolane_shm::with_only_faults_unblocked;

use crate::Errno;

struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // A program without stderr has no warnings.
        let _ = writeln!(std::io::stderr(), "isolane: {}", record.args());
    }

    fn flush(&self) {}
}

/// Writes warnings to stderr from now on.
pub fn install_logger() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}

/// Reports an error that the interface cannot. Waits for a reader of stderr for a moment, because the program may end
/// now.
pub fn report(error: &str) {
    with_only_faults_unblocked(|| log::write_stderr(format!("isolane: {error}\n")));
    log::flush(REPORT_TIMEOUT);
}

/// Reports a wrong value, for which the interface has no other way.
pub fn refuse(error: impl Display) -> Errno {
    report(&error.to_string());
    Errno::INVALID
}

/// Reports why a queue pair cannot be created, if the system has no number for it.
pub fn refuse_queue_pair(error: std::io::Error) -> Errno {
    if error.raw_os_error().is_none() {
        report(&format!("cannot create a queue pair: {error}"));
    }
    error.into()
}

const REPORT_TIMEOUT: Duration = Duration::from_millis(100);
