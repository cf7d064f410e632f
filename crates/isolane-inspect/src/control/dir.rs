//! Directory and names of control sockets.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use isolane_engine_api::runtime_dir::{default_dir, exposed_reason};
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::unix_socket::refuses;

/// Returns the directory of the control sockets of this user: `$RUNTIME_DIRECTORY` of a service, else
/// `$XDG_RUNTIME_DIR/isolane`, else `/tmp/isolane-UID`.
pub fn own_directory() -> PathBuf {
    let directories = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
    // A service can have several, separated by colons.
    let first = std::env::split_paths(&directories).next().unwrap_or_default();
    if first.is_absolute() { first } else { default_dir() }
}

/// Returns the path of the socket of this process in a directory.
pub fn socket_path(dir: &Path, kind: &str) -> PathBuf {
    dir.join(format!("{kind}-{}.sock", std::process::id()))
}

/// Returns kind and process ID of a name.
pub fn parse_name(name: &str) -> Option<(&str, u32)> {
    let (kind, pid) = name.strip_suffix(".sock")?.rsplit_once('-')?;
    let is_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    Some((kind, pid.parse().ok()?)).filter(|_| is_kind)
}

/// Checks that no other user can replace files in the directory of a socket. Creates the default directory, for its
/// owner alone.
///
/// # Errors
/// The directory and the reason, with a remedy.
pub fn prepare(socket: &Path) -> Result<(), String> {
    let dir = match socket.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    if dir == default_dir() {
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(format!("{}: {error}; create it", dir.display()));
            }
            _ => {}
        }
    }
    match exposed_reason(dir) {
        Some(reason) => Err(format!("{} {reason}", dir.display())),
        None => Ok(()),
    }
}

/// Removes the sockets of processes of this user that have ended.
pub fn remove_dead(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if is_dead(&entry.path()) {
            // Another process can have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn is_dead(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| parse_name(name.to_str()?));
    let Some((_, pid)) = name else { return false };
    // A process that is about to listen also refuses connections.
    let runs = Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid).is_ok());
    let is_own = std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == geteuid().as_raw());
    is_own && !runs && refuses(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn names_are_parsed() {
        let path = socket_path(Path::new("/run"), "serve");
        let pid = std::process::id();
        assert_eq!(parse_name(path.file_name().unwrap().to_str().unwrap()), Some(("serve", pid)));
        assert_eq!(parse_name("my-host-7.sock"), Some(("my-host", 7)));
        for other in
            ["engine.sock", "serve-x.sock", "-7.sock", "a\u{1b}-7.sock", "serve-7.sock.lock", "serve-"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn removes_sockets_of_ended_processes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let names = [
            format!("serve-{dead}.sock"),
            "engine.sock".into(),
            format!("serve-{}.sock", std::process::id()),
        ];
        names.iter().for_each(|name| drop(UnixListener::bind(path(name)).unwrap()));
        remove_dead(dir.path());
        let left: Vec<bool> = names.iter().map(|name| path(name).exists()).collect();
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn refuses_directories_writable_by_others() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("serve-1.sock");
        assert_eq!(prepare(&socket), Ok(()));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&socket).unwrap_err().contains("chmod go-w"));
        let error = prepare(&dir.path().join("missing/serve-1.sock")).unwrap_err();
        assert!(error.ends_with("/missing does not exist; create it"), "{error}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = prepare(&dir.path().join("file/serve-1.sock")).unwrap_err();
        assert!(error.ends_with("/file is not a directory; remove it"), "{error}");
    }
}
