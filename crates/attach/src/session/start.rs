//! An engine for who finds none.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Starts an engine that listens on `path`, and returns once it does. It outlives this process, and ends once
/// nobody has been attached for a while.
///
/// # Errors
/// Why there is none: also if another has just been started.
pub(super) fn start(path: &Path) -> Result<(), String> {
    let program = program().ok_or("the program `isolane` is not found; name it in the variable ISOLANE")?;
    let mut command = Command::new(&program);
    command.args(["--log-level", "warn", "engine", "--background", "--idle-max", IDLE_MAX, "--socket"]);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// The one that the variable names, else the one beside this program, else the one in the PATH.
fn program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("ISOLANE").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    find(beside.into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())))
}

fn find(mut folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    // An empty entry of the PATH means the folder that one happens to be in: not for what is started unasked.
    folders.find_map(|folder| {
        Some(folder.join(NAME)).filter(|file| folder.as_os_str() != OsStr::new("") && file.is_file())
    })
}

const NAME: &str = "isolane";
const IDLE_MAX: &str = "30s";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_that_has_the_program_is_taken_and_no_empty_one() {
        let (empty, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(full.path().join(NAME), "").unwrap();
        let folders = [PathBuf::new(), empty.path().to_owned(), full.path().to_owned()];
        assert_eq!(find(folders.into_iter()), Some(full.path().join(NAME)));
        assert_eq!(find([empty.path().to_owned()].into_iter()), None);
    }
}
