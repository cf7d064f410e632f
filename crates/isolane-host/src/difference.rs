//! The difference between a volume and the one that was there before.
//!
//! Invariant: two namespaces with a difference never share requests.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::info::{Info, NamespaceInfo};

/// One reason why a namespace cannot be the volume that it was. All but one of the variants hold the value before
/// and the value now.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum Difference {
    /// UUID.
    #[error("UUID {} instead of {}", uuid(.1), uuid(.0))]
    Uuid(Option<Uuid>, Option<Uuid>),
    /// NGUID.
    #[error("NGUID {} instead of {}", hexadecimal(.1), hexadecimal(.0))]
    Nguid(Option<[u8; 16]>, Option<[u8; 16]>),
    /// EUI64.
    #[error("EUI64 {} instead of {}", hexadecimal(.1), hexadecimal(.0))]
    Eui64(Option<[u8; 8]>, Option<[u8; 8]>),
    /// Size of a logical block in bytes.
    #[error("blocks of {1} bytes instead of {0}")]
    BlockBytes(u32, u32),
    /// Metadata of a block in bytes.
    #[error("{1} bytes of metadata with each block instead of {0}")]
    MetadataBytes(u16, u16),
    /// Size in blocks, which may grow but not shrink.
    #[error("{1} blocks instead of {0}")]
    Blocks(u64, u64),
    /// Maximum command size in blocks; a client of an engine cannot split its requests again.
    #[error("commands of at most {1} blocks instead of {0}")]
    CommandBlocks(u32, u32),
    /// Name, serial number or model of the subsystem of a namespace that has no identifier.
    #[error("another subsystem, and a namespace without an identifier")]
    Subsystem,
}

impl Difference {
    /// Returns the first difference of `namespace` to the one before, which belonged to `info_before`. A
    /// namespace without an identifier is known by its subsystem.
    pub(crate) fn of_volume(
        (info, namespace): (&Info, &NamespaceInfo),
        (info_before, before): (&Info, &NamespaceInfo),
    ) -> Option<Difference> {
        let subsystem = |info: &Info| {
            (info.nqn, info.controller.serial.trim().to_owned(), info.controller.model.trim().to_owned())
        };
        let has_id = namespace.uuid.is_some() || namespace.nguid.is_some() || namespace.eui64.is_some();
        let difference = Difference::of(namespace, before);
        let is_other = || !has_id && subsystem(info) != subsystem(info_before);
        difference.or_else(|| is_other().then_some(Difference::Subsystem))
    }

    /// Returns the first difference of a namespace to the one before.
    pub(crate) fn of(now: &NamespaceInfo, before: &NamespaceInfo) -> Option<Difference> {
        let fields = [
            (now.uuid != before.uuid).then_some(Difference::Uuid(before.uuid, now.uuid)),
            (now.nguid != before.nguid).then_some(Difference::Nguid(before.nguid, now.nguid)),
            (now.eui64 != before.eui64).then_some(Difference::Eui64(before.eui64, now.eui64)),
            (now.block_bytes != before.block_bytes)
                .then_some(Difference::BlockBytes(before.block_bytes, now.block_bytes)),
            (now.metadata_bytes != before.metadata_bytes)
                .then_some(Difference::MetadataBytes(before.metadata_bytes, now.metadata_bytes)),
            (now.blocks < before.blocks).then_some(Difference::Blocks(before.blocks, now.blocks)),
        ];
        fields.into_iter().flatten().next()
    }
}

fn uuid(id: &Option<Uuid>) -> String {
    id.map_or(NONE.to_owned(), |id| id.to_string())
}

fn hexadecimal<const N: usize>(id: &Option<[u8; N]>) -> String {
    id.map_or(NONE.to_owned(), |id| id.iter().map(|byte| format!("{byte:02x}")).collect())
}

const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> NamespaceInfo {
        NamespaceInfo {
            nsid: 1,
            block_bytes: 512,
            blocks: 100,
            metadata_bytes: 0,
            uuid: Some(Uuid::from_u128(1)),
            nguid: None,
            eui64: None,
            read_only: false,
            generation: None,
        }
    }

    #[test]
    fn namespace_may_grow_and_change_protection() {
        let grown = NamespaceInfo { blocks: 101, read_only: true, ..namespace() };
        assert_eq!(Difference::of(&grown, &namespace()), None);
    }

    #[test]
    fn names_the_field_that_differs() {
        let cases = [
            (
                NamespaceInfo { uuid: None, ..namespace() },
                "UUID none instead of 00000000-0000-0000-0000-000000000001",
            ),
            (
                NamespaceInfo { nguid: Some([0xa5; 16]), ..namespace() },
                "NGUID a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 instead of none",
            ),
            (
                NamespaceInfo { eui64: Some([1, 2, 3, 4, 5, 6, 7, 0xf8]), ..namespace() },
                "EUI64 01020304050607f8 instead of none",
            ),
            (NamespaceInfo { block_bytes: 4096, ..namespace() }, "blocks of 4096 bytes instead of 512"),
            (
                NamespaceInfo { metadata_bytes: 8, ..namespace() },
                "8 bytes of metadata with each block instead of 0",
            ),
            (NamespaceInfo { blocks: 99, ..namespace() }, "99 blocks instead of 100"),
        ];
        for (now, text) in cases {
            assert_eq!(Difference::of(&now, &namespace()).unwrap().to_string(), text);
        }
    }
}
