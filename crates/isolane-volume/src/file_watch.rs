//! Watch over the path of a served file, which another program can delete, replace, or move.
//!
//! The data then goes to a file without its name, and all requests succeed: only the path shows it.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::shell::quoted;

/// Checks the path of a file in a thread until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    location: Arc<Location>,
    /// A check of the file system can block indefinitely.
    can_hang: bool,
    /// The thread ends when this is dropped.
    _open: Sender<()>,
}

/// A file, and the path that led to it. Does not keep the file open.
#[derive(Debug)]
struct Location {
    name: String,
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    descriptor: i32,
    /// Result of the last check.
    trouble: Mutex<Option<String>>,
}

impl Watch {
    /// Starts the watch. Returns `None` if the path does not lead to the file from the start, as on file systems
    /// without stable inodes, or if no thread can start.
    pub fn start(name: &str, path: &Path, file: &File, can_hang: bool) -> Option<Watch> {
        let id = id(&file.metadata().ok()?);
        let location = Location {
            name: name.to_owned(),
            path: path.to_owned(),
            id,
            descriptor: file.as_raw_fd(),
            trouble: Mutex::default(),
        };
        if location.find_trouble().is_some() {
            return None;
        }
        let (open, closed) = mpsc::channel();
        let location = Arc::new(location);
        let watched = Arc::clone(&location);
        let spawned =
            thread::Builder::new().name("isolane-watch".to_owned()).spawn(move || watched.run(&closed));
        match spawned {
            Ok(_) => Some(Watch { location, can_hang, _open: open }),
            Err(error) => {
                log::warn!("{name}: cannot watch its path: {error}");
                None
            }
        }
    }

    /// Returns the reason why the path does not lead to the file, and how to save its data.
    pub fn trouble(&self) -> Option<String> {
        if self.can_hang { self.location.trouble.lock().clone() } else { self.location.find_trouble() }
    }
}

impl Location {
    fn run(&self, closed: &Receiver<()>) {
        while closed.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let found = self.find_trouble();
            let known = std::mem::replace(&mut *self.trouble.lock(), found.clone());
            match found {
                Some(trouble) if known.is_none() => log::error!("{}: {trouble}", self.name),
                None if known.is_some() => {
                    log::info!("{}: the path leads to the served file again", self.name)
                }
                _ => {}
            }
        }
    }

    fn find_trouble(&self) -> Option<String> {
        let found = fs::metadata(&self.path);
        if found.as_ref().is_ok_and(|found| id(found) == self.id) {
            return None;
        }
        // Other errors, as of permissions, prove nothing.
        if found.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            return None;
        }
        let link = format!("/proc/self/fd/{}", self.descriptor);
        // Closed in the meantime, or another file.
        let served = fs::metadata(&link).ok().filter(|served| id(served) == self.id)?;
        let path = self.path.display();
        if served.nlink() > 0 {
            let now = fs::read_link(&link).unwrap_or_default();
            let now = now.to_string_lossy();
            // The kernel knows the name that was opened, not other links.
            let place = if now.ends_with(" (deleted)") {
                format!("has another name (inode {})", served.ino())
            } else {
                format!("at {now}")
            };
            return Some(format!(
                "the served file is no longer at {path}, but {place}; move it back before the next start"
            ));
        }
        let what = if found.is_ok() { "replaced" } else { "deleted" };
        Some(format!(
            "the served file was {what}, and its data is lost when its namespace or this process ends; to save it, stop the writes of \
             its hosts, then run cp --sparse=always /proc/{}/fd/{} {}",
            std::process::id(),
            self.descriptor,
            quoted(&format!("{path}.saved"))
        ))
    }
}

fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(2);
