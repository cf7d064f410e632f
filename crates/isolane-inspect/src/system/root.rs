//! Directory below which all files are read, `/` for the running system.
//!
//! Each path is resolved by `openat2` with `RESOLVE_IN_ROOT`: a link, absolute or not, leads to a path below the root,
//! and a link of the kernel to an open file (`/proc/PID/fd/N`) is refused.
//!
//! Invariant: with a root other than `/`, no file outside of it is opened. Only [`Root::write`] writes, to files that exist.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::access::{Accesses, ERRORS, FIRST_READING, Results};
use super::read_error::{Malformed, ReadError, Reason};

/// Limit in bytes for files with a few lines.
pub const SMALL: usize = 64 << 10;

/// Limit for the number of entries of a directory.
const MAX_ENTRIES: usize = 1 << 20;

/// The root of all reads.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    /// Absolute path without links.
    path: PathBuf,
    /// Everything that was read, if it is recorded.
    accesses: Option<Mutex<Accesses>>,
    /// A copy of two readings, of which the first is read.
    reads_first: bool,
}

impl Root {
    /// Opens a directory as the root.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(path: &Path) -> io::Result<Root> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty())?;
        let mut root = Root { dir, path, accesses: None, reads_first: false };
        root.reads_first = !root.is_system() && root.exists(FIRST_READING);
        Ok(root)
    }

    /// Opens `/`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn system() -> io::Result<Root> {
        Root::open(Path::new("/"))
    }

    /// Records everything that is read from now on.
    pub fn recorded(self) -> Root {
        Root { accesses: Some(Mutex::default()), ..self }
    }

    /// Returns everything that was read since [`Root::recorded`].
    pub fn accesses(&self) -> Accesses {
        self.accesses.as_ref().map(|accesses| lock(accesses).clone()).unwrap_or_default()
    }

    /// Returns `true` if files can be read a second time: the system runs, or this is a copy with two readings.
    pub fn has_two_readings(&self) -> bool {
        self.is_system() || self.reads_first
    }

    /// Starts the second reading.
    pub fn start_second_reading(&mut self) {
        self.reads_first = false;
        if let Some(accesses) = &self.accesses {
            lock(accesses).start_second_reading();
        }
    }

    /// Returns `true` if this is the running system.
    pub fn is_system(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Reads at most `limit` bytes.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn bytes(&self, path: &str, limit: usize) -> Result<Vec<u8>, ReadError> {
        self.once(path, |accesses| &mut accesses.contents, || self.read_bytes(path, limit))
    }

    /// Reads a text of at most `limit` bytes, with replacements for bytes that are not UTF-8.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(&self, path: &str, limit: usize) -> Result<String, ReadError> {
        let bytes = self.bytes(path, limit)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into()))
    }

    /// Reads and decodes a text.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn parse<T>(
        &self,
        path: &str,
        limit: usize,
        decode: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Result<T, ReadError> {
        let text = self.read(path, limit)?;
        decode(&text).map_err(|error| ReadError { path: path.into(), reason: Reason::Malformed(error) })
    }

    /// Reads a short text without the spaces around it.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn word(&self, path: &str) -> Result<String, ReadError> {
        Ok(self.read(path, SMALL)?.trim().to_owned())
    }

    /// Returns a text about the running system that is in no file. In a copy, it is in the file `path`.
    ///
    /// # Errors
    /// The path and the reason.
    pub fn text(
        &self,
        path: &str,
        limit: usize,
        read: impl FnOnce() -> Result<String, Reason>,
    ) -> Result<String, ReadError> {
        if !self.is_system() {
            return self.read(path, limit);
        }
        let read = || {
            let text = read()?;
            self.record_text(path, &text);
            Ok(text.into_bytes())
        };
        let bytes = self.once(path, |accesses| &mut accesses.contents, read)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Records a text that is in no file.
    pub fn record_text(&self, path: &str, text: &str) {
        if let Some(accesses) = &self.accesses {
            lock(accesses).add_file(path.to_owned(), text.as_bytes());
        }
    }

    /// Returns the names in a directory, sorted: numbers by value first, then all others.
    ///
    /// # Errors
    /// The directory and the reason.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let mut names = self.once(path, |accesses| &mut accesses.lists, || self.names(path))?;
        names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        Ok(names)
    }

    /// Returns the path, without links, to which a path leads. It is below the root, with a leading `/`.
    ///
    /// # Errors
    /// The path and the reason.
    pub fn resolve(&self, path: &str) -> Result<String, ReadError> {
        let resolve = || {
            let file = self.open_below(path, OFlags::PATH)?;
            self.record(path, &file, |_, _| {});
            self.real_path(&file)
        };
        self.finish(path, resolve())
    }

    /// Returns `true` if the path leads to a file or directory.
    pub fn exists(&self, path: &str) -> bool {
        let file = self.open_below(path, OFlags::PATH);
        file.inspect(|file| self.record(path, file, |_, _| {})).is_ok()
    }

    /// Reads a path once in each reading if accesses are recorded.
    fn once<T: Clone>(
        &self,
        path: &str,
        results: fn(&mut Accesses) -> &mut Results<T>,
        read: impl FnOnce() -> Result<T, Reason>,
    ) -> Result<T, ReadError> {
        let Some(accesses) = &self.accesses else { return self.finish(path, read()) };
        lock(accesses).count();
        let known = results(&mut lock(accesses)).get(path).cloned();
        if let Some(known) = known {
            return known;
        }
        let result = self.finish(path, read());
        results(&mut lock(accesses)).insert(path.to_owned(), result.clone());
        result
    }

    /// Records the error of an attempt to read. In a copy, the error is the recorded one.
    fn finish<T>(&self, path: &str, result: Result<T, Reason>) -> Result<T, ReadError> {
        let recorded = |reason| {
            let error = if self.is_system() { None } else { self.recorded_error(path) };
            error.unwrap_or(reason)
        };
        let result = result.map_err(recorded);
        if let Some(accesses) = &self.accesses {
            lock(accesses).add_attempt(path, result.as_ref().err());
        }
        result.map_err(|reason| ReadError { path: path.into(), reason })
    }

    fn recorded_error(&self, path: &str) -> Option<Reason> {
        let file = self.open_below(&format!("{ERRORS}{path}"), READ).ok()?;
        Some(Reason::from_text(&String::from_utf8(read_to_limit(&file, SMALL).ok()?).ok()?))
    }

    /// Records an access to an open file or directory, and the links that lead to it.
    fn record(&self, path: &str, file: &OwnedFd, add: impl FnOnce(&mut Accesses, String)) {
        let Some(accesses) = &self.accesses else { return };
        let Ok(real) = self.real_path(file) else { return };
        let mut accesses = lock(accesses);
        let mut parent = String::new();
        for name in path.split('/').filter(|name| !name.is_empty() && *path != real) {
            let part = format!("{parent}/{name}");
            let Ok(real) = self.open_below(&part, OFlags::PATH).and_then(|part| self.real_path(&part)) else {
                return;
            };
            parent.clone_from(&real);
            accesses.add_link(part, real);
        }
        // A path without links leads to itself.
        accesses.add_link(real.clone(), real.clone());
        add(&mut accesses, real);
    }

    /// Returns the path outside of the root, without links.
    ///
    /// # Errors
    /// The path and the reason.
    pub fn outside(&self, path: &str) -> Result<PathBuf, ReadError> {
        Ok(self.path.join(self.resolve(path)?.trim_start_matches('/')))
    }

    /// Replaces the content of a file, for lights only. May block.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn write(&self, path: &str, text: &str) -> Result<(), ReadError> {
        self.write_text(path, text).map_err(|reason| ReadError { path: path.into(), reason })
    }

    fn write_text(&self, path: &str, text: &str) -> Result<(), Reason> {
        let file = self.open_below(path, OFlags::WRONLY | OFlags::TRUNC | OFlags::NOCTTY)?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, text.as_bytes()))?;
        if written == text.len() { Ok(()) } else { Err(Reason::Io("the kernel took only a part".into())) }
    }

    fn read_bytes(&self, path: &str, limit: usize) -> Result<Vec<u8>, Reason> {
        let mut file = self.open_below(path, READ)?;
        if self.reads_first {
            let first = format!("{FIRST_READING}{}", self.real_path(&file)?);
            file = self.open_below(&first, READ).unwrap_or(file);
        }
        let metadata = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
            return Err(Reason::Io("not a regular file".into()));
        }
        let content = read_to_limit(&file, limit)?;
        self.record(path, &file, |accesses, real| accesses.add_file(real, &content));
        Ok(content)
    }

    fn names(&self, path: &str) -> Result<Vec<String>, Reason> {
        let dir = self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
            if names.len() > MAX_ENTRIES {
                return Err(Reason::Io(format!("more than {MAX_ENTRIES} entries")));
            }
        }
        self.record(path, &dir, |accesses, real| accesses.add_directory(real, &names));
        Ok(names)
    }

    /// Returns the path of an open file below the root, without links.
    fn real_path(&self, file: &OwnedFd) -> Result<String, Reason> {
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let found = rustix::fs::readlink(link, Vec::new())?;
        let found = Path::new(OsStr::from_bytes(found.to_bytes()));
        let below = found.strip_prefix(&self.path).map_err(|_| Reason::Missing)?;
        Ok(format!("/{}", below.to_string_lossy()))
    }

    fn open_below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Reason> {
        let flags = flags | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(self.dir.as_fd(), path, flags, Mode::empty(), resolve) {
            // Before Linux 5.6, and in old sandboxes. Every path of `/` is below the root.
            Err(Errno::NOSYS | Errno::PERM) if self.is_system() => {
                Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
            }
            Err(Errno::NOSYS) => Err(Reason::Io("a root other than / requires Linux 5.6".into())),
            result => Ok(result?),
        }
    }
}

/// Flags to open a file. Opening a pipe waits for its writer unless it is non-blocking.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn lock(accesses: &Mutex<Accesses>) -> std::sync::MutexGuard<'_, Accesses> {
    accesses.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_to_limit(file: &OwnedFd, limit: usize) -> Result<Vec<u8>, Reason> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        match rustix::io::read(file, &mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if bytes.len() > limit {
            return Err(Reason::TooLong(limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn reason(result: Result<String, ReadError>) -> Reason {
        result.unwrap_err().reason
    }

    #[test]
    fn reads_up_to_the_limit() {
        let tree = Tree::new(&[("/proc/x", "12345\n"), ("/proc/bytes", "")]);
        tree.write_bytes("/proc/bytes", b"a\xffb");
        assert_eq!(tree.root().read("/proc/x", 6).unwrap(), "12345\n");
        assert_eq!(reason(tree.root().read("/proc/x", 5)), Reason::TooLong(5));
        assert_eq!(tree.root().word("/proc/bytes").unwrap(), "a\u{fffd}b");
    }

    #[test]
    fn reports_missing_files_and_other_types() {
        let tree = Tree::new(&[("/proc/x", "1")]);
        assert_eq!(reason(tree.root().word("/proc/y")), Reason::Missing);
        assert_eq!(reason(tree.root().word("/proc/x/y")), Reason::Missing);
        assert!(matches!(reason(tree.root().word("/proc")), Reason::Io(_)));
        rustix::fs::mknodat(CWD, tree.path("/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(matches!(reason(tree.root().word("/pipe")), Reason::Io(_)));
    }

    #[test]
    fn links_stay_below_the_root() {
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(outside.path(), "secret").unwrap();
        let tree = Tree::new(&[("/sys/devices/pci/sda/size", "7"), ("/sys/block/x", "")]);
        tree.link("/sys/block/sda", "../devices/pci/sda");
        tree.link("/out", outside.path().to_str().unwrap());
        tree.link("/up", &format!("../../../../../../..{}", outside.path().display()));
        tree.link("/loop", "loop");
        tree.link("/magic", "/proc/self/root/etc/passwd");
        let root = tree.root();
        assert_eq!(root.word("/sys/block/sda/size").unwrap(), "7");
        assert_eq!(root.resolve("/sys/block/sda").unwrap(), "/sys/devices/pci/sda");
        for path in ["/out", "/up", "/magic"] {
            assert_eq!(reason(root.word(path)), Reason::Missing, "{path}");
        }
        assert!(matches!(reason(root.word("/loop")), Reason::Io(_)));
        assert!(root.exists("/sys/block/sda") && !root.exists("/out"));
    }

    #[test]
    fn system_root_refuses_links_to_open_files() {
        let root = Root::system().unwrap();
        assert!(root.word("/proc/self/comm").is_ok());
        assert!(root.read("/proc/self/exe", 1 << 30).is_err());
        assert!(Root::open(Path::new("/no/such")).is_err());
    }

    #[test]
    fn lists_numbers_in_order() {
        let tree = Tree::new(&[("/irq/10/a", ""), ("/irq/9/a", ""), ("/irq/default", "")]);
        assert_eq!(tree.root().list("/irq").unwrap(), ["9", "10", "default"]);
        assert_eq!(tree.root().list("/no").unwrap_err().reason, Reason::Missing);
    }
}
