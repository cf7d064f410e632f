//! An engine that outlives the command that starts it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

use isolane_engine::files;

use crate::failure::{Context, Failure};
use crate::output;

/// Starts this program once more, as it was called but detached, and waits until it listens.
pub fn start(path: &Path) -> Result<(), Failure> {
    files::make_folder(path).map_err(Failure::whole)?;
    let log = files::log_path(path);
    // Not emptied: an engine that listens there already may write to it.
    let file = files::open_next_to_socket(&log, 0o600).map_err(Failure::whole)?;
    let before = file.metadata().context("cannot read the size of the log")?.len();
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--background");
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--detached");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut child = command.spawn().context("cannot start the engine")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot hear of the engine")?;
    }
    if line.is_empty() {
        let _ = child.wait();
        return Err(Failure::whole(last_words(&log, before)));
    }
    output::write_stdout(line.as_bytes())
}

/// What it has said since then, without the name of the program, which is said again.
fn last_words(log: &Path, before: u64) -> String {
    let mut text = String::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(before))?;
        file.take(LOG_BYTES_MAX).read_to_string(&mut text)
    });
    let last = text.lines().next_back().unwrap_or_default();
    match read {
        Ok(_) if !last.is_empty() => last.strip_prefix("isolane: ").unwrap_or(last).to_owned(),
        _ => format!("the engine has ended without a word; look into {}", log.display()),
    }
}

const LOG_BYTES_MAX: u64 = 64 << 10;
