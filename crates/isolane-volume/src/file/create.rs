//! Creates a sparse file of a given size, so that after a crash there is either a whole one or none.
//!
//! Written aside, synced, renamed without replacing anything, and the directory synced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Creates the file; if somebody else did meanwhile, theirs stays.
pub(crate) fn create_sparse(path: &Path, bytes: u64) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let aside = aside(path, directory)?;
    let made = write_aside(&aside, bytes).and_then(|()| publish(&aside, path));
    if made.is_err() {
        // What is left is only a hidden empty file; the error that matters is the first one.
        fs::remove_file(&aside).ok();
    }
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => File::open(directory)?.sync_all(),
    }
}

fn aside(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".new-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple()));
    Ok(directory.join(hidden))
}

fn write_aside(aside: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside)?;
    file.set_len(bytes)?;
    file.sync_all()
}

fn publish(aside: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, aside, CWD, path, RenameFlags::NOREPLACE) {
        // The file system cannot do that; a hard link replaces nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(aside, path)?;
            fs::remove_file(aside)
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_is_sparse_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        create_sparse(&path, 1 << 30).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 30);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_exists_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        fs::write(&path, b"precious").unwrap();
        create_sparse(&path, 4096).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = create_sparse(&directory.path().join("none/disk.img"), 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
