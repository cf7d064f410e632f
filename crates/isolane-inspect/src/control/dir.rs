//! Directory and names of control sockets.

use std::path::{Path, PathBuf};

use isolane_engine_api::runtime_dir::default_dir;

/// Returns the directory of the control sockets of this user: `$RUNTIME_DIRECTORY` of a service, else
/// `$XDG_RUNTIME_DIR/isolane`, else `/tmp/isolane-UID`.
pub fn own_directory() -> PathBuf {
    let directories = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
    // A service can have several, separated by colons.
    let first = std::env::split_paths(&directories).next().unwrap_or_default();
    if first.is_absolute() { first } else { default_dir() }
}

/// Returns the name of the socket of a process.
pub fn socket_path(dir: &Path, kind: &str, pid: u32) -> PathBuf {
    dir.join(format!("{kind}-{pid}.sock"))
}

/// Returns kind and process ID of a name.
pub fn parse_name(name: &str) -> Option<(&str, u32)> {
    let (kind, pid) = name.strip_suffix(".sock")?.rsplit_once('-')?;
    let is_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    Some((kind, pid.parse().ok()?)).filter(|_| is_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let path = socket_path(Path::new("/run"), "serve", 7);
        assert_eq!(parse_name(path.file_name().unwrap().to_str().unwrap()), Some(("serve", 7)));
        assert_eq!(parse_name("my-host-7.sock"), Some(("my-host", 7)));
        for other in
            ["engine.sock", "serve-x.sock", "-7.sock", "a\u{1b}-7.sock", "serve-7.sock.lock", "serve-"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
