//! The macros in front of a logger that blocks.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::queue::MAX_LINES;
use crate::{Level, LevelFilter, Log, Metadata, Record};

/// A logger that blocks until it is opened.
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    lines: Mutex<Vec<String>>,
}

static GATE: Gate =
    Gate { is_open: Mutex::new(false), opened: Condvar::new(), lines: Mutex::new(Vec::new()) };

impl Log for Gate {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        self.lines.lock().unwrap().push(format!("{} {} {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// One test, because the queue and the logger belong to the process.
#[test]
fn counts_lines_that_a_blocked_logger_loses() {
    crate::set_logger(&GATE).unwrap();
    crate::set_max_level(LevelFilter::Info);
    for number in 0..2 * MAX_LINES {
        crate::info!("line {number}");
    }
    crate::debug!("below the level");
    assert!(!crate::flush(Duration::from_millis(1)), "the logger blocks");
    *GATE.is_open.lock().unwrap() = true;
    GATE.opened.notify_all();
    assert!(crate::flush(Duration::from_secs(100)));
    let lines = std::mem::take(&mut *GATE.lines.lock().unwrap());
    assert_eq!(lines[0], "INFO isolane_log::tests line 0");
    let lost: usize = lines.iter().filter_map(|line| lost_lines(line)).sum();
    assert!(lost >= MAX_LINES - 1, "{lost}");
    assert_eq!(lines.iter().filter(|line| line.contains(" line ")).count() + lost, 2 * MAX_LINES);
    assert_eq!(crate::lost_lines(), lost as u64);

    for number in 0..1000 {
        crate::limited!(Warn, "refused {number}");
    }
    assert!(crate::flush(Duration::from_secs(100)));
    let lines = std::mem::take(&mut *GATE.lines.lock().unwrap());
    let counted = |line: &String| match line.split_once('(') {
        Some((_, count)) => count.split(' ').next().unwrap().parse::<usize>().unwrap(),
        None => 1,
    };
    assert_eq!(lines[0], format!("{} isolane_log::tests refused 0", Level::Warn));
    assert_eq!(lines.iter().map(counted).sum::<usize>(), 1000, "{lines:?}");
}

fn lost_lines(line: &str) -> Option<usize> {
    let (_, text) = line.split_once("WARN isolane_log::queue ")?;
    text.split_once(" log lines lost")?.0.parse().ok()
}
