//! What was measured on, and of what.

use std::process::Command;

use serde::{Deserialize, Serialize};

/// A machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its processor.
    pub processor: String,
    /// Number of its cores.
    pub cores: usize,
    /// Version of its kernel.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            information.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
        Machine {
            processor: model.trim_start_matches([' ', '\t', ':']).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// The commit that is checked out, and whether anything but measurements differs from it.
pub fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let changes = said("git", &["status", "--porcelain", "--", "crates", "bench/src", "Cargo.lock"]);
    if changes.is_empty() { commit } else { format!("{commit} with changes") }
}

/// On what, of which commit, when and by which command, for the head of a table: of this machine, now.
pub fn about(command: &str) -> String {
    head(&Machine::here(), &commit(), &date(), command) + "."
}

/// The same of any machine and time; without the full stop.
pub fn head(machine: &Machine, commit: &str, date: &str, command: &str) -> String {
    let Machine { processor, cores, kernel } = machine;
    format!(
        "**Machine**: {cores} cores of {processor}, Linux {kernel}, loopback. **Commit**: `{commit}`, {date}. \
         **Command**: `{command}`"
    )
}

/// Today.
pub fn date() -> String {
    said("date", &["-u", "+%Y-%m-%d"])
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
