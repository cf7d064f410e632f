//! Control sockets of running programs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use isolane_engine_api::runtime_dir::{default_dir, exposed_reason, is_trusted};

use crate::control::dir::{own_directory, parse_name};
use crate::unix_socket::has_listener;

/// Limit for the number of control sockets that are tried.
const MAX_SOCKETS: usize = 256;

/// Control socket of a running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlSocket {
    /// Its path.
    pub path: PathBuf,
    /// `serve`, `engine`, or the name of another program.
    pub kind: String,
    /// Process ID, as the program wrote it in the name.
    pub pid: u32,
}

/// Returns the control sockets of all running programs of this user; for root, also of other users.
pub fn control_sockets() -> Vec<ControlSocket> {
    let mut found: Vec<ControlSocket> = directories().iter().flat_map(|dir| sockets_in(dir)).collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found.dedup();
    found.truncate(MAX_SOCKETS);
    found.retain(|socket| has_listener(&socket.path));
    found
}

/// Returns `true` if a path is that of a user whom this one trusts, which no other user can replace: this user, or root.
pub fn is_socket_of_trusted_user(path: &Path) -> bool {
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    // The path can be a link.
    let found = [path.symlink_metadata(), path.metadata()];
    exposed_reason(dir).is_none() && found.into_iter().all(|found| found.is_ok_and(|it| is_trusted(it.uid())))
}

/// Returns the directories that can contain control sockets.
pub(super) fn directories() -> Vec<PathBuf> {
    let mut found = vec![own_directory(), default_dir(), "/run/isolane".into()];
    if rustix::process::geteuid().is_root() {
        let runtime = entries(Path::new("/run/user")).map(|user| user.join("isolane"));
        let temporary = entries(Path::new("/tmp")).filter(|path| is_temporary(path));
        found.extend(runtime.chain(temporary).filter(|path| path.is_dir()));
    }
    found.sort();
    found.dedup();
    found
}

fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("isolane-").is_some_and(|user| user.parse::<u32>().is_ok())
}

fn sockets_in(dir: &Path) -> Vec<ControlSocket> {
    // Another user could answer in place of the program. Root reads the programs of all users, and trusts none.
    if !rustix::process::geteuid().is_root() && exposed_reason(dir).is_some() {
        return Vec::new();
    }
    let socket = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let (kind, pid) = parse_name(name)?;
        Some(ControlSocket { kind: kind.to_owned(), pid, path })
    };
    entries(dir).filter_map(socket).take(MAX_SOCKETS).collect()
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn lists_sockets_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(dir.path().join("serve-12.sock")).unwrap();
        for other in ["engine.sock", "serve-x.sock", "serve-1.log", "engine.sock.lock"] {
            std::fs::write(dir.path().join(other), "").unwrap();
        }
        let found = sockets_in(dir.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&*found[0].kind, found[0].pid), ("serve", 12));
    }

    #[test]
    fn trusts_own_sockets_only() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("serve-1.sock"), dir.path().join("link"));
        let _listener = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(is_socket_of_trusted_user(&path) && is_socket_of_trusted_user(&link));
        assert!(!is_socket_of_trusted_user(&dir.path().join("absent")));
        let set_mode =
            |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o777);
        assert!(!is_socket_of_trusted_user(&path), "others can replace it");
        set_mode(0o700);
        // Only root can give files to others.
        if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
            assert!(!is_socket_of_trusted_user(&path) && !is_socket_of_trusted_user(&link));
        }
    }

    #[test]
    fn recognizes_directories_of_users() {
        assert!(is_temporary(Path::new("/tmp/isolane-1000")));
        for other in ["/tmp/isolane-x", "/tmp/isolane-", "/tmp/1000"] {
            assert!(!is_temporary(Path::new(other)), "{other}");
        }
    }
}
