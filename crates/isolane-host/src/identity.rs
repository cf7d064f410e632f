//! Identity of this host: its NQN and host ID.
//!
//! The same as the kernel's host uses if it is set up (`/etc/nvme/hostnqn`, `/etc/nvme/hostid`), otherwise
//! derived from the machine ID, so that a target's list of allowed hosts remains valid after a restart. Not a
//! secret: a name can be forged.
//!
//! Invariant: NQN and ID stay the same as long as their files do.

use std::fs;
use std::path::Path;

use isolane_wire::Nqn;
use uuid::Uuid;

/// UUID namespace of derived IDs, so that they differ from every other use of the machine ID.
const SPACE: Uuid = Uuid::from_u128(0x6973_6f6c_616e_6540_8000_686f_7374_6964);

const MACHINE_IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// The NQN of this host.
pub fn host_nqn() -> Nqn {
    read_line(Path::new("/etc/nvme/hostnqn"))
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| nqn_of(host_id()))
}

/// The host ID, which all associations of one machine have in common.
pub fn host_id() -> Uuid {
    read_line(Path::new("/etc/nvme/hostid"))
        .and_then(|text| Uuid::parse_str(&text).ok())
        .or_else(|| machine_id().map(|id| Uuid::new_v5(&SPACE, id.as_bytes())))
        .unwrap_or_else(Uuid::new_v4)
}

/// The machine ID, if there is one.
pub fn machine_id() -> Option<String> {
    MACHINE_IDS.iter().find_map(|path| read_line(Path::new(path)))
}

/// The NQN form that carries a UUID (Base Specification, NVMe Qualified Names).
fn nqn_of(id: Uuid) -> Nqn {
    format!("{}{id}", Nqn::UUID_PREFIX).parse().expect("a UUID in the standard form is a valid NQN")
}

fn read_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable() {
        if Path::new("/etc/machine-id").exists() || Path::new("/etc/nvme/hostid").exists() {
            assert_eq!(host_id(), host_id());
            assert_eq!(host_nqn().as_str(), host_nqn().as_str());
        }
    }

    #[test]
    fn reads_first_line_and_skips_empty_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id");
        fs::write(&path, "  abc \nrest\n").unwrap();
        assert_eq!(read_line(&path).as_deref(), Some("abc"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(read_line(&path), None);
    }
}
