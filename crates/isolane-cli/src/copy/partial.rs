//! A file that is not complete yet, under a temporary name next to its own.
//!
//! Invariant: the file of the final name is complete, old or new. A partial file that is dropped, or whose process
//! ends by SIGINT, SIGTERM or SIGHUP, is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::failure::Failure;
use crate::signals;

/// A file that becomes the one at `path`.
pub struct Partial {
    /// Its temporary path.
    pub temporary: PathBuf,
    path: PathBuf,
    file: File,
    /// The file that is replaced, locked.
    replaced: Option<File>,
}

impl Partial {
    /// Creates the file. One that it will replace is locked until then.
    ///
    /// # Errors
    /// If the file at `path` cannot be written or replaced, or a target or another program has locked it.
    pub fn create(path: &Path) -> Result<(Partial, File), Failure> {
        let failure = |why: io::Error| open_failure(path, &why);
        let replaced = match OpenOptions::new().write(true).open(path) {
            Err(why) if why.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.map_err(failure)?),
        };
        if let Some(file) = &replaced {
            lock(path, file)?;
        }
        if replaced.is_none() && path.is_symlink() {
            return Err(Failure::new(what(path), "it is a link to a file that does not exist")
                .with_hint("name that file, or remove the link"));
        }
        if replaced.is_none()
            && fs::canonicalize(directory(path)).is_ok_and(|found| found == Path::new("/dev"))
        {
            return Err(Failure::new(what(path), "no such device").with_hint("check its name with lsblk"));
        }
        // Of a link it is the file that is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if replaced.is_some() && is_mount_point(&path) {
            return Err(Failure::new(what(&path), "a file that is a mount point cannot be replaced")
                .with_hint("mount its directory instead, or name a file in another directory"));
        }
        let name = path.file_name().ok_or_else(|| failure(ErrorKind::IsADirectory.into()))?;
        // A process that was killed may have left a file, and PIDs are used again.
        let name = format!(".{}.copying-{:016x}", name.display(), fastrand::u64(..));
        let temporary = path.with_file_name(name);
        let outcome = if replaced.is_some() { "is unchanged" } else { "is not created" };
        signals::remove_on_signal(temporary.clone(), format!("{} {outcome}", path.display()))?;
        // Until it is complete, no other user reads what replaces a file.
        let mode = if replaced.is_some() { 0o600 } else { 0o666 };
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
        let file = file.map_err(|why| {
            Failure::from_io(format!("{}: cannot create {}", what(&path), temporary.display()), &why)
        })?;
        let for_sink = file.try_clone().map_err(failure)?;
        Ok((Partial { temporary, path, file, replaced }, for_sink))
    }

    /// Gives the file the owner and mode of the one that it replaces, and its final name, for good.
    pub fn publish(self) -> Result<(), Failure> {
        if let Some(replaced) = &self.replaced {
            let result = keep_owner_and_mode(&self.path, replaced, &self.file);
            result.map_err(|why| Failure::from_io(what(&self.path), &why))?;
        }
        let rename = || format!("cannot rename {} to {}", self.temporary.display(), self.path.display());
        let renamed = fs::rename(&self.temporary, &self.path).and_then(|()| sync_directory(&self.path));
        renamed.map_err(|why| Failure::from_io(rename(), &why))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // It is gone after a rename.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Returns the failure to open a destination.
pub fn open_failure(path: &Path, why: &io::Error) -> Failure {
    Failure::from_io(format!("cannot open {} for writing", path.display()), why)
}

fn what(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// A change of the owner clears bits of the mode, so the mode comes last.
fn keep_owner_and_mode(path: &Path, replaced: &File, file: &File) -> io::Result<()> {
    let (old, new) = (replaced.metadata()?, file.metadata()?);
    if (old.uid(), old.gid()) != (new.uid(), new.gid())
        && let Err(why) = fchown(file, Some(old.uid()), Some(old.gid()))
    {
        log::warn!("{} cannot keep its owner {}:{}: {why}", path.display(), old.uid(), old.gid());
    }
    file.set_permissions(old.permissions())?;
    file.sync_all()
}

/// Returns whether a file is in another mount than its directory. `false` where the kernel does not report mounts.
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

/// The name of a file is durable once its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
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
