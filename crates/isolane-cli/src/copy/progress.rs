//! Progress bar of a transfer, on a terminal only.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Progress of a transfer.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// Milliseconds from the start to the last transferred bytes.
    moved_ms: Arc<AtomicU64>,
}

impl Progress {
    /// Starts at 0 bytes. Without a known length, shows a spinner.
    pub fn new(what: &'static str, length: Option<u64>, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let (_, columns) = Term::stderr().size();
        let progress = Progress::on(target, what, length, columns, Instant::now());
        if shown {
            // Also redraws a transfer that has stalled.
            progress.bar.enable_steady_tick(TICK);
        }
        progress
    }

    fn on(
        target: ProgressDrawTarget,
        what: &'static str,
        length: Option<u64>,
        columns: u16,
        start: Instant,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(length, target).with_message(what);
        let moved_ms = Arc::new(AtomicU64::new(0));
        let moved = Arc::clone(&moved_ms);
        let left = move |state: &ProgressState, text: &mut dyn Write| {
            let idle = start.elapsed().saturating_sub(Duration::from_millis(moved.load(Ordering::Relaxed)));
            // An error of the terminal has no remedy.
            let _ = text.write_str(&remaining(idle, state));
        };
        if let Ok(style) = ProgressStyle::with_template(template(length.is_some(), columns)) {
            bar.set_style(style.with_key("left", left));
        }
        Progress { bar, start, moved_ms }
    }

    /// Adds transferred bytes.
    pub fn advance(&mut self, bytes: u64) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(elapsed, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Removes the bar.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// Returns a template whose line fits.
fn template(has_length: bool, columns: u16) -> &'static str {
    match (has_length, columns) {
        (true, WIDE..) => {
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {left}"
        }
        (true, _) => "{percent}% {binary_bytes_per_sec}, {left}",
        (false, _) => "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec}",
    }
}

/// Describes the remaining time of a transfer without progress for `idle`.
fn remaining(idle: Duration, state: &ProgressState) -> String {
    let eta = state.eta();
    match idle {
        _ if idle >= STALLED => format!("stalled for {} s", idle.as_secs()),
        // The rate is not known yet.
        _ if eta.is_zero() && state.len().is_some_and(|len| state.pos() < len) => "starting".to_owned(),
        _ => format!("{:#} left", HumanDuration(eta)),
    }
}

/// Columns of a terminal with room for the bar.
const WIDE: u16 = 80;
/// Time without a byte after which a transfer has stalled.
const STALLED: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use indicatif::TermLike;

    use super::*;

    /// A terminal that keeps its output.
    #[derive(Debug, Clone)]
    struct Screen {
        columns: u16,
        written: Arc<Mutex<String>>,
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            self.columns
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.written.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.written.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line of a transfer that started 60 s ago, after its first bytes have moved if `moves`.
    fn line(columns: u16, moves: bool) -> String {
        let screen = Screen { columns, written: Arc::default() };
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let start = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let mut progress = Progress::on(target, "copying", Some(1 << 30), columns, start);
        if moves {
            progress.advance(100 << 20);
        }
        progress.bar.force_draw();
        screen.written.lock().unwrap().trim_end().to_owned()
    }

    #[test]
    fn line_fits_into_terminal() {
        for columns in [40, 79, 80, 200] {
            let line = line(columns, true);
            assert!(line.chars().count() <= columns.into() && line.contains("/s"), "{columns}: {line:?}");
        }
    }

    #[test]
    fn shows_stalled_transfer() {
        for columns in [40, 100] {
            let stalled = line(columns, false);
            assert!(stalled.contains("stalled for ") && !stalled.contains("left"), "{stalled:?}");
            assert!(!line(columns, true).contains("stalled"));
        }
    }
}
