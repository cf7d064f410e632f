//! Crash-safe creation of a sparse file.
//!
//! Writes and syncs a temporary file, renames it without replacing anything, and syncs the
//! directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Creates the file; keeps a file that another process created in the meantime.
pub(crate) fn create_sparse(path: &Path, bytes: u64) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let temp = temp_path(path, directory)?;
    let made = write_temp(&temp, bytes).and_then(|()| publish(&temp, path));
    if made.is_err() {
        // At worst a hidden empty file remains; the first error matters.
        fs::remove_file(&temp).ok();
    }
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => File::open(directory)?.sync_all(),
    }
}

fn temp_path(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".new-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple()));
    Ok(directory.join(hidden))
}

fn write_temp(temp: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temp)?;
    file.set_len(bytes)?;
    file.sync_all()
}

fn publish(temp: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temp, CWD, path, RenameFlags::NOREPLACE) {
        // The file system does not support the flag; a hard link replaces nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(temp, path)?;
            fs::remove_file(temp)
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creates_sparse_file_without_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        create_sparse(&path, 1 << 30).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 30);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn keeps_existing_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        fs::write(&path, b"precious").unwrap();
        create_sparse(&path, 4096).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn fails_without_directory() {
        let directory = tempfile::tempdir().unwrap();
        let error = create_sparse(&directory.path().join("none/disk.img"), 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
