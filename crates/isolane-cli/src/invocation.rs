//! Name of this program in commands for the user.
//!
//! The name as typed if it works again: a path to a file, or a name in the PATH. Otherwise, as after an `exec` under
//! another name, the path of the program's file. The current directory and PATH of the user may differ.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use isolane_volume::shell::quoted;

/// Returns the name, quoted for a shell.
pub fn program_name() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok();
    quoted(&choose(typed, &search, own).to_string_lossy())
}

/// Returns the typed name if it leads to a file, else the path of the program.
fn choose(typed: OsString, search: &OsStr, own: Option<PathBuf>) -> OsString {
    let has_path = Path::new(&typed).components().count() > 1;
    let found = if has_path {
        Path::new(&typed).is_file()
    } else {
        !typed.is_empty() && std::env::split_paths(search).any(|directory| directory.join(&typed).is_file())
    };
    match own {
        Some(own) if !found => own.into(),
        _ => typed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_names_that_work() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("isolane");
        std::fs::write(&file, "").unwrap();
        let own = || Some(PathBuf::from("/opt/isolane"));
        let here = directory.path().as_os_str();
        assert_eq!(choose("isolane".into(), here, own()), "isolane");
        assert_eq!(choose("isolane".into(), OsStr::new("/nowhere"), own()), "/opt/isolane");
        assert_eq!(choose("".into(), here, own()), "/opt/isolane");
        assert_eq!(choose(file.clone().into(), OsStr::new(""), own()), file);
        assert_eq!(choose("gone/isolane".into(), here, own()), "/opt/isolane");
    }
}
