//! Files that were created for volumes which may not be used after all.
//!
//! Invariant: only a file that was created here is deleted, and only while its path still leads to it.

use std::cell::RefCell;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

thread_local! {
    static NOTED: RefCell<Option<Vec<CreatedFile>>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct CreatedFile {
    path: PathBuf,
    /// Is open, so that no other file gets its inode.
    file: File,
}

/// Files that were created while volumes were opened. They are deleted when this is dropped, unless they are kept.
#[derive(Debug, Default)]
pub struct CreatedFiles(Mutex<Vec<CreatedFile>>);

impl CreatedFiles {
    /// Calls `open`, and takes the files that this thread creates in it.
    pub fn note<T>(&self, open: impl FnOnce() -> T) -> T {
        NOTED.set(Some(Vec::new()));
        let opened = open();
        let created = NOTED.take().unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(created);
        opened
    }

    /// Keeps the files.
    pub fn keep(mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for CreatedFiles {
    fn drop(&mut self) {
        for CreatedFile { path, file } in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let [at_path, created] = [fs::symlink_metadata(&path), file.metadata()].map(identify);
            if at_path.is_none() || at_path != created {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => log::info!("{}: deleted, because nothing uses it", path.display()),
                Err(error) => log::warn!("{}: nothing uses it, and it stays: {error}", path.display()),
            }
        }
    }
}

/// Notes a file that was created just now.
pub(crate) fn note(path: &Path) {
    NOTED.with_borrow_mut(|noted| {
        if let (Some(noted), Ok(file)) = (noted, File::open(path)) {
            noted.push(CreatedFile { path: path.to_owned(), file });
        }
    });
}

fn identify(status: io::Result<Metadata>) -> Option<(u64, u64)> {
    status.ok().map(|status| (status.dev(), status.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open, spec};

    #[test]
    fn files_that_are_not_kept_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            open(&spec::parse(&format!("{},size=1M", dir.path().join(name).display())).unwrap()).unwrap()
        };
        drop(open("before"));
        let created = CreatedFiles::default();
        created.note(|| ["before", "one", "other"].map(open));
        // Another file has the name now.
        fs::remove_file(dir.path().join("other")).unwrap();
        fs::write(dir.path().join("other"), "data").unwrap();
        drop(created);
        let names = || {
            let files = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
            let mut names: Vec<_> = files.collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["before", "other"]);
        let created = CreatedFiles::default();
        created.note(|| open("kept"));
        created.keep();
        assert_eq!(names(), ["before", "kept", "other"]);
    }
}
