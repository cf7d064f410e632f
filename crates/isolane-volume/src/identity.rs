//! Identity of a volume, by which hosts recognize it.

use uuid::Uuid;

/// Identifiers of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID (NIDT 3h). All other identifiers derive from it.
    pub uuid: Uuid,
}

impl Identity {
    /// Returns a new unique identity.
    pub fn random() -> Identity {
        Identity { uuid: Uuid::new_v4() }
    }

    /// Derives the identity of a name on this machine.
    pub fn derived(name: &[u8]) -> Identity {
        let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
        let name = [machine.trim_ascii(), b"\0", name].concat();
        Identity { uuid: Uuid::new_v5(&NAMESPACE, &name) }
    }

    /// Returns the NGUID (NIDT 2h): the UUID's 16 bytes.
    pub fn nguid(&self) -> [u8; 16] {
        *self.uuid.as_bytes()
    }
}

/// UUID namespace of derived identities, chosen at random.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f0c_43a1_93d4_4b52_8c1e_5d35_9be7_24f6);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_identity_depends_on_name_only() {
        assert_eq!(Identity::derived(b"/a"), Identity::derived(b"/a"));
        assert_ne!(Identity::derived(b"/a"), Identity::derived(b"/b"));
        assert_ne!(Identity::random(), Identity::random());
    }
}
