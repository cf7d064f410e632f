//! Requests for an upgrade in place, from threads of the control socket to the main thread, which SIGUSR2 wakes.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};

use signal_hook::consts::SIGUSR2;

/// Requests of operators, which the main thread executes.
#[derive(Default)]
pub struct Upgrades(Mutex<Option<Request>>);

/// A requested upgrade.
pub struct Request {
    /// The other program.
    pub program: PathBuf,
    /// Receives the reason why it does not happen.
    pub refused: Sender<String>,
}

impl Upgrades {
    /// Requests an upgrade, and returns the reason why it does not happen. Does not return otherwise.
    pub fn request(&self, program: Option<PathBuf>) -> String {
        let program = match program.map_or_else(own_program, Ok) {
            Ok(program) => program,
            Err(error) => return format!("cannot find the program of this process: {error}; name one"),
        };
        let (refused, reason) = mpsc::channel();
        {
            let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if next.is_some() {
                return "another upgrade is in progress; wait for its end".to_owned();
            }
            *next = Some(Request { program, refused });
        }
        if let Err(error) = signal_hook::low_level::raise(SIGUSR2) {
            self.take();
            return format!("cannot wake the main thread: {error}");
        }
        reason.recv().unwrap_or_else(|_| "the target stops".to_owned())
    }

    /// Takes the requested upgrade.
    pub fn take(&self) -> Option<Request> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns the path of the program of this process, also after another file has replaced it.
fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy().into_owned();
    let replaced = text.strip_suffix(" (deleted)").map(PathBuf::from);
    Ok(replaced.filter(|replaced| !path.exists() && replaced.exists()).unwrap_or(path))
}
