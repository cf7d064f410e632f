//! Signals of the process.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator;

use crate::control;
use crate::failure::{Context, Failure};
use crate::logging;

/// Replaces the default actions of the signals that end a command, and of SIGUSR1.
pub fn listen() -> Result<iterator::Signals, Failure> {
    iterator::Signals::new(ending().into_iter().chain([SIGUSR1])).context("cannot listen for signals")
}

/// Makes signals without a meaning here have no effect: SIGXFSZ, so that a write beyond a limit of file sizes (`ulimit
/// -f`) fails, and SIGUSR2.
pub fn ignore_meaningless() {
    // A handler, so that programs that this one starts have the default actions. The flag is never read.
    for signal in [SIGXFSZ, SIGUSR2] {
        let registered = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
        registered.expect("the signal can be handled");
    }
}

/// Makes SIGINT, SIGTERM, and SIGHUP remove a file, print the result, and end the process.
pub fn remove_on_signal(path: PathBuf, result: String) -> Result<(), Failure> {
    // Prints nothing if the file has its final name already.
    report_on_signal(move || fs::remove_file(&path).is_ok().then_some(result))
}

/// Makes SIGINT, SIGTERM, and SIGHUP print the result of the interrupted work, and end the process.
pub fn report_on_signal(result: impl FnOnce() -> Option<String> + Send + 'static) -> Result<(), Failure> {
    at_signal(move |signal| {
        if let Some(result) = result() {
            logging::finish(Some(format!("isolane: interrupted: {result}\n")));
        }
        control::close();
        std::process::exit(128 + signal);
    })
}

/// Calls `f` in a thread at the first SIGINT, SIGTERM, or SIGHUP.
pub fn at_signal(f: impl FnOnce(i32) + Send + 'static) -> Result<(), Failure> {
    let mut signals = iterator::Signals::new(ending()).context("cannot listen for signals")?;
    std::thread::spawn(move || signals.forever().next().map(f));
    Ok(())
}

/// Makes the next SIGINT, SIGTERM, or SIGHUP end the process immediately.
pub fn exit_on_next_signal() -> Result<(), Failure> {
    exit_while(&Arc::new(true.into()))
}

/// Makes SIGINT, SIGTERM, and SIGHUP end the process immediately while `is_starting` is true, because nothing handles
/// them yet.
pub fn exit_while(is_starting: &Arc<AtomicBool>) -> Result<(), Failure> {
    for signal in ending() {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(is_starting))
            .context("cannot listen for signals")?;
    }
    Ok(())
}

/// Returns the signals that end a command. SIGHUP stays ignored if it is, as under nohup.
fn ending() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
