//! Who this host is: its NQN and host id.
//!
//! The same as the kernel's host uses where it was set up (`/etc/nvme/hostnqn`, `/etc/nvme/hostid`), else
//! derived from the machine id, so that a target's list of allowed hosts keeps fitting after a restart. Not a
//! secret: a name can be forged. Invariant: name and id stay the same as long as their files do.

use std::fs;
use std::path::Path;

use isolane_wire::Nqn;
use uuid::Uuid;

/// Derived ids live in a name space of their own, so that they collide with no other use of the machine id.
const SPACE: Uuid = Uuid::from_u128(0x6973_6f6c_616e_6540_8000_686f_7374_6964);

const MACHINE_IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// The NQN of this host.
pub fn host_nqn() -> Nqn {
    read_line(Path::new("/etc/nvme/hostnqn"))
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| nqn_of(host_id()))
}

/// The host id: associations of one machine carry the same.
pub fn host_id() -> Uuid {
    read_line(Path::new("/etc/nvme/hostid"))
        .and_then(|text| Uuid::parse_str(&text).ok())
        .or_else(|| machine_id().map(|id| Uuid::new_v5(&SPACE, id.as_bytes())))
        .unwrap_or_else(Uuid::new_v4)
}

/// What this machine is known by, where it has such a thing.
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
    fn the_machine_keeps_its_name() {
        if Path::new("/etc/machine-id").exists() || Path::new("/etc/nvme/hostid").exists() {
            assert_eq!(host_id(), host_id());
            assert_eq!(host_nqn().as_str(), host_nqn().as_str());
        }
    }

    #[test]
    fn the_first_line_counts_and_an_empty_file_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        fs::write(&path, "  abc \nrest\n").unwrap();
        assert_eq!(read_line(&path).as_deref(), Some("abc"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(read_line(&path), None);
    }
}
