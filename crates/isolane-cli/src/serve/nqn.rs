//! Name of the subsystem: given, or derived from this machine and its volumes.

use std::fs;
use std::net::SocketAddr;

use isolane_volume::spec::{Source, VolumeSpec};
use isolane_volumes::Kinds;
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

/// Whether the identity of a volume is the same after a restart: the volume has blocks outside of this process.
pub fn has_identity(kinds: &Kinds, spec: &VolumeSpec) -> Result<bool, Failure> {
    let leaves = kinds.leaves(spec).map_err(Failure::from_error)?;
    let is_lost = |leaf: &VolumeSpec| matches!(leaf.source, Source::Memory { .. } | Source::Null { .. });
    Ok(spec.uuid.is_some() || !leaves.iter().any(|leaf| is_lost(leaf) && leaf.uuid.is_none()))
}

/// Returns the NQN of this machine's target for volumes with these identities, so that hosts find it again at another
/// address. Without an identity, targets on one machine differ by their first listener; on port 0 the NQN is random.
pub fn derive(mut identities: Vec<Uuid>, listener: SocketAddr) -> Result<Nqn, Failure> {
    let host_name = || fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
    let mut name = isolane_host::machine_id().unwrap_or_else(host_name);
    identities.sort_unstable();
    identities.iter().for_each(|uuid| name += &format!(" {uuid}"));
    if identities.is_empty() && listener.to_string() != LISTEN {
        name += &format!(" {listener}");
    }
    let uuid = if identities.is_empty() && listener.port() == 0 {
        Uuid::new_v4()
    } else {
        Uuid::new_v5(&NAMESPACE, name.as_bytes())
    };
    format!("{}{uuid}", Nqn::UUID_PREFIX).parse().context("cannot derive the name of the subsystem")
}

/// Returns an identity of this machine, if it has one.
pub fn machine() -> Option<Uuid> {
    Some(Uuid::new_v5(&NAMESPACE, isolane_host::machine_id()?.as_bytes()))
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
    fn name_follows_volumes_not_listener() {
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let of = |uuids: &[Uuid], address: &str| derive(uuids.to_vec(), address.parse().unwrap()).unwrap();
        for other in ["127.0.0.1:4421", "10.0.0.1:4420", "127.0.0.1:0", "[::]:4420"] {
            assert_eq!(of(&[a, b], "127.0.0.1:4420"), of(&[b, a], other), "{other}");
        }
        assert_ne!(of(&[a], LISTEN), of(&[b], LISTEN));
        assert_ne!(of(&[a], LISTEN), of(&[a, b], LISTEN));
        assert_ne!(of(&[a], LISTEN), of(&[], LISTEN));
    }

    #[test]
    fn name_without_identity_differs_by_address() {
        let of = |address: &str| derive(Vec::new(), address.parse().unwrap()).unwrap();
        assert_eq!(of("127.0.0.1:4420"), of("127.0.0.1:4420"));
        assert_eq!(of("127.0.0.1:4421"), of("127.0.0.1:4421"));
        assert_ne!(of("127.0.0.1:4420"), of("127.0.0.1:4421"));
        assert_ne!(of("10.0.0.1:4420"), of("10.0.0.2:4420"));
        assert_ne!(of("127.0.0.1:0"), of("127.0.0.1:0"));
    }

    #[test]
    fn memory_has_no_identity_unless_given() {
        let kinds = Kinds::default();
        let has = |text: &str| has_identity(&kinds, &kinds.parse(text).unwrap()).unwrap();
        let uuid = "uuid=0f01fb42-9f7f-4856-b0b3-51e60b8de349";
        assert!(has("disk.img") && has("read-only:disk.img") && has("stripe:64k:a;b"));
        assert!(has(&format!("mem:1G,{uuid}")) && has(&format!("read-only:mem:1G,{uuid}")));
        assert!(!has("mem:1G") && !has("null:1T") && !has("stripe:64k:a;mem:1G") && !has("delay:5ms:mem:1G"));
    }
}
