//! Replacing the content of a file, completely or not at all.
//!
//! The new content is written to a temporary file in the same directory and synced, then both names are exchanged in one
//! step, and the directory is synced. The old content is deleted last, so each failure can be undone.
//!
//! Invariant: after an error, the file has the bytes, the owner, and the mode that it had before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::file::read;

/// A file that was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// Another program has changed it in the meantime.
    #[error("changed by another program; read it again, and repeat the change")]
    Changed,
    /// The system refused a step.
    #[error("{step}: {error}; the file is unchanged")]
    System {
        /// The step.
        step: &'static str,
        /// The reason.
        error: io::Error,
    },
}

/// New content of a regular file, which is durable next to it. Dropping it deletes the content.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    temporary: Temporary,
}

impl Replacement {
    /// Writes the new content of a file to a temporary file next to it, with the same owner and mode; follows a symbolic
    /// link.
    ///
    /// # Errors
    /// The step that failed.
    pub fn prepare(path: &Path, new: &str) -> Result<Replacement, ReplaceError> {
        Replacement::prepare_with(path, new, &mut |_| Ok(()))
    }

    /// Replaces the content of the file, which must be `old`.
    ///
    /// # Errors
    /// The step that failed; the file is unchanged.
    pub fn replace(self, old: &str) -> Result<(), ReplaceError> {
        self.replace_with(old, &mut |_| Ok(()))
    }
}

/// Steps in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Find,
    Create,
    Write,
    Owner,
    Sync,
    Exchange,
    SyncDirectory,
}

impl Step {
    #[cfg(test)]
    const ALL: [Step; 7] =
        [Step::Find, Step::Create, Step::Write, Step::Owner, Step::Sync, Step::Exchange, Step::SyncDirectory];

    fn name(self) -> &'static str {
        match self {
            Step::Find => "cannot find the file",
            Step::Create => "cannot create a temporary file in its directory",
            Step::Write => "cannot write the temporary file",
            Step::Owner => "cannot set owner and mode of the temporary file",
            Step::Sync => "cannot sync the temporary file",
            Step::Exchange => "cannot exchange the file with the temporary one",
            Step::SyncDirectory => "cannot sync the directory",
        }
    }
}

/// Calls `fault` before each step, so that tests can fail it.
type Fault<'a> = &'a mut dyn FnMut(Step) -> io::Result<()>;

impl Replacement {
    fn prepare_with(path: &Path, new: &str, fault: Fault<'_>) -> Result<Replacement, ReplaceError> {
        let path = attempt(Step::Find, fault, || fs::canonicalize(path))?;
        let status = attempt(Step::Find, fault, || path.metadata())?;
        let (mut file, temporary) = attempt(Step::Create, fault, || create(&path))?;
        attempt(Step::Write, fault, || file.write_all(new.as_bytes()))?;
        attempt(Step::Owner, fault, || {
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (status.uid(), status.gid()) {
                fchown(&file, Some(status.uid()), Some(status.gid()))?;
            }
            file.set_permissions(status.permissions())
        })?;
        attempt(Step::Sync, fault, || file.sync_all())?;
        Ok(Replacement { path, temporary })
    }

    fn replace_with(self, old: &str, fault: Fault<'_>) -> Result<(), ReplaceError> {
        let Replacement { path, temporary } = self;
        let directory = path.parent().unwrap_or(Path::new("/"));
        attempt(Step::Exchange, fault, || exchange(&temporary.0, &path))?;
        let is_expected = read(&temporary.0).is_ok_and(|found| found == old);
        let synced = attempt(Step::SyncDirectory, fault, || File::open(directory)?.sync_all());
        if is_expected && synced.is_ok() {
            return Ok(());
        }
        attempt(Step::Exchange, &mut |_| Ok(()), || exchange(&temporary.0, &path))?;
        if is_expected { synced } else { Err(ReplaceError::Changed) }
    }
}

/// Creates a temporary file next to `path`, under a name that nothing has, as a program that was killed leaves its own.
fn create(path: &Path) -> io::Result<(File, Temporary)> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let id = process::id();
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut last = io::ErrorKind::AlreadyExists.into();
    for number in 0..MAX_NAMES {
        let temporary = directory.join(format!(".{name}.{id}-{number}.new"));
        match options.open(&temporary) {
            Ok(file) => return Ok((file, Temporary(temporary))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn attempt<T>(
    step: Step,
    fault: Fault<'_>,
    action: impl FnOnce() -> io::Result<T>,
) -> Result<T, ReplaceError> {
    fault(step).and_then(|()| action()).map_err(|error| ReplaceError::System { step: step.name(), error })
}

/// Exchanges two files in one step. Not all file systems can, for example NFS.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(io::Error::from)
}

/// Files of programs that were killed, in whose place another name is used.
const MAX_NAMES: usize = 1000;

/// A file that is deleted when this is dropped. At the end, it has the old content.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that stays does no harm: its name starts with a dot, and nothing reads it.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn replace_with(path: &Path, old: &str, new: &str, fault: Fault<'_>) -> Result<(), ReplaceError> {
        Replacement::prepare_with(path, new, fault)?.replace_with(old, fault)
    }

    fn replace(path: &Path, old: &str, new: &str) -> Result<(), ReplaceError> {
        replace_with(path, old, new, &mut |_| Ok(()))
    }

    const OLD: &str = "# old\n";

    /// Returns a directory with a file, and the path of the file.
    fn directory() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.toml");
        fs::write(&path, OLD).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        (directory, path)
    }

    /// The only file of the directory has this content, and the old mode.
    fn assert_only(path: &Path, text: &str) {
        assert_eq!(fs::read_to_string(path).unwrap(), text);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn trial_finds_errors_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let prepare = || Replacement::prepare(&path, "new");
        assert!(prepare().unwrap_err().to_string().contains("cannot find the file"));
        fs::write(&path, "old").unwrap();
        drop(prepare().unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn files_that_a_killed_program_has_left_do_not_matter() {
        let (directory, path) = directory();
        let kept: Vec<_> = (0..3).map(|_| Replacement::prepare(&path, "# left").unwrap()).collect();
        replace(&path, OLD, "# new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "# new\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4);
        drop(kept);
        assert_only(&path, "# new\n");
    }

    #[test]
    fn replaces_content_and_keeps_mode() {
        let (_directory, path) = directory();
        replace(&path, OLD, "# new\n").unwrap();
        assert_only(&path, "# new\n");
    }

    #[test]
    fn failure_at_each_step_changes_nothing() {
        for failed in Step::ALL {
            let (_directory, path) = directory();
            let mut seen = Vec::new();
            let result = replace_with(&path, OLD, "# new\n", &mut |step| {
                seen.push(step);
                if step == failed { Err(io::Error::other("no")) } else { Ok(()) }
            });
            let error = result.expect_err(failed.name()).to_string();
            assert_eq!(error, format!("{}: no; the file is unchanged", failed.name()));
            assert_eq!(seen.last(), Some(&failed));
            assert_only(&path, OLD);
        }
    }

    #[test]
    fn keeps_changes_of_another_program() {
        for at in Step::ALL.into_iter().filter(|step| *step != Step::SyncDirectory) {
            let (_directory, path) = directory();
            let result = replace_with(&path, OLD, "# new\n", &mut |step| {
                if step == at { fs::write(&path, "# other\n") } else { Ok(()) }
            });
            assert!(matches!(result, Err(ReplaceError::Changed)), "{at:?}: {result:?}");
            assert_only(&path, "# other\n");
        }
    }

    #[test]
    fn follows_symbolic_link() {
        let (_directory, path) = directory();
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link.toml");
        symlink(&path, &link).unwrap();
        replace(&link, OLD, "# new\n").unwrap();
        assert!(link.is_symlink());
        assert_only(&path, "# new\n");
        assert!(replace(&elsewhere.path().join("missing"), OLD, "").is_err());
    }
}
