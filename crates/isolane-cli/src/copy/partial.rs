//! An incomplete file under a temporary name.
//!
//! Invariant: the file with the final name is complete, old or new. A partial file is removed on drop and on SIGINT,
//! SIGTERM, or SIGHUP.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::failure::{Failure, IoContext};
use crate::signals;

/// A file that will replace the one at `path`.
pub struct Partial {
    /// Temporary path.
    pub temporary: PathBuf,
    path: PathBuf,
    file: File,
    /// The replaced file, locked.
    replaced: Option<File>,
}

impl Partial {
    /// Creates the file, and locks the one that it will replace.
    ///
    /// # Errors
    /// If the file at `path` cannot be written or replaced, or a target or another program has locked it.
    pub fn create(path: &Path) -> Result<(Partial, File), Failure> {
        let failure = |error: io::Error| open_failure(path, &error);
        let replaced = match OpenOptions::new().write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.map_err(failure)?),
        };
        if let Some(file) = &replaced {
            lock(path, file)?;
        }
        if replaced.is_none() && path.is_symlink() {
            return Err(Failure::new(what(path), "a link to a file that does not exist")
                .with_hint("name that file, or remove the link"));
        }
        if replaced.is_none()
            && fs::canonicalize(directory(path)).is_ok_and(|found| found == Path::new("/dev"))
        {
            return Err(Failure::new(what(path), "no such device").with_hint("check its name with lsblk"));
        }
        // The target of a link is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if replaced.is_some() && is_mount_point(&path) {
            return Err(Failure::new(what(&path), "a file that is a mount point cannot be replaced")
                .with_hint("mount its directory instead, or name a file in another directory"));
        }
        let name = path.file_name().ok_or_else(|| failure(ErrorKind::IsADirectory.into()))?;
        // A PID would not be unique: a killed process may have left a file.
        let name = format!(".{}.copying-{:016x}", name.display(), fastrand::u64(..));
        let temporary = path.with_file_name(name);
        let outcome = if replaced.is_some() { "is unchanged" } else { "was not created" };
        signals::remove_on_signal(temporary.clone(), format!("{} {outcome}", path.display()))?;
        // Other users cannot read the replacement before it has the mode of the old file.
        let mode = if replaced.is_some() { 0o600 } else { 0o666 };
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
        let file = file.io_context(format_args!("{}: cannot create {}", what(&path), temporary.display()))?;
        let for_sink = file.try_clone().map_err(failure)?;
        Ok((Partial { temporary, path, file, replaced }, for_sink))
    }

    /// Renames the file durably, with the owner and mode of the one that it replaces.
    pub fn publish(self) -> Result<(), Failure> {
        if let Some(replaced) = &self.replaced {
            keep_owner_and_mode(&self.path, replaced, &self.file).io_context(what(&self.path))?;
        }
        let renamed = fs::rename(&self.temporary, &self.path)
            // Makes the name of the file durable.
            .and_then(|()| File::open(directory(&self.path))?.sync_all());
        renamed.io_context(format_args!(
            "cannot rename {} to {}",
            self.temporary.display(),
            self.path.display()
        ))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Fails after a rename.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Returns the error of a destination that cannot be opened.
pub fn open_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::from_io(format!("cannot open {} for writing", path.display()), error)
}

fn what(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Sets the mode last, because a change of the owner clears bits of it.
fn keep_owner_and_mode(path: &Path, replaced: &File, file: &File) -> io::Result<()> {
    let (old, new) = (replaced.metadata()?, file.metadata()?);
    if (old.uid(), old.gid()) != (new.uid(), new.gid())
        && let Err(error) = fchown(file, Some(old.uid()), Some(old.gid()))
    {
        log::warn!("{} cannot keep its owner {}:{}: {error}", path.display(), old.uid(), old.gid());
    }
    file.set_permissions(old.permissions())?;
    file.sync_all()
}

/// Returns `true` if a file is in another mount than its directory, and the kernel reports mounts.
fn is_mount_point(path: &Path) -> bool {
    let mount = |path: &Path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID).then_some(found.stx_mnt_id)
    };
    mount(path).zip(mount(directory(path))).is_some_and(|(file, directory)| file != directory)
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Rejects files that a target serves or another program has locked. Ignores file systems without locks.
fn lock(path: &Path, file: &File) -> Result<(), Failure> {
    match isolane_reactor::file::lock(file, true) {
        Ok(false) => Err(Failure::new(
            format!("cannot replace {}", path.display()),
            "a target serves it, or another program has locked it",
        )
        .with_hint("stop that first, or copy to the volume's URI")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ignores_files_of_killed_copies() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(format!(".to.copying-{}", std::process::id())), b"").unwrap();
        let (partial, _) = Partial::create(&dir.path().join("to")).unwrap();
        partial.publish().unwrap();
    }

    #[test]
    fn replacement_of_private_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        for mode in [0o600, 0o640, 0o666] {
            fs::write(&to, b"old").unwrap();
            fs::set_permissions(&to, PermissionsExt::from_mode(mode)).unwrap();
            let (partial, _) = Partial::create(&to).unwrap();
            assert_eq!(fs::metadata(&partial.temporary).unwrap().mode() & 0o777, 0o600);
            partial.publish().unwrap();
            assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, mode);
        }
    }

    #[test]
    fn rejects_dangling_links() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("missing", &link).unwrap();
        assert!(Partial::create(&link).is_err());
        assert!(link.is_symlink());
    }
}
