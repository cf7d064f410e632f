//! Log lines and messages on stderr. No thread waits for its reader, except for a moment at the end of the process.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use env_logger::Builder;
use env_logger::fmt::Formatter;
use log::{Level, LevelFilter, Record};
use serde::Serialize;

use crate::choice::Choice;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Formats of log lines.
pub const LOG_FORMATS: [Choice<LogFormat>; 2] = [
    (
        "text",
        "Time, level, and message; under journald, its priority instead of time and level",
        LogFormat::Text,
    ),
    ("json", "One JSON object per line, with time, level, and message", LogFormat::Json),
];

/// Sends log lines of `level` and above to stderr, and panics also.
pub fn start(level: LevelFilter, format: LogFormat) {
    let mut builder = Builder::new();
    // The level can change later, and is checked before a line is made.
    builder.filter_level(LevelFilter::Trace);
    match format {
        LogFormat::Json => builder.format(write_json),
        LogFormat::Text if is_journal() => builder.format(write_with_priority),
        LogFormat::Text => builder.format_target(false),
    };
    builder.init();
    log::set_max_level(level);
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        log::error!("thread {name} panicked: {panic}\n{}", std::backtrace::Backtrace::capture());
        // The process ends with this thread.
        if name == "main" {
            log::flush(MAX_WAIT);
        }
    }));
}

/// Writes `text` to stderr after all log lines, and ends logging. Does not wait for a reader that has stopped.
pub fn finish(text: Option<String>) {
    text.into_iter().for_each(log::write_stderr);
    log::flush(MAX_WAIT);
}

fn write_json(out: &mut Formatter, record: &Record<'_>) -> std::io::Result<()> {
    #[derive(Serialize)]
    struct Line {
        time: String,
        level: String,
        message: String,
    }
    let level = record.level().as_str().to_lowercase();
    let line = Line { time: out.timestamp_millis().to_string(), level, message: record.args().to_string() };
    writeln!(out, "{}", serde_json::to_string(&line)?)
}

/// Writes a line with a prefix that journald removes, see sd-daemon(3).
fn write_with_priority(out: &mut Formatter, record: &Record<'_>) -> std::io::Result<()> {
    let priority = match record.level() {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    record.args().to_string().lines().try_for_each(|line| writeln!(out, "<{priority}>{line}"))
}

/// Returns whether stderr is a stream of journald, see systemd.exec(5).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fs::metadata("/proc/self/fd/2").is_ok_and(|file| stream == format!("{}:{}", file.dev(), file.ino()))
}

/// Time for the reader of stderr at the end of the process.
const MAX_WAIT: Duration = Duration::from_secs(1);
