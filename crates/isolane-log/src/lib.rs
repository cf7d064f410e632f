//! Log macros that never wait: a bounded queue in front of the logger of the program.
//!
//! The macros have the names and levels of the crate `log`. A thread of this crate passes the lines to the logger that
//! the program has installed. A logger that blocks, because its pipe is full or its terminal is stopped, therefore
//! blocks only that thread. Lines that do not fit into the queue are counted, and the count is logged as soon as there
//! is space again.
//!
//! [`limited!`] is for lines that a peer or a device can cause any number of times: one line per second, with a count.
//!
//! Invariant: neither a macro nor [`write_stderr`] waits for a logger, a file, or a terminal.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod limit;
mod queue;

pub use facade::{
    Level, LevelFilter, Log, Metadata, Record, SetLoggerError, max_level, set_boxed_logger, set_logger,
    set_max_level,
};
pub use limit::Limit;
pub use queue::{Place, flush, log_limited, log_line, lost_lines, write_stderr};

/// Logs a line at level error.
#[macro_export]
macro_rules! error { ($($arg:tt)+) => { $crate::line!(Error, $($arg)+) } }

/// Logs a line at level warn.
#[macro_export]
macro_rules! warn { ($($arg:tt)+) => { $crate::line!(Warn, $($arg)+) } }

/// Logs a line at level info.
#[macro_export]
macro_rules! info { ($($arg:tt)+) => { $crate::line!(Info, $($arg)+) } }

/// Logs a line at level debug.
#[macro_export]
macro_rules! debug { ($($arg:tt)+) => { $crate::line!(Debug, $($arg)+) } }

/// Logs a line at level trace.
#[macro_export]
macro_rules! trace { ($($arg:tt)+) => { $crate::line!(Trace, $($arg)+) } }

/// Logs a line at a level: `line!(Warn, "{peer}: refused")`.
#[macro_export]
macro_rules! line {
    ($level:ident, $($arg:tt)+) => {
        if $crate::is_enabled($crate::Level::$level) {
            $crate::log_line($crate::Level::$level, $crate::here!(), ::core::format_args!($($arg)+));
        }
    };
}

/// Logs at most one line per second, and counts the others: `limited!(Warn, "{peer}: refused")`.
///
/// Each place in the code has its limit; `limited!(by limit, Warn, …)` uses the [`Limit`] of a caller.
#[macro_export]
macro_rules! limited {
    (by $limit:expr, $level:ident, $($arg:tt)+) => {
        if $crate::is_enabled($crate::Level::$level) {
            $crate::log_limited(&$limit, $crate::Level::$level, $crate::here!(), ::core::format_args!($($arg)+));
        }
    };
    ($level:ident, $($arg:tt)+) => {{
        static LIMIT: ::std::sync::LazyLock<$crate::Limit> = ::std::sync::LazyLock::new($crate::Limit::default);
        $crate::limited!(by LIMIT, $level, $($arg)+)
    }};
}

/// The place of a macro in the code.
#[doc(hidden)]
#[macro_export]
macro_rules! here {
    () => {
        const { &$crate::Place { module: ::core::module_path!(), file: ::core::file!(), line: ::core::line!() } }
    };
}

/// Returns whether the program logs lines of this level.
#[doc(hidden)]
#[inline]
pub fn is_enabled(level: Level) -> bool {
    level <= facade::STATIC_MAX_LEVEL && level <= max_level()
}

#[cfg(test)]
mod tests;
