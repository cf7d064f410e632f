//! Output to stdout, as text or JSON. A closed pipe is not an error.

use std::io::{ErrorKind, Write};

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
