//! Files that hold keys: one line, readable by its owner only.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::key::{Key, KeyError};

/// A file with one key.
pub struct KeyFile;

/// Error of a key file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct KeyFileError {
    /// The file.
    pub path: PathBuf,
    kind: Kind,
}

#[derive(Debug, thiserror::Error)]
enum Kind {
    #[error("cannot read the key: {0}")]
    Read(io::Error),
    #[error("cannot write the key: {0}")]
    Write(io::Error),
    #[error("not a regular file: name the file that holds the key")]
    NotRegular,
    #[error("mode {0:03o} lets other users read or write the key; run chmod 600 on it")]
    Mode(u32),
    #[error("user {owner} owns the key, and this program runs as user {user}; run chown {user} on it")]
    Owner {
        /// User ID of the owner.
        owner: u32,
        /// User ID of the program.
        user: u32,
    },
    #[error("$CREDENTIALS_DIRECTORY is not set: add LoadCredential={0}:FILE to the systemd unit")]
    NoCredentials(String),
    #[error("more than one key or other text after it: keep one line in the file")]
    TooLong,
    #[error("{0}")]
    Key(KeyError),
}

impl KeyFileError {
    /// Whether there is no file at the path.
    pub fn is_missing(&self) -> bool {
        matches!(&self.kind, Kind::Read(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl KeyFile {
    /// Reads the key. The owner is this user or root, and no other user may read or write the file.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Key, KeyFileError> {
        read(path, OTHERS).map_err(|kind| KeyFileError { path: path.to_path_buf(), kind })
    }

    /// Reads a credential of the systemd unit. Its group bits are the mask of an access list that names this user.
    ///
    /// # Errors
    ///
    /// The unit has no such credential, or as for [`KeyFile::read`].
    pub fn read_credential(name: &str) -> Result<Key, KeyFileError> {
        let directory = std::env::var_os("CREDENTIALS_DIRECTORY").filter(|path| !path.is_empty());
        let path = directory.as_ref().map_or_else(PathBuf::new, PathBuf::from).join(name);
        let key = match directory {
            Some(_) => read(&path, OTHERS & !GROUP_READS),
            None => Err(Kind::NoCredentials(name.to_owned())),
        };
        key.map_err(|kind| KeyFileError { path, kind })
    }

    /// Writes a key to a new file that only this user can read.
    ///
    /// # Errors
    ///
    /// The file exists already, or cannot be written.
    pub fn create(path: &Path, key: &Key) -> Result<(), KeyFileError> {
        create(path, key).map_err(|error| KeyFileError { path: path.to_path_buf(), kind: Kind::Write(error) })
    }
}

fn read(path: &Path, forbidden: u32) -> Result<Key, Kind> {
    // A FIFO without a writer does not block the open.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(Kind::Read)?;
    check(&file, forbidden)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE));
    file.take(MAX_FILE as u64).read_to_end(&mut bytes).map_err(Kind::Read)?;
    if bytes.len() == MAX_FILE {
        return Err(Kind::TooLong);
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| Kind::Key(KeyError::Form))?.trim();
    if text.contains(char::is_whitespace) {
        return Err(Kind::TooLong);
    }
    Key::parse(text).map_err(Kind::Key)
}

/// Checks the open file, so that no other file can take its place.
fn check(file: &File, forbidden: u32) -> Result<(), Kind> {
    let metadata = file.metadata().map_err(Kind::Read)?;
    if !metadata.is_file() {
        return Err(Kind::NotRegular);
    }
    if metadata.mode() & forbidden != 0 {
        return Err(Kind::Mode(metadata.mode() & 0o777));
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user && owner != ROOT {
        return Err(Kind::Owner { owner, user });
    }
    Ok(())
}

fn create(path: &Path, key: &Key) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut line = key.to_text();
    line.push('\n');
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

/// Mode bits of group and others.
const OTHERS: u32 = 0o077;

/// Mode bit of the group, for reads.
const GROUP_READS: u32 = 0o040;

/// Owner of the credentials that systemd passes.
const ROOT: u32 = 0;

/// A key with some whitespace is shorter.
const MAX_FILE: usize = 256;

#[cfg(test)]
mod tests;
