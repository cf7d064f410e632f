//! Directory of the sockets of a user.
//!
//! Under `/tmp`, another user can create the directory first. [`exposed_reason`] detects this.

use std::path::{Path, PathBuf};

pub use isolane_shm::is_privileged;
use rustix::fs::{FileType, Mode, lstat, stat};
use rustix::io::Errno;
use rustix::process::{geteuid, getuid};

/// Returns the default directory: `$XDG_RUNTIME_DIR/isolane`, else one of this user under `/tmp`.
pub fn default_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => PathBuf::from(runtime).join("isolane"),
        _ => PathBuf::from(format!("/tmp/isolane-{}", getuid().as_raw())),
    }
}

/// Returns why other users could replace files in a directory, with the remedy, if so.
pub fn exposed_reason(dir: &Path) -> Option<String> {
    let found = match stat(dir) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => found,
        Err(Errno::NOENT) => return Some("does not exist; create it".into()),
        _ => return Some("is not a directory; remove it".into()),
    };
    if !is_trusted(found.st_uid) {
        return Some(format!("belongs to user {}; use one of your own", found.st_uid));
    }
    // Another user can have made the link if its directory is writable by all.
    if let Ok(link) = lstat(dir)
        && !is_trusted(link.st_uid)
    {
        return Some(format!("is a symbolic link of user {}; remove it", link.st_uid));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    let is_shared = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
    is_shared.then(|| "lets other users replace its files; `chmod go-w` it".into())
}

/// Returns `true` if a user is root or the user of this process.
pub fn is_trusted(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
}
