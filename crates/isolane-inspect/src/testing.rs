//! Small fake trees for tests.

use std::fs;
use std::path::PathBuf;

use crate::system::Root;

/// Temporary directory with files, removed on drop.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// Creates files from pairs of path and content.
    pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap() };
        for (path, content) in files {
            tree.write_bytes(path, content.as_bytes());
        }
        tree
    }

    pub(crate) fn root(&self) -> Root {
        Root::open(self.dir.path()).unwrap()
    }

    /// Returns the path outside of the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write_bytes(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.path(path)).unwrap();
    }
}
