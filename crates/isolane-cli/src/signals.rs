//! Signals, turned into words that a loop can wait for.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::failure::{Context, Failure};

/// What somebody asked for by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// SIGINT or SIGTERM.
    Stop,
    /// SIGUSR1.
    ShowCounters,
}

/// The signals of this process, from now on.
pub struct Wishes(Signals);

impl Wishes {
    /// Takes the signals over from their default actions.
    pub fn listen() -> Result<Self, Failure> {
        Signals::new([SIGINT, SIGTERM, SIGUSR1]).map(Wishes).context("cannot listen for signals")
    }

    /// Sleeps until somebody wishes something.
    pub fn wait(&mut self) -> Wish {
        loop {
            match self.0.forever().next() {
                Some(SIGUSR1) => return Wish::ShowCounters,
                Some(_) => return Wish::Stop,
                None => continue,
            }
        }
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP remove a file, say what that means, and end the process.
pub fn remove_at_end(path: PathBuf, outcome: String) -> Result<(), Failure> {
    // It may have its final name by now, and then nothing is said.
    tell_at_end(move || fs::remove_file(&path).is_ok().then_some(outcome))
}

/// Makes SIGINT, SIGTERM and SIGHUP print the outcome of what is interrupted, and end the process.
pub fn tell_at_end(outcome: impl FnOnce() -> Option<String> + Send + 'static) -> Result<(), Failure> {
    at_signal(move |signal| {
        if let Some(outcome) = outcome() {
            // The terminal may be gone.
            let _ = writeln!(std::io::stderr(), "isolane: interrupted: {outcome}");
        }
        std::process::exit(128 + signal);
    })
}

/// Calls `act` in a thread at the first SIGINT, SIGTERM or SIGHUP.
pub fn at_signal(act: impl FnOnce(i32) + Send + 'static) -> Result<(), Failure> {
    let mut signals = Signals::new(ending()).context("cannot listen for signals")?;
    std::thread::spawn(move || signals.forever().next().map(act));
    Ok(())
}

/// Makes the next SIGINT, SIGTERM or SIGHUP end the process at once.
pub fn end_at_next_signal() -> Result<(), Failure> {
    for signal in ending() {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            std::sync::Arc::new(true.into()),
        )
        .context("cannot listen for signals")?;
    }
    Ok(())
}

/// The signals that end a command. SIGHUP stays ignored where it is, as under nohup.
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
