//! The namespaces: active list, Identify Namespace and the identification descriptors of each (Base 1.4
//! §5.15).

use isolane_memory::Buffer;
use isolane_wire::admin::{Cns, IdentifyCommand};
use isolane_wire::identify::{Descriptor, DescriptorList, Namespace, NamespaceList};
use uuid::Uuid;

use super::Admin;
use crate::error::ConnectError;
use crate::info::NamespaceInfo;

/// Namespaces that are looked at; a subsystem with more is listed up to here.
const NAMESPACES_MAX: usize = 8192;

/// Every active namespace with an LBA format that makes sense.
pub(crate) fn namespaces(admin: &mut Admin) -> Result<Vec<NamespaceInfo>, ConnectError> {
    let mut found = Vec::new();
    for nsid in active(admin)? {
        let data = admin.identify(IdentifyCommand::new(Cns::Namespace, nsid))?;
        let Some(namespace) = Namespace::decode_prefix(&data).filter(Namespace::is_active) else { continue };
        let Some(block_bytes) = namespace.block_len() else { continue };
        let ids = ids(admin, nsid, &namespace)?;
        found.push(NamespaceInfo {
            nsid,
            block_bytes,
            blocks: namespace.nsze,
            metadata_bytes: namespace.format().ms(),
            uuid: ids.uuid,
            nguid: ids.nguid,
            eui64: ids.eui64,
            is_read_only: namespace.nsattr.write_protected(),
        });
    }
    Ok(found)
}

/// The size in Identify Namespace data; none if the namespace is not active.
pub(crate) fn namespace_blocks(data: &Buffer) -> Option<u64> {
    let namespace = Namespace::decode_prefix(data.as_slice()?)?;
    namespace.is_active().then_some(namespace.nsze)
}

/// The active list comes in pages of 1,024, each starting behind the last id of the one before.
fn active(admin: &mut Admin) -> Result<Vec<u32>, ConnectError> {
    let mut nsids: Vec<u32> = Vec::new();
    while nsids.len() < NAMESPACES_MAX {
        let after = nsids.last().copied().unwrap_or(0);
        let data = admin.identify(IdentifyCommand::new(Cns::ActiveNamespaces, after))?;
        let list = data.first_chunk().map(NamespaceList::decode);
        let page = list.as_ref().map_or(&[][..], NamespaceList::nsids);
        // A list that does not rise would never end, or name a namespace twice.
        for &nsid in page {
            nsids.extend(Some(nsid).filter(|&nsid| nsid > nsids.last().copied().unwrap_or(0)));
        }
        if page.len() < NamespaceList::CAPACITY || nsids.last().copied() == Some(after) {
            break;
        }
    }
    Ok(nsids)
}

/// What makes a namespace that one and no other.
#[derive(Default)]
struct Ids {
    uuid: Option<Uuid>,
    nguid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
}

fn ids(admin: &mut Admin, nsid: u32, namespace: &Namespace) -> Result<Ids, ConnectError> {
    let mut ids = Ids { uuid: None, nguid: some(namespace.nguid), eui64: some(namespace.eui64) };
    let data = match admin.identify(IdentifyCommand::new(Cns::NamespaceDescriptors, nsid)) {
        Ok(data) => data,
        // Before NVMe 1.3 there was no such list.
        Err(ConnectError::Refused { .. }) => return Ok(ids),
        Err(error) => return Err(error),
    };
    for descriptor in DescriptorList::decode(&data) {
        match descriptor {
            Descriptor::Uuid(uuid) => ids.uuid = some(uuid).map(Uuid::from_bytes),
            Descriptor::Nguid(nguid) => ids.nguid = some(nguid),
            Descriptor::Eui64(eui64) => ids.eui64 = some(eui64),
            Descriptor::CommandSet(_) => {}
        }
    }
    Ok(ids)
}

/// All zeroes means that there is none.
fn some<const N: usize>(id: [u8; N]) -> Option<[u8; N]> {
    (id != [0; N]).then_some(id)
}
