//! Everything that was read below a root, for a copy of it.

use std::collections::BTreeMap;

use super::read_error::{ReadError, Reason};

/// Directory of a copy with the files that were different in the first of two readings.
pub const FIRST_READING: &str = "/isolane/first-reading";

/// Directory of a copy with the reasons for which files could not be read.
pub const ERRORS: &str = "/isolane/errors";

/// The last access to each path. Paths have no links, except paths of errors.
#[derive(Debug, Clone, Default)]
pub struct Accesses {
    files: BTreeMap<String, Vec<u8>>,
    first_reading: Option<BTreeMap<String, Vec<u8>>>,
    directories: BTreeMap<String, Vec<String>>,
    links: BTreeMap<String, String>,
    errors: BTreeMap<String, String>,
    /// Results of this reading, so that all checks use the content that is copied. Paths are as requested.
    pub(super) contents: Results<Vec<u8>>,
    pub(super) lists: Results<Vec<String>>,
    reads: usize,
}

/// Results by path.
pub(super) type Results<T> = BTreeMap<String, Result<T, ReadError>>;

impl Accesses {
    pub(super) fn add_file(&mut self, path: String, content: &[u8]) {
        self.files.insert(path, content.to_owned());
    }

    pub(super) fn add_directory(&mut self, path: String, names: &[String]) {
        self.directories.insert(path, names.to_owned());
    }

    /// Adds a part of a path, and the path without links to which it leads.
    pub(super) fn add_link(&mut self, path: String, real: String) {
        self.links.insert(path, real);
    }

    /// Counts a request.
    pub(super) fn count(&mut self) {
        self.reads += 1;
    }

    /// Adds the error of an attempt to read. A path that has vanished is not copied.
    pub(super) fn add_attempt(&mut self, path: &str, error: Option<&Reason>) {
        self.errors.remove(path);
        let Some(error) = error else { return };
        self.files.remove(path);
        self.directories.remove(path);
        if *error != Reason::Missing {
            self.errors.insert(path.to_owned(), error.to_string());
        }
    }

    /// Keeps the contents until now as the first reading.
    pub(super) fn start_second_reading(&mut self) {
        self.first_reading = Some(self.files.clone());
        self.contents.clear();
        self.lists.clear();
    }

    /// Returns the files that were read, with their contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, content)| (&**path, &**content))
    }

    /// Returns the contents of the first reading that the second one did not find again. `None` without a second one.
    pub fn first_reading(&self) -> Option<impl Iterator<Item = (&str, &[u8])>> {
        let is_different =
            |path: &str, content: &[u8]| self.files.get(path).is_some_and(|last| last != content);
        let files = self.first_reading.as_ref()?.iter().map(|(path, content)| (&**path, &**content));
        Some(files.filter(move |(path, content)| is_different(path, content)))
    }

    /// Returns the directories that were listed, with the names in them.
    pub fn directories(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.directories.iter().map(|(path, names)| (&**path, &**names))
    }

    /// Returns the parts of all paths that contain links, and the paths without links to which they lead.
    pub fn links(&self) -> impl Iterator<Item = (&str, &str)> {
        self.links.iter().map(|(path, real)| (&**path, &**real))
    }

    /// Returns the paths that exist and could not be read, with the reasons.
    pub fn errors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.errors.iter().map(|(path, reason)| (&**path, &**reason))
    }

    /// Returns how often a file or directory was requested.
    pub fn reads(&self) -> usize {
        self.reads
    }
}
