//! How this program is called, for lines that somebody pastes.
//!
//! As it was called itself if that works again: with a path as it was typed, with a bare name if that is
//! found in the PATH. Else, as after an `exec` under another name, by the path of its file. Not checked: in
//! which folder, with which PATH, the line is pasted.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What to paste in front of a subcommand, ready for a shell.
pub fn program() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok();
    quoted(&choose(typed, &search, own).to_string_lossy())
}

/// What was typed, if it leads to a file; else the program's own path.
fn choose(typed: OsString, search: &OsStr, own: Option<PathBuf>) -> OsString {
    let has_path = Path::new(&typed).components().count() > 1;
    let is_found = match has_path {
        true => Path::new(&typed).is_file(),
        false => {
            !typed.is_empty() && std::env::split_paths(search).any(|folder| folder.join(&typed).is_file())
        }
    };
    match own {
        Some(own) if !is_found => own.into(),
        _ => typed,
    }
}

/// One word of a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_stays_where_it_is_found_and_a_path_stays_as_it_was_typed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("isolane");
        std::fs::write(&file, "").unwrap();
        let own = || Some(PathBuf::from("/opt/isolane"));
        let here = folder.path().as_os_str();
        assert_eq!(choose("isolane".into(), here, own()), "isolane");
        assert_eq!(choose("isolane".into(), OsStr::new("/nowhere"), own()), "/opt/isolane");
        assert_eq!(choose("".into(), here, own()), "/opt/isolane");
        assert_eq!(choose(file.clone().into(), OsStr::new(""), own()), file);
        assert_eq!(choose("gone/isolane".into(), here, own()), "/opt/isolane");
    }

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(quoted("target/release/isolane"), "target/release/isolane");
        assert_eq!(quoted("/my disk's/isolane"), r"'/my disk'\''s/isolane'");
    }
}
