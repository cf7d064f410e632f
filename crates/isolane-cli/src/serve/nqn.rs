//! Name of the subsystem: given, or derived from this machine and the address of its first listener.

use std::fs;
use std::net::SocketAddr;

use isolane_wire::Nqn;
use uuid::Uuid;

use crate::failure::{Context, Failure};
use crate::host_args::parse_standard_nqn;

/// Identity of a machine without a machine ID.
const HOST_NAME: &str = "/etc/hostname";

/// UUID namespace of derived names.
const NAMESPACE: Uuid = Uuid::from_u128(0x6973_6f6c_616e_6540_8000_7461_7267_6574);

/// Characters that end an NQN in a URI or are special in a shell.
const FORBIDDEN: &str = "?#&;|<>()$`\\\"'*[]{}!";

/// Default listener.
pub const LISTEN: &str = "127.0.0.1:4420";

/// Returns a stable NQN of this machine's target at `listener`; it is random on port 0. Targets on one machine have
/// different addresses, so their names differ.
pub fn machine_nqn(listener: SocketAddr) -> Result<Nqn, Failure> {
    let host_name = || fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
    let mut identity = isolane_host::machine_id().unwrap_or_else(host_name);
    if listener.to_string() != LISTEN {
        identity += &format!(" {listener}");
    }
    let uuid = match listener.port() {
        0 => Uuid::new_v4(),
        _ => Uuid::new_v5(&NAMESPACE, identity.as_bytes()),
    };
    format!("{}{uuid}", Nqn::UUID_PREFIX).parse().context("cannot derive the name of the subsystem")
}

/// Parses a given name, which must be usable in a URI and in a shell.
pub fn parse_nqn(text: &str) -> Result<Nqn, Failure> {
    let what = format!("`{text}` is not a valid name of a subsystem");
    if let Some(bad) = text.chars().find(|&c| !c.is_ascii_graphic() || FORBIDDEN.contains(c)) {
        return Err(Failure::new(what, format!("{bad:?} is special in a URI or a shell"))
            .with_hint("use a name such as nqn.2014-08.org.example:disk"));
    }
    parse_standard_nqn(text, &what, "disk")
}

/// Returns the serial number of a subsystem: 20 characters derived from its name, so that links by model and serial
/// number on a host do not collide.
pub fn serial(nqn: &Nqn) -> String {
    let mut serial = Uuid::new_v5(&NAMESPACE, nqn.as_str().as_bytes()).simple().to_string();
    serial.truncate(20);
    serial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_names_with_special_characters() {
        assert!(parse_nqn("nqn.2014-08.org.example:disk").is_ok());
        for name in ["", "nqn.2014-08.org.example:a?b", "nqn.2014-08.org.example:a b", "foo"] {
            assert!(
                parse_nqn(name).unwrap_err().to_string().contains("nqn.2014-08.org.example:disk"),
                "{name}"
            );
        }
    }

    #[test]
    fn serial_numbers_differ_by_name() {
        let serial = |name: &str| serial(&name.parse().unwrap());
        assert_eq!(serial("nqn.a").len(), 20);
        assert_eq!(serial("nqn.a"), serial("nqn.a"));
        assert_ne!(serial("nqn.a"), serial("nqn.b"));
    }

    #[test]
    fn names_are_stable_and_differ_by_address() {
        let of = |address: &str| machine_nqn(address.parse().unwrap()).unwrap();
        assert_eq!(of("127.0.0.1:4420"), of("127.0.0.1:4420"));
        assert_eq!(of("127.0.0.1:4421"), of("127.0.0.1:4421"));
        assert_ne!(of("127.0.0.1:4420"), of("127.0.0.1:4421"));
        assert_ne!(of("10.0.0.1:4420"), of("10.0.0.2:4420"));
        assert_ne!(of("127.0.0.1:0"), of("127.0.0.1:0"));
    }
}
