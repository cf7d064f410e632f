//! The queue of lines, and the thread that passes them to the logger.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use facade::{Level, Record};

use crate::limit::{Admission, INTERVAL, Limit, now};

/// Place of a macro in the code.
#[doc(hidden)]
#[derive(Debug)]
pub struct Place {
    pub module: &'static str,
    pub file: &'static str,
    pub line: u32,
}

#[derive(Debug)]
struct Line {
    level: Level,
    place: &'static Place,
    message: String,
}

impl Line {
    fn new(level: Level, place: &'static Place, message: fmt::Arguments<'_>) -> Self {
        Line { level, place, message: message.to_string() }
    }

    fn log(&self) {
        let Place { module, file, line } = *self.place;
        let mut record = Record::builder();
        record.level(self.level).target(module).module_path_static(Some(module));
        record.file_static(Some(file)).line(Some(line));
        facade::logger().log(&record.args(format_args!("{}", self.message)).build());
    }
}

#[derive(Debug)]
enum Entry {
    Line(Line),
    /// The first line that a limit has suppressed.
    Suppressed(Limit, Line),
    /// Text for stderr.
    Text(String),
    Flush(SyncSender<()>),
}

/// Logs a line.
#[doc(hidden)]
#[cold]
pub fn log_line(level: Level, place: &'static Place, message: fmt::Arguments<'_>) {
    send(Entry::Line(Line::new(level, place, message)));
}

/// Logs a line, or counts it.
#[doc(hidden)]
#[cold]
pub fn log_limited(limit: &Limit, level: Level, place: &'static Place, message: fmt::Arguments<'_>) {
    match limit.admit(now()) {
        Admission::Line => log_line(level, place, message),
        Admission::First => {
            if !send(Entry::Suppressed(limit.clone(), Line::new(level, place, message))) {
                count_lost(limit.take_suppressed().saturating_sub(1));
            }
        }
        Admission::Counted => {}
    }
}

/// Queues an entry. Returns `false` if it does not fit.
fn send(entry: Entry) -> bool {
    let is_queued = QUEUE.try_send(entry).is_ok();
    if !is_queued {
        count_lost(1);
    }
    is_queued
}

fn count_lost(lines: u64) {
    LOST.fetch_add(lines, Ordering::Relaxed);
    LOST_TOTAL.fetch_add(lines, Ordering::Relaxed);
}

/// Returns the number of lines that were lost since the start of the program, because the logger is too slow.
pub fn lost_lines() -> u64 {
    LOST_TOTAL.load(Ordering::Relaxed)
}

/// Writes text to stderr as it is, after all lines before it, and without waiting. Errors are ignored.
pub fn write_stderr(text: String) {
    send(Entry::Text(text));
}

/// Waits until all lines before have been logged, and the counts of limited ones. Returns `false` after `timeout`, because
/// the logger blocks.
pub fn flush(timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let (done, is_done) = sync_channel(1);
    let mut entry = Entry::Flush(done);
    loop {
        entry = match QUEUE.try_send(entry) {
            Ok(()) => {
                return is_done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok();
            }
            Err(error) => match error {
                std::sync::mpsc::TrySendError::Full(entry) => entry,
                std::sync::mpsc::TrySendError::Disconnected(_) => return false,
            },
        };
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(FLUSH_RETRY_INTERVAL);
    }
}

static QUEUE: LazyLock<SyncSender<Entry>> = LazyLock::new(|| {
    let (sender, receiver) = sync_channel(MAX_LINES);
    // Without the thread, every line counts as lost.
    let _ = std::thread::Builder::new().name("isolane-log".into()).spawn(move || run(&receiver));
    sender
});

/// Lines that did not fit, since the last report.
static LOST: AtomicU64 = AtomicU64::new(0);
static LOST_TOTAL: AtomicU64 = AtomicU64::new(0);

fn run(queue: &Receiver<Entry>) {
    let mut suppressed: Vec<(Instant, Limit, Line)> = Vec::new();
    loop {
        let received = match suppressed.iter().map(|(due, ..)| *due).min() {
            Some(due) => queue.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = Instant::now();
        suppressed
            .extract_if(.., |(due, ..)| *due <= now)
            .for_each(|(_, limit, line)| log_count(&limit, line));
        match received {
            Ok(Entry::Line(line)) => line.log(),
            Ok(Entry::Suppressed(limit, line)) => suppressed.push((now + INTERVAL, limit, line)),
            // The reader can be gone.
            Ok(Entry::Text(text)) => drop(std::io::stderr().write_all(text.as_bytes())),
            Ok(Entry::Flush(done)) => {
                suppressed.drain(..).for_each(|(_, limit, line)| log_count(&limit, line));
                log_lost();
                facade::logger().flush();
                let _ = done.try_send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        log_lost();
    }
}

/// Logs the first of the suppressed lines, with their number.
fn log_count(limit: &Limit, mut line: Line) {
    let count = limit.take_suppressed();
    if count > 1 {
        let _ = write!(line.message, " ({count} such lines within {} s)", INTERVAL.as_secs());
    }
    line.log();
}

fn log_lost() {
    let lost = LOST.swap(0, Ordering::Relaxed);
    if lost > 0 {
        let message = format!("{lost} log lines lost: the reader of the log is too slow");
        Line { level: Level::Warn, place: crate::here!(), message }.log();
    }
}

/// Lines that wait for the logger.
pub(crate) const MAX_LINES: usize = 1024;
const FLUSH_RETRY_INTERVAL: Duration = Duration::from_millis(1);
