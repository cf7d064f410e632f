//! A file that is not complete yet, under a temporary name next to its own.
//!
//! Invariant: the file of the final name is complete, old or new. A partial file that is dropped, or whose process
//! ends by SIGINT or SIGTERM, is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::signals;

/// A file that becomes the one at `path`.
pub struct Partial {
    /// Its temporary path.
    pub temporary: PathBuf,
    path: PathBuf,
    /// The file that is replaced, locked.
    _replaced: Option<File>,
}

impl Partial {
    /// Creates the file. One that it will replace keeps its mode, and is locked until then.
    ///
    /// # Errors
    /// If the file at `path` cannot be written, or a target or another program has locked it.
    pub fn create(path: &Path) -> Result<(Partial, File), Failure> {
        let failure = |why: io::Error| open_failure(path, &why);
        let replaced = match OpenOptions::new().write(true).open(path) {
            Err(why) if why.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.map_err(failure)?),
        };
        if let Some(file) = &replaced {
            lock(path, file)?;
        }
        // Of a link it is the file that is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().ok_or_else(|| failure(ErrorKind::IsADirectory.into()))?;
        let name = format!(".{}.copying-{}", name.display(), std::process::id());
        let temporary = path.with_file_name(name);
        signals::remove_at_end(temporary.clone())?;
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failure)?;
        let partial = Partial { temporary, path: path.clone(), _replaced: replaced };
        if let Some(replaced) = &partial._replaced {
            let mode = replaced.metadata().map_err(failure)?.permissions();
            file.set_permissions(mode).map_err(failure)?;
        }
        Ok((partial, file))
    }

    /// Gives the file its final name, for good.
    pub fn publish(self) -> Result<(), Failure> {
        let what = || format!("cannot rename {} to {}", self.temporary.display(), self.path.display());
        let renamed = fs::rename(&self.temporary, &self.path).and_then(|()| sync_directory(&self.path));
        renamed.map_err(|why| Failure::of_system(what(), &why))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a rename there is none.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// What is reported if a destination cannot be opened.
pub fn open_failure(path: &Path, why: &io::Error) -> Failure {
    Failure::of_system(format!("cannot open {} for writing", path.display()), why)
}

/// Keeps off files that a target serves or another program has locked. A file system without locks has no
/// such file.
fn lock(path: &Path, file: &File) -> Result<(), Failure> {
    match isolane_reactor::file::lock(file, true) {
        Ok(false) => Err(Failure::new(
            format!("cannot replace {}", path.display()),
            "a target serves it, or another program has locked it",
        )
        .remedy("stop that first, or copy to the volume's URI")),
        _ => Ok(()),
    }
}

/// The name of a file is durable once its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
