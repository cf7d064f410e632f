//! Path of an engine's socket, and the command that starts an engine there.

use std::path::{Path, PathBuf};

use crate::runtime_dir;

/// Returns the default path: `$XDG_RUNTIME_DIR/isolane/engine.sock`, else in a directory of this user under `/tmp`.
pub fn default_path() -> PathBuf {
    runtime_dir::default_dir().join("engine.sock")
}

/// Returns the command that starts an engine on `path`.
pub fn start_command(path: &Path) -> String {
    if path == Path::new("") || path == default_path() {
        "isolane engine".into()
    } else {
        format!("isolane engine --socket {}", path.display())
    }
}
