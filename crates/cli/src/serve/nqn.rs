//! The name of the subsystem when none was given: the same on this machine at every start.

use std::fs;

use isolane_wire::Nqn;
use uuid::Uuid;

use crate::failure::{Context, Failure};

/// Where a machine keeps its identity, most stable first.
const SOURCES: [&str; 3] = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/hostname"];

/// Separates names made here from other uses of the machine's identity.
const NAMESPACE: Uuid = Uuid::from_u128(0x6973_6f6c_616e_6540_8000_7461_7267_6574);

/// The NQN of this machine's target.
pub fn of_this_machine() -> Result<Nqn, Failure> {
    let identity = SOURCES.iter().find_map(|path| read(path)).unwrap_or_default();
    let uuid = Uuid::new_v5(&NAMESPACE, identity.as_bytes());
    format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}").parse().context("cannot make a name for the subsystem")
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_same_every_time() {
        assert_eq!(of_this_machine().unwrap(), of_this_machine().unwrap());
    }
}
