//! Files that the program before has opened, after an upgrade in place.
//!
//! A file volume takes its open file with its lock, so that no other program can have the file in between. Invariant: a
//! file is taken only for the same file or device with the same access.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl};

static FILES: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Provides the open files of the program before to the volumes that are opened later.
pub fn inherit(files: Vec<File>) {
    FILES.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
}

/// Closes the files that no volume has taken. Returns their number.
pub fn close_inherited() -> usize {
    std::mem::take(&mut *FILES.lock().unwrap_or_else(PoisonError::into_inner)).len()
}

/// Takes the open file for a path. One with another access is closed, which ends its lock.
pub(crate) fn take(path: &Path, read_only: bool) -> Option<File> {
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if files.is_empty() {
        return None;
    }
    let wanted = fs::metadata(path).ok()?;
    let is_same =
        |file: &File| file.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (wanted.dev(), wanted.ino()));
    let at = files.iter().position(is_same)?;
    let file = files.swap_remove(at);
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let is_usable = fcntl_getfl(&file).is_ok_and(|flags| flags & OFlags::ACCMODE == access);
    is_usable.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec;

    #[test]
    fn volume_takes_inherited_file_with_its_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let spec = spec::parse(file.path().to_str().unwrap()).unwrap();
        let before = crate::open(&spec).unwrap();
        assert!(crate::open(&spec).is_err(), "it is locked");
        inherit(vec![before.file().unwrap().try_clone().unwrap()]);
        let after = crate::open(&spec).unwrap();
        // An execution drops nothing.
        std::mem::forget(before);
        assert!(crate::open(&spec).is_err(), "the lock continues");
        drop(after);
        assert!(crate::open(&spec).is_ok());
    }
}
