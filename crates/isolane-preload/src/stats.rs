//! Counts for `--stats`, printed when the program exits.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reason why a socket returned to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Shutdown,
    Fork,
    Exec,
    Duplicate,
    Call,
    Option,
    Error,
    Engine,
    Size,
    Epoll,
}

const REASONS: [&str; 10] =
    ["shutdown", "fork", "exec", "duplicate", "call", "option", "error", "engine", "size", "epoll"];

static ADOPTED: AtomicU64 = AtomicU64::new(0);
static RETURNED: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];
/// Messages and bytes by path.
static ENGINE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static KERNEL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// File of the report, or an empty path for stderr.
static FILE: OnceLock<std::ffi::OsString> = OnceLock::new();

/// Reads `ISOLANE_PRELOAD_STATS`.
pub(crate) fn read_environment() {
    if let Some(file) = std::env::var_os("ISOLANE_PRELOAD_STATS") {
        let _ = FILE.set(file);
    }
}

/// Returns `true` if the counts of messages are of interest.
#[inline]
pub(crate) fn are_printed() -> bool {
    FILE.get().is_some()
}

#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn adopted() {
    add(&ADOPTED, 1);
}

pub(crate) fn returned(reason: Reason) {
    add(&RETURNED[reason as usize], 1);
}

#[inline]
pub(crate) fn through_engine(bytes: usize) {
    if are_printed() {
        add(&ENGINE[0], 1);
        add(&ENGINE[1], bytes as u64);
    }
}

/// Records a call on a TCP connection of this process that the kernel has served; a result below 0 is an error.
#[inline]
pub(crate) fn through_kernel(result: isize) {
    if are_printed() {
        add_kernel(result);
    }
}

#[cold]
#[inline(never)]
fn add_kernel(result: isize) {
    if let Ok(bytes) = u64::try_from(result) {
        add(&KERNEL[0], 1);
        add(&KERNEL[1], bytes);
    }
}

/// Starts from zero in a child.
pub(crate) fn reset() {
    [&ADOPTED].into_iter().chain(&RETURNED).chain(&ENGINE).chain(&KERNEL).for_each(|counter| {
        counter.store(0, Ordering::Relaxed);
    });
}

/// Prints one line, unless the process had no connection.
pub(crate) fn report() {
    let Some(file) = FILE.get() else { return };
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    if get(&ENGINE[0]) + get(&KERNEL[0]) + get(&ADOPTED) == 0 {
        return;
    }
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().unwrap_or_default().display().to_string();
    let returned: Vec<_> = REASONS.iter().zip(&RETURNED).filter(|(_, count)| get(count) > 0).collect();
    let reasons: Vec<_> = returned.iter().map(|(reason, count)| format!("{reason} {}", get(count))).collect();
    let total: u64 = returned.iter().map(|(_, count)| get(count)).sum();
    let list = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    let line = format!(
        "isolane: {name} {}: {} adopted, {total} returned{list}; engine: {} messages, {} bytes; kernel: {} messages, {} bytes\n",
        std::process::id(),
        get(&ADOPTED),
        get(&ENGINE[0]),
        get(&ENGINE[1]),
        get(&KERNEL[0]),
        get(&KERNEL[1]),
    );
    // The program has ended: nothing is left to do if this fails.
    let _ = if file.is_empty() {
        std::io::stderr().write_all(line.as_bytes())
    } else {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).open(file).and_then(|mut file| file.write_all(line.as_bytes()))
    };
}
