//! Output to stdout, as text or JSON. A closed pipe is not an error.

use std::io::{ErrorKind, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::failure::{Context, Failure};

/// Writes to stdout. Ignores a closed pipe (`isolane info … | head`).
pub fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to stdout"),
    }
}

/// Returns `true` if the reader of stdout has closed it (`isolane slow --follow | head`).
pub fn is_closed() -> bool {
    let stdout = std::io::stdout();
    let mut events = [PollFd::new(&stdout, PollFlags::empty())];
    let polled = poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && events[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes to stdout in another thread, because a terminal or pipe can block. The reader can be gone.
pub fn announce(text: String) {
    let write = move || {
        if let Err(failure) = write_stdout(text.as_bytes()) {
            log::warn!("{failure}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("announce".into()).spawn(write) {
        log::warn!("cannot spawn a thread for stdout: {error}");
    }
}

/// Prints `value` as JSON, or `text`.
pub fn show(value: &impl Serialize, json: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json { write_stdout(&to_json(value)?) } else { write_stdout(text().as_bytes()) }
}

/// Returns indented JSON with a final newline.
pub fn to_json(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut bytes = serde_json::to_vec_pretty(value).context("cannot encode JSON")?;
    bytes.push(b'\n');
    Ok(bytes)
}
