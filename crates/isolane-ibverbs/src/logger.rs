//! Warnings on stderr, because an unmodified program has no other log.

use std::io::Write;

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
pub(crate) fn install() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}
