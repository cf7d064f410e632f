//! Log lines on stderr, if the environment variable `ISOLANE_LOG` has a level.
//!
//! Invariant: a program without the variable has neither lines nor a thread for them.

use std::io::{self, Write};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use isolane_shm::{process_id, with_signals_blocked};
use log::{LevelFilter, Log, Metadata, Record};

/// Starts the log at the first call.
pub(crate) fn start() {
    STARTED.call_once(|| {
        let Some(text) = std::env::var_os(VARIABLE) else { return };
        let text = text.to_string_lossy();
        let level = text.parse().unwrap_or_else(|_| {
            let levels = "off, error, warn, info, debug, or trace";
            let _ = writeln!(io::stderr(), "isolane: {VARIABLE}={text}: unknown level; use {levels}");
            LevelFilter::Off
        });
        if level > LevelFilter::Off && log::set_logger(&Stderr).is_ok() {
            let _ = PROCESS.set(process_id());
            log::set_max_level(level);
            // Starts the thread, whose signals are blocked now.
            with_signals_blocked(flush);
        }
    });
}

/// Waits until the lines are written, for a limited time. Ends the log in a child of `fork`, which has no thread for it.
pub(crate) fn flush() {
    if log::max_level() == LevelFilter::Off {
        return;
    }
    if PROCESS.get() == Some(&process_id()) {
        log::flush(FLUSH_TIMEOUT);
    } else {
        log::set_max_level(LevelFilter::Off);
    }
}

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_ascii_lowercase();
        // The reader can be gone.
        let _ = writeln!(io::stderr(), "isolane: {level}: {}", record.args());
    }

    fn flush(&self) {}
}

static STARTED: Once = Once::new();
/// The process that has the thread of the log.
static PROCESS: OnceLock<u64> = OnceLock::new();
const VARIABLE: &str = "ISOLANE_LOG";
/// Limit for a reader of stderr that does not read.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
