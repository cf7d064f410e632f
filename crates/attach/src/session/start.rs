//! An engine for who finds none.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::default_path;

/// Starts an engine that listens on `path`, and returns its program once it does. It outlives this process, and ends
/// once nobody has been attached for a while.
///
/// # Errors
/// Why there is none: also if another has just been started.
pub(super) fn start(path: &Path) -> Result<PathBuf, String> {
    check(path)?;
    let program = program().ok_or("the program `isolane` is not found; name it in the variable ISOLANE")?;
    let mut command = Command::new(&program);
    command.args(["--log-level", "warn", "engine", "--background", "--idle-max", IDLE_MAX, "--socket"]);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), told.trim()) {
        (true, _) => Ok(program),
        (false, "") => {
            let (program, status) = (program.display(), output.status);
            Err(format!("{program} has said nothing and ended with {status}; is it an `isolane`?"))
        }
        (false, told) => Err(told.to_owned()),
    }
}

/// A path that is mistyped is no reason to make a folder: that is the default's alone.
fn check(path: &Path) -> Result<(), String> {
    match path.parent() {
        None => Err("the path names no file".into()),
        Some(folder) if folder == Path::new("") || folder.is_dir() || path == default_path() => Ok(()),
        Some(folder) => {
            Err(format!("there is no folder {}; make it, or choose another path", folder.display()))
        }
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
    fn no_engine_is_started_for_a_path_that_is_none_and_no_folder_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let why = start(&missing.join("sock")).unwrap_err();
        assert!(why.contains(missing.to_str().unwrap()), "{why}");
        assert!(!missing.exists());
        assert!(start(Path::new("")).unwrap_err().contains("the path"));
        assert!(check(&folder.path().join("sock")).is_ok() && check(Path::new("sock")).is_ok());
    }

    #[test]
    fn the_first_folder_that_has_the_program_is_taken_and_no_empty_one() {
        let (empty, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(full.path().join(NAME), "").unwrap();
        let folders = [PathBuf::new(), empty.path().to_owned(), full.path().to_owned()];
        assert_eq!(find(folders.into_iter()), Some(full.path().join(NAME)));
        assert_eq!(find([empty.path().to_owned()].into_iter()), None);
    }
}
