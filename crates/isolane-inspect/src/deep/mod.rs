//! Times of interrupt handlers, tasks, and disk requests, from trace events of the kernel.
//!
//! [`measure`] creates an instance of tracefs, reads its events as text for a few seconds, and removes the instance.
//!
//! Invariant: time, memory, and length of the text are bounded, and the instance is removed at the end, also after an
//! error.

mod event;
mod instance;
mod summary;

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use isolane_observe::verdict::Measured;

pub use event::{Event, EventKind, Request, Task, decode_event};
pub use instance::{Cores, Unavailable};

use self::instance::Instance;
use self::summary::Summary;
use crate::placement;
use crate::system::{Root, SMALL, decode_status_field};

/// Longest measurement.
pub const MAX_DURATION: Duration = Duration::from_secs(10);
/// Pause between two reads of events.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest time after the end for reading the remaining events.
const GRACE: Duration = Duration::from_secs(2);
/// Most bytes of events of one measurement.
const MAX_BYTES: usize = 1 << 30;
/// Longest line of text; the rest of a longer one is skipped.
const MAX_LINE: usize = 4096;

/// Measures for some time, at most 10 s, or until `is_stopped`. The calling thread moves to other cores if there are
/// any.
///
/// # Errors
/// The directory and the requirement.
pub fn measure(
    cores: &Cores,
    duration: Duration,
    is_stopped: impl Fn() -> bool,
) -> Result<Measured, Unavailable> {
    placement::avoid(&cores.cpus);
    let mut instance = Instance::create(Path::new("/"), cores)?;
    let mut summary = Summary::new(&cores.threads);
    let mut lines = Lines::default();
    let mut add = |line: &str| summary.add_line(line);
    let start = Instant::now();
    let end = start + duration.min(MAX_DURATION);
    let is_over = || Instant::now() >= end || is_stopped();
    while !is_over() && lines.taken < MAX_BYTES {
        std::thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
        lines.drain(instance.events(), is_over, &mut add);
    }
    instance.stop();
    let seconds = start.elapsed().as_secs_f64();
    let latest = Instant::now() + GRACE;
    lines.drain(instance.events(), || Instant::now() >= latest || is_stopped(), &mut add);
    let mut measured = summary.finish(seconds);
    measured.not_seen = instance.not_seen();
    if let Ok(root) = Root::system() {
        complete(&root, &mut measured);
    }
    Ok(measured)
}

/// Returns the sums of a text of events.
pub fn summarize(text: &[u8], threads: &[u32], seconds: f64) -> Measured {
    let mut summary = Summary::new(threads);
    Lines::default().split(text, &mut |line| summary.add_line(line));
    summary.finish(seconds)
}

/// Adds the processes of threads and the names of disks.
fn complete(root: &Root, measured: &mut Measured) {
    let process = |thread: u32| {
        let status = root.read(&format!("/proc/{thread}/status"), SMALL).ok()?;
        decode_status_field(&status, "Tgid").ok()?.trim().parse().ok()
    };
    for task in &mut measured.tasks {
        task.process = process(task.thread);
    }
    for disk in &mut measured.disks {
        let path = root.resolve(&format!("/sys/dev/block/{}", disk.disk));
        if let Some(name) = path.ok().as_ref().and_then(|path| path.rsplit('/').next()) {
            disk.disk = name.to_owned();
        }
        for issuer in &mut disk.issuers {
            issuer.process = process(issuer.thread);
        }
    }
}

/// Splits text into lines.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    taken: usize,
}

impl Lines {
    /// Passes all lines that can be read now to `f`, until `is_over`.
    fn drain(&mut self, events: &mut impl Read, is_over: impl Fn() -> bool, f: &mut impl FnMut(&str)) {
        let mut chunk = [0; 64 << 10];
        while self.taken < MAX_BYTES && !is_over() {
            match events.read(&mut chunk) {
                Ok(0) => return,
                Ok(len) => self.split(&chunk[..len], f),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // `WouldBlock`: no more events now. After another error, the numbers so far are valid.
                Err(_) => return,
            }
        }
    }

    fn split(&mut self, bytes: &[u8], f: &mut impl FnMut(&str)) {
        self.taken += bytes.len();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let space = MAX_LINE.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&piece[..piece.len().min(space)]);
            if piece.ends_with(b"\n") {
                f(&String::from_utf8_lossy(&self.partial));
                self.partial.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests;
