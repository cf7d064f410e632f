//! Signals, turned into words that a loop can wait for.

use std::path::PathBuf;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
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

/// Makes SIGINT and SIGTERM remove a file and end the process.
pub fn remove_at_end(path: PathBuf) -> Result<(), Failure> {
    at_signal(move |signal| {
        // It may have its final name by now.
        let _ = std::fs::remove_file(&path);
        std::process::exit(128 + signal);
    })
}

/// Calls `act` in a thread at the first SIGINT or SIGTERM.
pub fn at_signal(act: impl FnOnce(i32) + Send + 'static) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    std::thread::spawn(move || signals.forever().next().map(act));
    Ok(())
}

/// Makes the next SIGINT or SIGTERM end the process at once.
pub fn end_at_next_signal() -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            std::sync::Arc::new(true.into()),
        )
        .context("cannot listen for signals")?;
    }
    Ok(())
}
