//! Copies of everything that checks have read, for [`Root`](crate::system::Root) on another machine.
//!
//! A copy has the files and links of the system. A name that was only listed is a link to nothing. Below `/isolane`
//! are the texts that are in no file, the contents of the first of two readings, and the errors.
//!
//! Invariant: only contents that a check has read are copied, and nothing outside of the directory is written.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use crate::system::{Accesses, ERRORS, FIRST_READING};

/// Target of links for names that were only listed.
const NOT_COPIED: &str = "not-copied";

/// Copies everything that was read to a new directory, which only this user can open.
///
/// # Errors
/// The directory exists, or cannot be written.
pub fn capture(accesses: &Accesses, dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(dir)?;
    let copy = Copy { dir };
    for (path, content) in accesses.files() {
        copy.write(path, content)?;
    }
    if let Some(files) = accesses.first_reading() {
        copy.create_dir(FIRST_READING)?;
        for (path, content) in files {
            copy.write(&format!("{FIRST_READING}{path}"), content)?;
        }
    }
    for (path, reason) in accesses.errors() {
        copy.write(&format!("{ERRORS}{path}"), reason.as_bytes())?;
    }
    for (_, real) in accesses.links() {
        copy.create_dir(real)?;
    }
    for (path, real) in accesses.links().filter(|(path, real)| path != real) {
        let up = "../".repeat(path.split('/').filter(|part| !part.is_empty()).count() - 1);
        copy.link(path, &format!("{up}{}", real.trim_start_matches('/')))?;
    }
    for (path, names) in accesses.directories() {
        for name in names {
            copy.link(&format!("{path}/{name}"), NOT_COPIED)?;
        }
    }
    Ok(())
}

struct Copy<'a> {
    dir: &'a Path,
}

impl Copy<'_> {
    /// Returns the place of a path in the copy, `None` if it would be outside.
    fn place(&self, path: &str) -> Option<PathBuf> {
        let parts = || path.split('/').filter(|part| !part.is_empty());
        let is_inside = parts().all(|part| part != "." && part != "..");
        is_inside.then(|| parts().fold(self.dir.to_owned(), |place, part| place.join(part)))
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let Some(place) = self.place(path) else { return Ok(()) };
        fs::create_dir_all(place.parent().unwrap_or(self.dir))?;
        fs::write(place, content)
    }

    /// Creates a directory unless there is a file.
    fn create_dir(&self, path: &str) -> io::Result<()> {
        match self.place(path) {
            Some(place) if !place.exists() => fs::create_dir_all(place),
            _ => Ok(()),
        }
    }

    /// Creates a link unless there is a file, directory, or link.
    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let Some(place) = self.place(path) else { return Ok(()) };
        fs::create_dir_all(place.parent().unwrap_or(self.dir))?;
        match symlink(target, place) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }
}
