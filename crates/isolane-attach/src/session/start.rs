//! An engine for who finds none.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isolane_ring::start_with_default_signals;

use super::default_path;

/// What is to be said if there is no engine.
#[derive(Debug)]
pub(super) struct Unstarted {
    pub why: String,
    /// Nor will there be one, however often it is tried.
    pub is_hopeless: bool,
}

/// Starts an engine that listens on `path`, for the `times`th time, and returns once it does, or another may, or none
/// will. It outlives this process, and ends once nobody has been attached for a while.
pub(super) fn start(path: &Path, times: u32) -> Unstarted {
    match run(path) {
        // It may have been told to end at once.
        Ok(program) => Unstarted {
            why: format!(
                "{} was started {times} times, and no engine stays; is it an `isolane`?",
                program.display()
            ),
            is_hopeless: times >= TIMES_MAX,
        },
        Err(unstarted) => unstarted,
    }
}

/// Starts the program, and waits until it has gone into the background.
fn run(path: &Path) -> Result<PathBuf, Unstarted> {
    let hopeless = |why: String| Unstarted { why, is_hopeless: true };
    check(path).map_err(hopeless)?;
    let program = program().ok_or_else(|| hopeless(NO_PROGRAM.into()))?;
    let mut command = Command::new(&program);
    command.args(["--log-level", "warn", "engine", "--background", "--idle-max", IDLE_MAX, "--socket"]);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    // Both processes of the engine are controlled by signals, which this thread may have blocked.
    let output = start_with_default_signals(&mut command)
        .output()
        .map_err(|error| hopeless(format!("{}: {error}", program.display())))?;
    let told = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), told.trim()) {
        (true, _) => Ok(program),
        (false, "") => {
            let (program, status) = (program.display(), output.status);
            Err(hopeless(format!("{program} has said nothing and ended with {status}; is it an `isolane`?")))
        }
        // Somebody else may have been faster.
        (false, told) => Err(Unstarted { why: told.to_owned(), is_hopeless: false }),
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
/// How often it is worth while to start an engine that does not stay.
const TIMES_MAX: u32 = 3;
const NO_PROGRAM: &str = "the program `isolane` is not found; name it in the variable ISOLANE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_engine_is_started_for_a_path_that_is_none_and_no_folder_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let Unstarted { why, is_hopeless } = start(&missing.join("sock"), 1);
        assert!(why.contains(missing.to_str().unwrap()) && is_hopeless, "{why}");
        assert!(!missing.exists());
        assert!(start(Path::new(""), 1).why.contains("the path"));
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
