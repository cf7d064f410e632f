//! The name of the subsystem: as given, or made from this machine and the address of its first listener.

use std::fs;
use std::net::SocketAddr;

use isolane_wire::Nqn;
use uuid::Uuid;

use crate::failure::{Context, Failure};

/// What tells a machine from others that has no machine id.
const HOST_NAME: &str = "/etc/hostname";

/// Separates names made here from other uses of the machine's identity.
const NAMESPACE: Uuid = Uuid::from_u128(0x6973_6f6c_616e_6540_8000_7461_7267_6574);

/// What ends an NQN in a URI, or means something to a shell.
const FORBIDDEN: &str = "?#&;|<>()$`\\\"'*[]{}!";

/// The listener without `--listen`.
pub const LISTEN: &str = "127.0.0.1:4420";

/// The NQN of this machine's target at `listener`: the same at every start. Two targets of one machine listen at
/// different addresses, so hosts never take them for one; on port 0 the name is random.
pub fn of_this_machine(listener: SocketAddr) -> Result<Nqn, Failure> {
    let mut identity = isolane_host::machine_id().or_else(|| read(HOST_NAME)).unwrap_or_default();
    if listener.to_string() != LISTEN {
        identity += &format!(" {listener}");
    }
    let uuid = match listener.port() {
        0 => Uuid::new_v4(),
        _ => Uuid::new_v5(&NAMESPACE, identity.as_bytes()),
    };
    format!("{}{uuid}", Nqn::UUID_PREFIX).parse().context("cannot make a name for the subsystem")
}

/// The name that somebody chose. It must survive what is pasted from it: a URI, and a shell's line.
pub fn chosen(text: &str) -> Result<Nqn, Failure> {
    let what = || format!("`{text}` cannot be the name of the subsystem");
    if let Some(bad) = text.chars().find(|&c| !c.is_ascii_graphic() || FORBIDDEN.contains(c)) {
        return Err(Failure::new(what(), format!("{bad:?} is special in a URI or a shell"))
            .remedy("give a name such as nqn.2014-08.org.example:disk"));
    }
    let nqn: Nqn = text.parse().context(what())?;
    match nqn.has_standard_format() {
        true => Ok(nqn),
        false => Err(Failure::new(what(), "it is not an NVMe qualified name").remedy(
            "write nqn.YEAR-MONTH.DOMAIN:NAME with a domain of yours, such as nqn.2014-08.org.example:disk",
        )),
    }
}

/// The serial number of a subsystem: 20 characters that only this name has, so that links by model and serial
/// number on a host do not collide.
pub fn serial(nqn: &Nqn) -> String {
    let mut serial = Uuid::new_v5(&NAMESPACE, nqn.as_str().as_bytes()).simple().to_string();
    serial.truncate(20);
    serial
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
    fn a_name_that_cannot_be_pasted_is_refused() {
        assert!(chosen("nqn.2014-08.org.example:disk").is_ok());
        for name in ["", "nqn.2014-08.org.example:a?b", "nqn.2014-08.org.example:a b", "foo"] {
            assert!(chosen(name).unwrap_err().to_string().contains("nqn.2014-08.org.example:disk"), "{name}");
        }
    }

    #[test]
    fn every_name_has_its_own_serial_number() {
        let serial = |name: &str| serial(&name.parse().unwrap());
        assert_eq!(serial("nqn.a").len(), 20);
        assert_eq!(serial("nqn.a"), serial("nqn.a"));
        assert_ne!(serial("nqn.a"), serial("nqn.b"));
    }

    #[test]
    fn the_name_is_the_same_every_time_and_another_at_every_address() {
        let of = |address: &str| of_this_machine(address.parse().unwrap()).unwrap();
        assert_eq!(of("127.0.0.1:4420"), of("127.0.0.1:4420"));
        assert_eq!(of("127.0.0.1:4421"), of("127.0.0.1:4421"));
        assert_ne!(of("127.0.0.1:4420"), of("127.0.0.1:4421"));
        assert_ne!(of("10.0.0.1:4420"), of("10.0.0.2:4420"));
        assert_ne!(of("127.0.0.1:0"), of("127.0.0.1:0"));
    }
}
