//! `--daemon`: an engine that outlives the command that starts it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use isolane_engine::files;

use super::manage::{log_bytes, tail};
use crate::failure::{Context, Failure};
use crate::output;

/// Starts this program again, with the same arguments but detached, and waits until it listens.
pub fn start(path: &Path) -> Result<(), Failure> {
    files::create_socket_dir(path).map_err(Failure::from_error)?;
    let log = files::log_path(path);
    // Not truncated: an engine that already listens there may write to it.
    let file = files::open_next_to_socket(&log, 0o600).map_err(Failure::from_error)?;
    let before = log_bytes(&log).unwrap_or_default();
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--daemon");
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--detached");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut child = command.spawn().context("cannot start the engine")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot read from the engine")?;
    }
    if line.is_empty() {
        let _ = child.wait();
        return Err(Failure::from_error(new_log_line(&log, before)));
    }
    output::write_stdout(line.as_bytes())
}

/// Returns the last new line of the log, without the name of the program.
fn new_log_line(log: &Path, before: u64) -> String {
    let text = tail(log, before).unwrap_or_default();
    match text.lines().next_back() {
        Some(last) if !last.is_empty() => last.strip_prefix("isolane: ").unwrap_or(last).to_owned(),
        _ => format!("the engine ended without a message; see {}", log.display()),
    }
}
