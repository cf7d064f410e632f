//! Who a volume is: what hosts recognise it by.

use uuid::Uuid;

/// Identifiers of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The UUID (NIDT 3h). All others are made from it.
    pub uuid: Uuid,
}

impl Identity {
    /// A new one that nothing else has.
    pub fn random() -> Identity {
        Identity { uuid: Uuid::new_v4() }
    }

    /// Always the same one for the same name on the same machine.
    pub fn derived(name: &[u8]) -> Identity {
        let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
        let name = [machine.trim_ascii(), b"\0", name].concat();
        Identity { uuid: Uuid::new_v5(&NAMESPACE, &name) }
    }

    /// The NGUID (NIDT 2h): the UUID's 16 bytes.
    pub fn nguid(&self) -> [u8; 16] {
        *self.uuid.as_bytes()
    }
}

/// Name space of derived identities: chosen once, at random.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f0c_43a1_93d4_4b52_8c1e_5d35_9be7_24f6);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_identity_is_the_same_for_the_same_name_only() {
        assert_eq!(Identity::derived(b"/a"), Identity::derived(b"/a"));
        assert_ne!(Identity::derived(b"/a"), Identity::derived(b"/b"));
        assert_ne!(Identity::random(), Identity::random());
    }
}
