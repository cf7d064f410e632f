//! Starts an engine if none is running.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isolane_shm::start_with_default_signals;

use isolane_engine_api::default_path;

/// Error to report if still no engine can be reached.
#[derive(Debug)]
pub(super) struct SpawnError {
    pub reason: String,
    /// Another attempt cannot succeed.
    pub permanent: bool,
}

/// Starts an engine that listens on `path`. Returns once it listens, another engine may, or none will. The engine
/// outlives this process and exits after a while without clients. `attempts` counts the calls, including this one.
pub(super) fn spawn_engine(path: &Path, attempts: u32) -> SpawnError {
    match run(path) {
        // The engine may have been stopped immediately.
        Ok(program) => SpawnError {
            reason: format!(
                "{} was started {attempts} times and exited; check that it is an `isolane` program",
                program.display()
            ),
            permanent: attempts >= MAX_ATTEMPTS,
        },
        Err(error) => error,
    }
}

/// Runs the program until it has moved to the background.
fn run(path: &Path) -> Result<PathBuf, SpawnError> {
    let permanent = |reason: String| SpawnError { reason, permanent: true };
    check_dir(path).map_err(permanent)?;
    let program = find_program().ok_or_else(|| permanent(NO_PROGRAM.into()))?;
    let mut command = Command::new(&program);
    command.args(["--log-level", "warn", "engine", "--daemon", "--idle-timeout", IDLE_TIMEOUT, "--socket"]);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    // Both processes of the engine are controlled by signals, which this thread may have blocked.
    let output = start_with_default_signals(&mut command)
        .output()
        .map_err(|error| permanent(format!("{}: {error}", program.display())))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), stderr.trim()) {
        (true, _) => Ok(program),
        (false, "") => {
            let (program, status) = (program.display(), output.status);
            Err(permanent(format!(
                "{program} exited silently ({status}); check that it is an `isolane` program"
            )))
        }
        // Another process may have started one first.
        (false, stderr) => Err(SpawnError { reason: stderr.to_owned(), permanent: false }),
    }
}

/// Checks the directory of `path`. Only the default directory is created: any other may be a typing error.
fn check_dir(path: &Path) -> Result<(), String> {
    match path.parent() {
        None => Err("the path names no file".into()),
        Some(dir) if dir == Path::new("") || dir.is_dir() || path == default_path() => Ok(()),
        Some(dir) => Err(format!("no directory {}; create it, or choose another path", dir.display())),
    }
}

/// Returns the program named by the variable, else the one next to this program, else the one in the PATH.
fn find_program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("ISOLANE_BIN").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let own = env::current_exe().ok();
    let own_dir = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    find(own_dir.into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())))
}

fn find(mut dirs: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    // An empty entry of the PATH means the working directory, which is not trusted for programs started implicitly.
    dirs.find_map(|dir| {
        Some(dir.join(NAME)).filter(|file| dir.as_os_str() != OsStr::new("") && file.is_file())
    })
}

const NAME: &str = "isolane";
const IDLE_TIMEOUT: &str = "30s";
/// Attempts to start an engine that exits immediately.
const MAX_ATTEMPTS: u32 = 3;
const NO_PROGRAM: &str = "program `isolane` not found; set the variable ISOLANE_BIN to its path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_missing_dir_without_creating_it() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let SpawnError { reason, permanent } = spawn_engine(&missing.join("sock"), 1);
        assert!(reason.contains(missing.to_str().unwrap()) && permanent, "{reason}");
        assert!(!missing.exists());
        assert!(spawn_engine(Path::new(""), 1).reason.contains("the path"));
        assert!(check_dir(&dir.path().join("sock")).is_ok() && check_dir(Path::new("sock")).is_ok());
    }

    #[test]
    fn finds_program_in_first_dir() {
        let (empty, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(full.path().join(NAME), "").unwrap();
        let dirs = [PathBuf::new(), empty.path().to_owned(), full.path().to_owned()];
        assert_eq!(find(dirs.into_iter()), Some(full.path().join(NAME)));
        assert_eq!(find([empty.path().to_owned()].into_iter()), None);
    }
}
